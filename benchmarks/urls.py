"""The package's admin, and a plain one of the same tables."""

from django.contrib import admin
from django.urls import path

from django_ojs_unique.models import Job, SuppressedEnqueue

plain = admin.AdminSite("plain")


@admin.register(Job, site=plain)
class PlainJobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs as a project would list them without our admin."""

    list_display = ["type", "state", "queue", "attempt", "created_at", "run_at", "id"]
    raw_id_fields = ["replaced_by"]  # a select would offer a million jobs


@admin.register(SuppressedEnqueue, site=plain)
class PlainAttemptAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Suppressed enqueues as a project would list them without our admin."""

    list_display = ["created_at", "type", "outcome", "existing_job_id", "existing_state"]


urlpatterns = [path("admin/", admin.site.urls), path("plain/", plain.urls)]
