"""A job's row, with the constraint that keeps it unique."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, ClassVar, Self

from django.db import models
from django.db.models import Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..db.constraints import ConditionalUniqueConstraint, PartiallyIndexed, finished, holding_unique_key, released
from ..db.fields import (
    ComposedField,
    FreeTextField,
    PayloadField,
    SparseCharField,
    SparsePayloadField,
    StateSetField,
    new_id,
)
from ..ojs.blocking import ID as ID_LENGTH
from ..ojs.blocking import LONGEST as LONGEST_BLOCK
from ..ojs.blocking import UNBLOCKED
from ..ojs.names import LONGEST_KEY
from ..ojs.retry import RetryPolicy
from ..ojs.states import JobState
from ..unique.fingerprint import SCHEME
from ..unique.policy import UniquePolicy
from .managers import JobManager, only_enqueued
from .moves import Movable

STATE_CHOICES = [(str(state), str(state)) for state in JobState]


class Job(Movable, PartiallyIndexed):
    """A job: the OJS envelope, its state, and the unique key that it holds (OJS core, "Job envelope").

    While ``state`` is one of ``unique_states``, no other such row may have the same ``fingerprint``: the constraint
    `ojs_unique_key` enforces this for every write. ``Job.objects.enqueue()`` creates rows; its methods and the
    worker change them. Each change of state is one conditional UPDATE in `lifecycle`.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128)
    args = PayloadField(default=dict)
    meta = SparsePayloadField(default=dict, blank=True)
    tags = SparsePayloadField(default=list, blank=True)
    schema = SparseCharField(max_length=2048, default="", blank=True)
    extra = SparsePayloadField(default=dict, blank=True, help_text="Members of the envelope that OJS does not define.")
    priority = models.SmallIntegerField(default=0, db_default=0)

    state = models.CharField(max_length=9, choices=STATE_CHOICES, default=str(JobState.AVAILABLE))
    attempt = models.IntegerField(default=0, db_default=0, help_text="Runs so far, including the current one.")
    max_attempts = models.IntegerField(default=3, db_default=3)
    retry_options = PayloadField(null=True, blank=True)
    timeout_ms = models.BigIntegerField(null=True, blank=True)
    visibility_timeout_ms = models.BigIntegerField(null=True, blank=True)

    unique = PayloadField(null=True, blank=True)
    fingerprint = models.CharField(max_length=64, null=True, blank=True)
    unique_states = StateSetField(default=frozenset, db_default=0, editable=False)
    fingerprint_scheme = models.SmallIntegerField(
        default=SCHEME, db_default=SCHEME, editable=False, help_text="How the fingerprint was computed."
    )
    key = ComposedField(
        max_length=LONGEST_KEY,
        null=True,
        blank=True,
        editable=False,
        help_text="The caller's name for the job, by which a later enqueue rewrites it while it waits.",
    )
    revision = models.IntegerField(
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

    limits = PayloadField(
        null=True, blank=True, editable=False, help_text="The limits under which the job runs, with their keys."
    )
    fair_partition = models.CharField(
        max_length=ID_LENGTH, null=True, blank=True, editable=False, help_text="Its partition in a fair queue."
    )
    blocked_by = models.CharField(
        max_length=LONGEST_BLOCK,
        default=UNBLOCKED,
        db_default=UNBLOCKED,
        blank=True,
        editable=False,
        help_text="What keeps workers from claiming it: see `ojs.blocking`.",
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
    unconfirmed = models.BooleanField(
        null=True,
        blank=True,
        editable=False,
        help_text="True while the attempt does not count if the lease is lost, as it may not have begun.",
    )

    progress = models.FloatField(null=True, blank=True, help_text="From 0 to 1, as the handler last said.")
    progress_note = FreeTextField(max_length=255, default="", blank=True)
    steps = SparsePayloadField(
        default=list, blank=True, help_text="The steps of the handler that have ended, and how far its loops have come."
    )
    result = PayloadField(null=True, blank=True)
    errors = SparsePayloadField(default=list, blank=True)
    skipped = FreeTextField(
        max_length=255,
        default="",
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
    payload_pruned = models.BooleanField(
        default=False, db_default=False, editable=False, help_text="Pruned, but for what a window that is open needs."
    )

    workflow_id = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The workflow that enqueued the job, if one did."
    )
    awaited = models.BooleanField(
        null=True, blank=True, editable=False, help_text="True while a workflow has not counted its end yet."
    )
    workflow_only = models.BooleanField(
        null=True, blank=True, editable=False, help_text="True while no caller of `enqueue` needs a workflow's job."
    )

    objects: ClassVar[JobManager[Self]] = JobManager()

    class Meta:
        verbose_name = _("job")
        verbose_name_plural = _("jobs")
        permissions = [
            ("cancel_job", "Can cancel job"),
            ("retry_job", "Can retry job"),
            ("enqueue_again_job", "Can enqueue finished job again"),
            ("release_job", "Can take job out of uniqueness"),
        ]
        constraints = [
            ConditionalUniqueConstraint(fields=["fingerprint"], condition=holding_unique_key(), name="ojs_unique_key")
        ]
        indexes = [
            # The newest finished job of a fingerprint in each state. Its unfinished job is found by the constraint.
            models.Index(
                fields=["fingerprint", "state", "created_at", "id"],
                condition=Q(finished(), fingerprint__isnull=False),
                name="ojs_job_history",
            ),
            # Unfinished jobs that do not hold their unique key; there are few, if any. On MariaDB the index has all
            # jobs: the state set comes first, so that MariaDB does not use it to look for duplicates.
            models.Index(
                fields=["unique_states", "fingerprint"],
                condition=Q(released(), fingerprint__isnull=False),
                name="ojs_job_released",
            ),
            # The jobs with a key, of all types.
            models.Index(fields=["key"], condition=Q(key__isnull=False), name="ojs_job_key"),
            # The claim: one queue, priority first, then first in, first out. Also the depth of each queue, and the keys
            # for whose slots jobs wait.
            models.Index(
                fields=["state", "queue", "blocked_by", "-priority", "enqueued_at", "id"],
                condition=Q(finished_at__isnull=True),
                name="ojs_job_live",
            ),
            # What maintenance must look at next: a scheduled or retryable job that is due, a lease that ran out.
            models.Index(
                fields=["run_at", "lease_expires_at"],
                condition=Q(run_at__isnull=False) | Q(lease_expires_at__isnull=False),
                name="ojs_job_timer",
            ),
            # The scan for waiting jobs that expired.
            models.Index(
                fields=["expires_at"],
                condition=Q(expires_at__isnull=False, finished_at__isnull=True, started_at__isnull=True),
                name="ojs_job_expiry",
            ),
            # The ends that a workflow has not counted yet: hardly any. NULL, not false, so that MariaDB uses the index.
            models.Index(fields=["awaited"], condition=Q(finished(), awaited__isnull=False), name="ojs_job_awaited"),
            # Pruning: the jobs that finished first, and those that are kept only for their window. The dashboard counts
            # by queue, and by the time of the enqueue.
            models.Index(
                fields=[
                    "payload_pruned",
                    "state",
                    "dead_letter",
                    "finished_at",
                    "queue",
                    "window_ends_at",
                    "created_at",
                ],
                condition=Q(finished_at__isnull=False),
                name="ojs_job_finished",
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
        """The effective retry policy: a job that may not run again has no attempts left."""
        policy = RetryPolicy() if self.retry_options is None else RetryPolicy.parse(self.retry_options)
        most = self.most_attempts
        return policy if most >= policy.max_attempts else replace(policy, max_attempts=most)

    @property
    def may_run_again(self) -> bool:
        """False if its key was taken or removed, or its workflow cancelled, while it ran."""
        return self.max_attempts >= 0

    @property
    def most_attempts(self) -> int:
        """How many attempts it may make in all: those that it has made if it may not run again."""
        return self.max_attempts if self.may_run_again else self.attempt

    @property
    def holds_unique_key(self) -> bool:
        """Whether this row now holds its unique key."""
        return self.state in self.unique_states

    def save(
        self,
        force_insert: Any = False,
        force_update: bool = False,
        using: str | None = None,
        update_fields: Iterable[str] | None = None,
    ) -> None:
        """Save changes of fields such as ``priority``, ``tags`` and ``meta``.

        Raise InvalidRequest for a new job, which only an enqueue stores, and for a field that only moves between states
        write, if the object has another value than the row. ``update_fields`` without such a field saves a query.
        """
        if self._state.adding or self.pk is None:
            raise only_enqueued("enqueue(type, args)")
        from ..operations.owned import writable_fields

        using = using or self._written_to
        update_fields = writable_fields(self, using, update_fields)
        super().save(force_insert=force_insert, force_update=force_update, using=using, update_fields=update_fields)

    def refresh_from_db(self, using: str | None = None, fields: Any = None, from_queryset: Any = None) -> None:
        """Do what Django does, by default on the database where the row was read: a replica may not have it yet."""
        if from_queryset is None:
            using = using or self._state.db
        super().refresh_from_db(using=using, fields=fields, from_queryset=from_queryset)
