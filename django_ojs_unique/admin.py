"""The admin: jobs and suppressed attempts, to read."""

from __future__ import annotations

from typing import Any

from django.contrib import admin
from django.db.models import Model
from django.http import HttpRequest

from .models import Job, SuppressedAttempt


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only the job system changes."""

    show_full_result_count = False

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ["type", "state", "queue", "attempt", "created_at", "run_at", "id"]
    list_filter = ["state"]
    search_fields = ["id__exact", "type", "fingerprint__startswith"]
    ordering = ["-id"]


@admin.register(SuppressedAttempt)
class SuppressedAttemptAdmin(ReadOnlyAdmin):
    list_display = ["created_at", "type", "outcome", "existing_job_id", "existing_state"]
    list_filter = ["outcome"]
    search_fields = ["existing_job_id__exact", "fingerprint__startswith"]
    ordering = ["-id"]
