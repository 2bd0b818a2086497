"""A job's row, and the promise it carries."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, ClassVar, NoReturn

from django.db import models, router
from django.db.models import Q
from django.utils import timezone

from .. import lifecycle, revival
from ..constraints import ConditionalUniqueConstraint, PartiallyIndexed, guarding
from ..events import recorded
from ..exceptions import InvalidTransition
from ..fields import PayloadField, StateSetField, new_id
from ..managers import JobManager
from ..ojs.fingerprint import SCHEME
from ..ojs.names import LONGEST_KEY
from ..ojs.policy import UniquePolicy
from ..ojs.retry import RetryPolicy
from ..ojs.states import ALL, INCOMPLETE, TERMINAL, TIMED, JobState
from ..signals import announce, job_activated, job_cancelled

_HASTENABLE = TIMED | {JobState.PENDING}
STATE_CHOICES = [(str(state), str(state)) for state in JobState]


class Job(PartiallyIndexed):
    """A job: the OJS envelope, its state, and the guard over its fingerprint (OJS core, "Job envelope").

    While ``state`` is one of ``guarded_states``, no other such row may hold the same ``fingerprint``: the constraint
    `ojs_unique_guard` says so to every write path. Rows are made by ``Job.objects.enqueue()`` and changed by the
    methods below and the worker; each change of state is one guarded UPDATE in `lifecycle`.
    """

    _pinned_to: str | None = None
    """The database that an operator named, whatever a router says."""

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128)
    args = PayloadField(default=dict)
    meta = PayloadField(default=dict, db_default={}, blank=True)
    tags = PayloadField(default=list, db_default=[], blank=True)
    schema = models.CharField(max_length=2048, default="", db_default="", blank=True)
    extra = PayloadField(
        default=dict, db_default={}, blank=True, help_text="Members of the envelope that OJS does not define."
    )
    priority = models.SmallIntegerField(default=0, db_default=0)

    state = models.CharField(max_length=9, choices=STATE_CHOICES, default=str(JobState.AVAILABLE))
    attempt = models.PositiveIntegerField(default=0, db_default=0, help_text="Runs so far, including the current one.")
    max_attempts = models.PositiveIntegerField(default=3, db_default=3)
    retry = PayloadField(null=True, blank=True)
    timeout_ms = models.PositiveBigIntegerField(null=True, blank=True)
    visibility_timeout_ms = models.PositiveBigIntegerField(null=True, blank=True)

    unique = PayloadField(null=True, blank=True)
    fingerprint = models.CharField(max_length=64, null=True, blank=True)
    guarded_states = StateSetField(default=frozenset, db_default=0, editable=False)
    fingerprint_scheme = models.PositiveSmallIntegerField(
        default=SCHEME, db_default=SCHEME, editable=False, help_text="How the fingerprint was computed."
    )
    key = models.CharField(
        max_length=LONGEST_KEY,
        null=True,
        blank=True,
        editable=False,
        help_text="The caller's name for the job, by which a later enqueue rewrites it while it waits.",
    )
    revision = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text="How often the job was rewritten by its key."
    )
    replaced_by = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="replaces",
    )

    created_at = models.DateTimeField(default=timezone.now, editable=False)
    enqueued_at = models.DateTimeField(null=True, blank=True, help_text="When the job last became available.")
    scheduled_at = models.DateTimeField(null=True, blank=True, help_text="What the caller asked for.")
    run_at = models.DateTimeField(null=True, blank=True, help_text="When a scheduled or retryable job is due.")
    expires_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    worker_id = models.CharField(max_length=255, null=True, blank=True)
    lease_token = models.UUIDField(null=True, blank=True, editable=False)
    lease_expires_at = models.DateTimeField(null=True, blank=True)

    progress = models.FloatField(null=True, blank=True, help_text="From 0 to 1, as the handler last said.")
    progress_note = models.CharField(max_length=255, default="", db_default="", blank=True)
    result = PayloadField(null=True, blank=True)
    errors = PayloadField(default=list, db_default=[], blank=True)
    skipped = models.CharField(
        max_length=255,
        default="",
        db_default="",
        blank=True,
        help_text="Why a completed job had nothing to do; empty when it did its work.",
    )
    dead_letter = models.BooleanField(
        default=False, db_default=False, help_text="Discarded under a retry policy that says dead_letter."
    )

    window_ends_at = models.DateTimeField(
        null=True,
        blank=True,
        editable=False,
        help_text="Until when the row counts as a duplicate after it has finished, by its own policy.",
    )
    slimmed = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Pruned, but for what a window that is open needs."
    )

    objects: ClassVar[JobManager] = JobManager()

    class Meta:
        verbose_name = "job"
        verbose_name_plural = "jobs"
        permissions = [
            ("cancel_job", "Can cancel job"),
            ("retry_job", "Can make waiting job available now"),
            ("revive_job", "Can revive discarded job"),
            ("release_job", "Can take job out of uniqueness"),
        ]
        constraints = [
            ConditionalUniqueConstraint(fields=["fingerprint"], condition=guarding(), name="ojs_unique_guard"),
            models.CheckConstraint(
                condition=Q(state__in=[str(state) for state in JobState]), name="ojs_job_state_is_known"
            ),
            models.CheckConstraint(
                condition=Q(state__in=sorted(TERMINAL), finished_at__isnull=False)
                | (~Q(state__in=sorted(TERMINAL)) & Q(finished_at__isnull=True)),
                name="ojs_job_terminal_has_finish",
            ),
            models.CheckConstraint(
                condition=Q(guarded_states=0) | Q(fingerprint__isnull=False), name="ojs_job_guard_has_fingerprint"
            ),
        ]
        indexes = [
            # The look for duplicates in enqueue(), explain() and duplicates_of().
            models.Index(
                fields=["fingerprint", "state", "created_at"],
                condition=Q(fingerprint__isnull=False),
                name="ojs_job_lookup",
            ),
            # The jobs of a key, whatever their types.
            models.Index(fields=["key"], condition=Q(key__isnull=False), name="ojs_job_key"),
            # The claim: one queue, priority first, then first in, first out.
            models.Index(
                fields=["queue", "-priority", "enqueued_at", "id"],
                condition=Q(state="available"),
                name="ojs_job_claim",
            ),
            # Promotion of scheduled and retryable jobs.
            models.Index(fields=["run_at"], condition=Q(run_at__isnull=False), name="ojs_job_due"),
            # The sweep for leases that ran out.
            models.Index(
                fields=["lease_expires_at"], condition=Q(lease_expires_at__isnull=False), name="ojs_job_lease"
            ),
            # The sweep for waiting jobs that expired.
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False, finished_at__isnull=True, started_at__isnull=True),
                name="ojs_job_expiry",
            ),
            # Pruning: what finished first, and what was kept only for its window. The dashboard counts by queue.
            models.Index(
                fields=["slimmed", "state", "dead_letter", "finished_at", "queue"],
                condition=Q(finished_at__isnull=False),
                name="ojs_job_finished",
            ),
            models.Index(
                fields=["slimmed", "window_ends_at"], condition=Q(window_ends_at__isnull=False), name="ojs_job_window"
            ),
            # The admin: what was enqueued when,
            models.Index(fields=["created_at"], name="ojs_job_created"),
            # how deep each queue is,
            models.Index(
                fields=["state", "queue", "enqueued_at"], condition=Q(finished_at__isnull=True), name="ojs_job_live"
            ),
            # and live jobs beside the one that guards their fingerprint: few, if any. The state set comes first, as
            # MariaDB, where the index has all jobs, would take it for the look for duplicates.
            models.Index(
                fields=["guarded_states", "fingerprint"],
                condition=Q(fingerprint__isnull=False, finished_at__isnull=True, guarded_states=0),
                name="ojs_job_unguarded",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.id} ({self.state})"

    @property
    def unique_policy(self) -> UniquePolicy | None:
        """The policy that the job was enqueued with, or None."""
        return None if self.unique is None else UniquePolicy.parse(self.unique)

    @property
    def retry_policy(self) -> RetryPolicy:
        """The effective retry policy."""
        return RetryPolicy() if self.retry is None else RetryPolicy.parse(self.retry)

    @property
    def is_guarding(self) -> bool:
        """Whether this row now keeps others of its fingerprint out."""
        return self.state in self.guarded_states

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Do what Django does, by default where the row was read: a replica may not have it yet."""
        if from_queryset is None:
            using = using or self._state.db
        super().refresh_from_db(using=using, fields=fields, from_queryset=from_queryset)

    def cancel(self) -> None:
        """Cancel the job; a running one is told, and its result is refused.

        Raises InvalidTransition when the job has finished.
        """

        def cancel() -> None:
            if not lifecycle.cancel(self._row(), timezone.now()):
                self._refuse("cancel", INCOMPLETE)
            self.refresh_from_db(using=self._written_to)
            announce(job_cancelled, Job, job=self, replaced_by=None, using=self._written_to)

        recorded(self._row().db, cancel)

    def retry_now(self, *, force: bool = False, replace: bool = False) -> list[Job]:
        """Make a scheduled, pending or retryable job available now, or do what `revive` does with a discarded one.

        Return the jobs that were cancelled for it. Raises InvalidTransition in any other state.
        """
        if self._make_available(lifecycle.hasten):
            return []
        return self._revive("retry", _HASTENABLE | {JobState.DISCARDED}, force, replace)

    def activate(self) -> None:
        """Make a pending job available. Raises InvalidTransition in any other state."""
        if not self._make_available(lifecycle.activate):
            self._refuse("activate", [JobState.PENDING])

    def hasten(self) -> None:
        """Make a scheduled, pending or retryable job available now. Raises InvalidTransition in any other state."""
        if not self._make_available(lifecycle.hasten):
            self._refuse("retry", _HASTENABLE, discarded="Revive it.")

    def revive(self, *, force: bool = False, replace: bool = False) -> list[Job]:
        """Make a discarded job available with fresh attempts; return the jobs that were cancelled for it.

        While a live duplicate exists, that is refused with DuplicateJob. ``replace`` cancels the live duplicates, but
        for a running one that may not be replaced: then it is refused all the same. ``force`` lets them all run.
        Raises InvalidTransition in any other state.
        """
        return self._revive("revive", {JobState.DISCARDED}, force, replace)

    def release_guard(self) -> bool:
        """Take this job out of uniqueness for good, so that the next enqueue of its key is admitted.

        The job itself goes on; it loses its fingerprint. Return whether it had one.
        """
        released = lifecycle.free_key(self._row())
        self.refresh_from_db(using=self._written_to)
        return bool(released)

    def remove(self) -> None:
        """Delete the row, so that its key is free and its window ends. Raises InvalidTransition while the job runs."""
        if not lifecycle.remove(self._row()):
            self._refuse("delete", ALL - {JobState.ACTIVE}, active="Cancel it first.")

    def _make_available(self, move: Callable[[Any, datetime], int]) -> bool:
        def step() -> bool:
            if not move(self._row(), timezone.now()):
                return False
            was_pending = self.state == JobState.PENDING
            self.refresh_from_db(using=self._written_to)
            if was_pending:
                announce(job_activated, Job, job=self, using=self._written_to)
            return True

        return recorded(self._row().db, step)

    def _revive(self, operation: str, sources: Iterable[JobState], force: bool, replace: bool) -> list[Job]:
        using = self._written_to

        def revive() -> list[Job]:
            replaced = revival.revive(Job.objects.using(using), self, force=force, replace=replace)
            if replaced is None:
                self._refuse(operation, sources)
            for job in (self, *replaced):
                job.refresh_from_db(using=using)
            for job in replaced:
                announce(job_cancelled, Job, job=job, replaced_by=self.pk, using=using)
            announce(job_activated, Job, job=self, using=using)
            return replaced

        return recorded(using, revive)

    @property
    def _written_to(self) -> str:
        """The database where its row is changed: the object may have been read from a replica."""
        return self._pinned_to or router.db_for_write(Job, instance=self)

    def _row(self) -> Any:
        return Job.objects.using(self._written_to).filter(pk=self.pk)

    def _refuse(self, operation: str, expected: Iterable[JobState], **mends: str) -> NoReturn:
        current, slimmed = self._row().values_list("state", "slimmed").first() or (None, False)
        mend = f" {mends[current]}" if current is not None and current in mends else ""
        raise InvalidTransition(
            f"Cannot {operation} job {self.pk}: it is {current or 'gone'}{', and pruned' * slimmed}.{mend}",
            details={"job_id": str(self.pk), "current_state": current, "expected_state": sorted(map(str, expected))},
        )
