"""The admin: everything to read, and two things to do with a job."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.contrib import admin, messages
from django.db.models import Model, QuerySet
from django.http import HttpRequest

from .exceptions import DuplicateJob, InvalidTransition
from .fields import StateSetField
from .models import CronJob, Job, Queue, SuppressedAttempt, WorkerProcess

REFUSALS_NAMED = 3


class ReadOnlyAdmin(admin.ModelAdmin):  # type: ignore[type-arg]
    """Rows that only the job system changes."""

    show_full_result_count = False

    def get_fields(self, request: HttpRequest, obj: Any = None) -> Any:
        # Django would show a set of states as a number.
        return [field.name for field in self.model._meta.concrete_fields if not isinstance(field, StateSetField)]

    def has_add_permission(self, request: HttpRequest) -> bool:
        return False

    def has_change_permission(self, request: HttpRequest, obj: Model | None = None) -> bool:
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        return False


@admin.register(Job)
class JobAdmin(ReadOnlyAdmin):
    list_display = ["type", "state", "queue", "attempt", "created_at", "run_at", "id"]
    list_filter = ["state", "dead_letter"]
    search_fields = ["type__startswith", "queue__exact", "key__exact", "fingerprint__startswith"]
    search_help_text = "An id, a queue, a key, or the beginning of a type or of a fingerprint."
    ordering = ["-id"]
    actions = ["cancel", "retry_now"]

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Job], search_term: str
    ) -> tuple[QuerySet[Job], bool]:
        try:
            return queryset.filter(pk=UUID(search_term.strip())), False
        except ValueError:
            return super().get_search_results(request, queryset, search_term)

    def has_operate_permission(self, request: HttpRequest) -> bool:
        """Whether the user may use the actions; the form stays read-only for everybody."""
        return super(ReadOnlyAdmin, self).has_change_permission(request)

    @admin.action(description="Cancel", permissions=["operate"])
    def cancel(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._on_each(request, jobs, Job.cancel, "Cancelled")

    @admin.action(description="Retry now", permissions=["operate"])
    def retry_now(self, request: HttpRequest, jobs: QuerySet[Job]) -> None:
        self._on_each(request, jobs, Job.retry_now, "Made available")

    def _on_each(self, request: HttpRequest, jobs: QuerySet[Job], act: Callable[[Job], None], done: str) -> None:
        """Do it to each job, log what was done, and say it, with the first few refusals."""
        count, refusals = 0, []
        for job in jobs:
            try:
                act(job)
            except InvalidTransition as error:
                refusals.append(error.message)
            except DuplicateJob as error:
                refusals.append(
                    f"Cannot retry job {job.pk}: job {error.existing_job_id} is a live duplicate"
                    f" ({error.existing_job_state})."
                )
            except Job.DoesNotExist:
                refusals.append(f"Job {job.pk} is gone.")
            else:
                self.log_change(request, job, f"{done}.")
                count += 1
        if count:
            self.message_user(request, f"{done}: {count} job(s).", messages.SUCCESS)
        if refusals:
            named = " ".join(refusals[:REFUSALS_NAMED])
            more = f" And {len(refusals) - REFUSALS_NAMED} more." if len(refusals) > REFUSALS_NAMED else ""
            self.message_user(request, f"Refused: {len(refusals)} job(s). {named}{more}", messages.WARNING)


@admin.register(SuppressedAttempt)
class SuppressedAttemptAdmin(ReadOnlyAdmin):
    list_display = ["created_at", "type", "outcome", "existing_job_id", "existing_state"]
    list_filter = ["outcome"]
    search_fields = ["existing_job_id__exact", "fingerprint__startswith"]
    ordering = ["-id"]


@admin.register(Queue)
class QueueAdmin(ReadOnlyAdmin):
    list_display = ["name", "paused_at", "concurrency_limit"]
    list_filter = [("paused_at", admin.EmptyFieldListFilter), ("concurrency_limit", admin.EmptyFieldListFilter)]
    search_fields = ["name"]
    ordering = ["name"]


@admin.register(WorkerProcess)
class WorkerProcessAdmin(ReadOnlyAdmin):
    list_display = ["id", "state", "queues", "concurrency", "held", "settled", "started_at", "heartbeat_at"]
    list_filter = ["state"]
    search_fields = ["id", "hostname"]
    ordering = ["-heartbeat_at"]


@admin.register(CronJob)
class CronJobAdmin(ReadOnlyAdmin):
    list_display = ["name", "type", "expression", "timezone", "enabled", "next_run_at", "last_run_at", "last_outcome"]
    list_filter = ["enabled", "declared", "overlap_policy", "last_outcome"]
    search_fields = ["name", "type"]
    ordering = ["name"]
