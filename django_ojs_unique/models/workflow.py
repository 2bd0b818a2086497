"""Workflows: chains, groups and batches of jobs (OJS workflows)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, Self
from uuid import UUID

from asgiref.sync import sync_to_async
from django.db import models, router, transaction
from django.db.models import Count, Exists, OuterRef, Q
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..db.constraints import PartiallyIndexed
from ..db.fields import PayloadField, SparseCharField, SparsePayloadField, new_id
from ..db.transactions import starting_over
from ..ojs.states import JobState
from ..ojs.workflows import UNSUCCESSFUL, Kind, MemberOutcome, Role, WorkflowState

if TYPE_CHECKING:
    from ..workflows.cancel import Cancelled

PRUNED_AT_ONCE = 100


def _choices(words: Iterable[str]) -> list[tuple[str, str]]:
    return [(str(word), str(word)) for word in words]


class WorkflowQuerySet(models.QuerySet["Workflow"]):
    """Workflows. Filters do not limit `enqueue`; the database of `using()` does."""

    def enqueue(self, definition: Mapping[str, Any], *, id: UUID | str | None = None) -> Workflow:
        """Store a workflow, and enqueue the jobs that wait for no other; all in the caller's transaction.

        ``definition``: what ``to_dict()`` of a chain, a group or a batch returns: an object with a ``type`` and its
        ``steps`` (chain) or ``jobs``; each is an object with the arguments of ``Job.objects.enqueue()`` and a ``name``,
        or such a definition itself. ``id``: a UUID; by default a new UUIDv7. Without `using()`, it is stored where the
        backend of a task in it stores its jobs, else where the router says.

        Raises InvalidWorkflow; for a job what ``enqueue()`` raises, with its place in the message; JobIdTaken when the
        id is in use; DuplicateJob for a job that its policy rejects. Nothing is stored then.
        """
        from ..workflows.create import create
        from ..workflows.definition import read_workflow

        flow = read_workflow(definition)
        using = self._db or flow.using or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]
        return create(self.model._default_manager.using(using), flow, id)  # type: ignore[no-any-return]

    async def aenqueue(self, definition: Mapping[str, Any], *, id: UUID | str | None = None) -> Workflow:
        """Do what `enqueue` does, from asynchronous code."""
        return await sync_to_async(self.enqueue)(definition, id=id)

    def roots(self) -> Self:
        """Select the outermost workflows."""
        return self.filter(root=None)

    def prune(self, now: datetime) -> int:
        """Delete a batch of workflows that ended before ``OJS_UNIQUE["WORKFLOW_RETENTION"]``; return how many.

        Those nested in them and their members go with them; jobs are kept as long as `RETENTION` says. A workflow is
        kept as long as a job of it that did not complete: its retry needs the results of those before it.
        """
        from ..db.locking import any_of, unlocked

        old = self.filter(root=None, finished_at__lte=now - settings.workflow_retention).order_by("finished_at")
        old = old.exclude(_may_run_again("workflow")).exclude(_may_run_again("workflow__root"))
        if not any_of(old):
            return 0

        def delete() -> int:
            with transaction.atomic(using=old.db):
                ids = list(unlocked(old).values_list("pk", flat=True)[:PRUNED_AT_ONCE])
                self.using(old.db).filter(pk__in=ids).delete()
                return len(ids)

        return starting_over(old.db, delete)

    def running(self) -> Self:
        """Select the outermost workflows that have not ended."""
        return self.filter(root=None, state=WorkflowState.RUNNING)


def _may_run_again(place: str) -> Exists:
    """Whether a member, whose ``place`` is the workflow, has a stored job that has not completed."""
    from .job import Job

    job = Job._default_manager.filter(pk=OuterRef("job_id")).exclude(state=JobState.COMPLETED)
    unsuccessful = WorkflowMember._default_manager.filter(outcome__in=UNSUCCESSFUL, **{place: OuterRef("pk")})
    return Exists(unsuccessful.filter(Exists(job)))


class Workflow(PartiallyIndexed):
    """A chain, a group or a batch of jobs (OJS workflows). A nested one is a member of another, its parent.

    Nothing counts the ends of its jobs while they end: `workflows.advance` finds them later, in the jobs' own rows.
    """

    id = models.UUIDField(primary_key=True, default=new_id, editable=False)
    type = models.CharField(max_length=5, choices=_choices(Kind))
    name = SparseCharField(max_length=255, default="", blank=True)
    state = models.CharField(max_length=9, choices=_choices(WorkflowState), default=str(WorkflowState.RUNNING))
    root = models.ForeignKey(
        "self",
        null=True,
        blank=True,
        on_delete=models.CASCADE,
        related_name="nested",
        help_text="The outermost workflow of a nested one.",
    )
    extra = SparsePayloadField(default=dict, blank=True, help_text="Members that OJS does not define.")
    created_at = models.DateTimeField(default=timezone.now, editable=False)
    started_at = models.DateTimeField(null=True, blank=True, help_text="When the first of its jobs started.")
    finished_at = models.DateTimeField(null=True, blank=True)
    called_back_at = models.DateTimeField(
        null=True, blank=True, help_text="When the callbacks of a batch were decided on: once."
    )

    objects = WorkflowQuerySet.as_manager()

    class Meta:
        verbose_name = _("workflow")
        verbose_name_plural = _("workflows")
        permissions = [("cancel_workflow", "Can cancel workflow")]
        indexes = [
            models.Index(fields=["state", "created_at"], condition=Q(root__isnull=True), name="ojs_workflow_state"),
            models.Index(
                fields=["finished_at"],
                condition=Q(root__isnull=True, finished_at__isnull=False),
                name="ojs_workflow_ended",
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name or self.type} {self.id} ({self.state})"

    @property
    def members(self) -> models.QuerySet[WorkflowMember]:
        """Its steps or jobs, in order, without callbacks."""
        return self.all_members.filter(role=Role.MEMBER).order_by("position")

    @property
    def callbacks(self) -> models.QuerySet[WorkflowMember]:
        """The callbacks of a batch."""
        return self.all_members.exclude(role=Role.MEMBER).order_by("position")

    @property
    def progress(self) -> float:
        """Which part of its members has ended, from 0 to 1."""
        counts = self.counts()
        return (counts["total"] - counts["open"]) / counts["total"]

    def counts(self) -> dict[str, int]:
        """Count its steps or jobs: ``total``, and by outcome."""
        found = dict(self.members.order_by().values_list("outcome").annotate(Count("pk")))
        counts = {outcome.value: found.get(outcome, 0) for outcome in MemberOutcome}
        return {"total": sum(counts.values()), **counts}

    @property
    def result(self) -> Any:
        """What its jobs have returned: for a chain the result of its last step, else an array in the order of its jobs.

        A job that failed has ``{"error": {...}}`` there. None while it runs.
        """
        from ..workflows.results import result_of_workflow

        return None if self.finished_at is None else result_of_workflow(self)

    def cancel(self, *, active: bool = False) -> Cancelled:
        """Cancel the workflow: jobs that wait are cancelled, members that wait for others are never enqueued.

        Jobs that run end by themselves, without another attempt, or are cancelled, too, if ``active``. No callback is
        enqueued. A job goes on if another workflow waits for it, or if a caller of ``enqueue`` has enqueued it, too, or
        was deduplicated into it. Raises InvalidTransition when the workflow has ended.
        """
        from ..workflows.cancel import cancel

        using = router.db_for_write(type(self), instance=self)
        cancelled = cancel(type(self)._default_manager.using(using), self.pk, active=active)
        self.refresh_from_db(using=using)
        return cancelled

    def jobs(self) -> Any:
        """Select the jobs of this workflow and of those nested in it, callbacks and stand-ins included."""
        from ..workflows.tables import below
        from .job import Job

        within = below(self.pk, "workflow")
        members = WorkflowMember._default_manager.using(self._state.db).filter(within, job_id=OuterRef("pk"))
        return Job.objects.using(self._state.db or router.db_for_read(Job)).filter(Exists(members))


class WorkflowMember(PartiallyIndexed):
    """A step, a job or a callback of a workflow: a job that is or will be enqueued, or a nested workflow."""

    id = models.BigAutoField(primary_key=True)
    workflow = models.ForeignKey(Workflow, on_delete=models.CASCADE, related_name="all_members")
    role = models.CharField(max_length=11, choices=_choices(Role), default=str(Role.MEMBER))
    position = models.IntegerField()
    name = SparseCharField(max_length=255, default="", blank=True)
    request = PayloadField(null=True, help_text="The enqueue of the job.")
    child = models.OneToOneField(
        Workflow, null=True, blank=True, on_delete=models.RESTRICT, related_name="parent_member"
    )
    job_id = models.UUIDField(
        null=True, blank=True, editable=False, help_text="The job that does its work: also a duplicate that stands in."
    )
    outcome = models.CharField(max_length=9, choices=_choices(MemberOutcome), default=str(MemberOutcome.OPEN))
    enqueued_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)
    result = PayloadField(null=True, blank=True)
    error = PayloadField(null=True, blank=True)

    class Meta:
        verbose_name = _("member of a workflow")
        verbose_name_plural = _("members of workflows")
        constraints = [models.UniqueConstraint(fields=["workflow", "role", "position"], name="ojs_member_position")]
        indexes = [
            models.Index(fields=["workflow", "outcome", "role", "position"], name="ojs_member_outcome"),
            models.Index(fields=["job_id"], name="ojs_member_job"),
            models.Index(fields=["outcome", "job_id"], condition=Q(outcome="open"), name="ojs_member_open"),
        ]

    def __str__(self) -> str:
        return f"{self.role} {self.position} of {self.workflow_id} ({self.outcome})"
