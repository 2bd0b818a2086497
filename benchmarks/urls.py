"""The package's admin, and beside it a plain one of the same tables."""

from django.contrib import admin
from django.urls import path

from django_ojs_unique.models import Job, SuppressedAttempt

plain = admin.AdminSite("plain")


@admin.register(Job, site=plain)
class PlainJobAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Jobs as a project would list them first."""

    list_display = ["type", "state", "queue", "attempt", "created_at", "run_at", "id"]
    raw_id_fields = ["replaced_by"]  # a select would offer a million jobs


@admin.register(SuppressedAttempt, site=plain)
class PlainAttemptAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Attempts as a project would list them first."""

    list_display = ["created_at", "type", "outcome", "existing_job_id", "existing_state"]


urlpatterns = [path("admin/", admin.site.urls), path("plain/", plain.urls)]
