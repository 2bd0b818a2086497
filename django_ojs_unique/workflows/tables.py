"""The rows of workflows on one database: the models are in a higher layer."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple
from uuid import UUID

from django.apps import apps
from django.db.models import Exists, OuterRef, Q, QuerySet

from .. import lifecycle
from ..db.constraints import finished
from ..db.inserts import in_groups
from ..enqueue.unit_of_work import LostRace
from ..ojs.workflows import MemberOutcome, Role, WorkflowState


class Tables(NamedTuple):
    """The jobs, the workflows and their members."""

    jobs: QuerySet[Any]
    workflows: QuerySet[Any]
    members: QuerySet[Any]

    @classmethod
    def on(cls, using: str) -> Tables:
        """Return the tables of a database."""
        names = ("Job", "Workflow", "WorkflowMember")
        return cls(*(apps.get_model("django_ojs_unique", name)._default_manager.using(using) for name in names))

    @property
    def using(self) -> str:
        """The alias of the database."""
        return self.jobs.db

    @property
    def waiting(self) -> QuerySet[Any]:
        """The members whose job is stored, and whose end is not counted yet."""
        return self.members.filter(outcome=MemberOutcome.OPEN, enqueued_at__isnull=False, child=None)

    @property
    def gone(self) -> QuerySet[Any]:
        """Those of them whose job was deleted."""
        return self.waiting.exclude(Exists(self.jobs.filter(pk=OuterRef("job_id"))))

    @property
    def ended(self) -> QuerySet[Any]:
        """The jobs that have ended, and that a workflow waits for, in the order of their index, so that it is used."""
        return self.jobs.filter(finished(), awaited__isnull=False).order_by("awaited")

    @property
    def retried(self) -> QuerySet[Any]:
        """The members that have failed, but whose job was retried, in workflows that count its new end instead."""
        job = self.jobs.filter(pk=OuterRef("job_id"), awaited__isnull=False)
        since = Q(finished_at=None) | ~Q(finished_at=OuterRef("finished_at"))
        failed = self.members.filter(outcome=MemberOutcome.FAILED, role=Role.MEMBER, child=None)
        running = failed.filter(workflow__state=WorkflowState.RUNNING, workflow__called_back_at=None)
        return running.filter(Exists(job.filter(since)))

    def adopt(self, ids: Collection[UUID]) -> None:
        """Let a workflow wait for stored jobs. Raises LostRace if one of them is gone."""
        ids = sorted(set(ids))
        found = sum(lifecycle.write(self.jobs.filter(pk__in=group), awaited=True) for group in in_groups(ids))
        if found < len(ids):
            raise LostRace

    def release(self, ids: Collection[UUID]) -> None:
        """Wait no longer for jobs whose rows are locked here, unless another workflow does.

        A job is written before its member, so whoever has locked the jobs sees all their members.
        """
        held = set(self.waiting.filter(job_id__in=ids).select_for_update().values_list("job_id", flat=True))
        held |= set(self.retried.filter(job_id__in=ids).values_list("job_id", flat=True))
        lifecycle.write(self.jobs.filter(pk__in=set(ids) - held), awaited=None)


def below(root: Any, prefix: str = "") -> Q:
    """Return the condition for a root workflow and all that are nested in it."""
    return Q(**{f"{prefix or 'pk'}": root}) | Q(**{f"{prefix}__root" if prefix else "root": root})
