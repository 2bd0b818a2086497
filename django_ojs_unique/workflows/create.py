"""Create a workflow: all of its rows and its first jobs in one transaction, or nothing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import IntegrityError, connections, transaction
from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.dialects import dialect_of, dialect_on
from ..db.fast.rows import unsaved
from ..db.fields import new_id
from ..enqueue.bulk import enqueue_many
from ..enqueue.request import Request, refuse_another_database
from ..enqueue.results import ItemResult
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import JobIdTaken, OJSError
from ..ojs.values import uuid
from ..ojs.workflows import Kind, Role
from ..signals import announce, workflow_created
from .definition import Flow, Leaf
from .stored import to_json
from .tables import Tables


def create(workflows: QuerySet[Any], flow: Flow, id: UUID | str | None = None) -> Any:
    """Store a valid workflow on the database of ``workflows``, enqueue its first jobs, and return its row.

    Raises DuplicateJob, JobIdTaken, or InvalidRequest for a job of another database, with the place of the job; nothing
    is stored then.
    """
    tables = Tables.on(workflows.db)
    for leaf in flow.leaves():
        try:
            refuse_another_database(leaf.request, tables.using)
        except OJSError as error:
            raise leaf.located(error) from None
    chosen = None if id is None else uuid(id, "id")
    for work in UnitOfWork(tables.using):
        with work:
            new = _New(tables, flow, chosen)
            with transaction.atomic(using=tables.using):
                dialect_of(tables.jobs).take_write_lock()
                new.store()
            for workflow in new.workflows:
                workflow._state.adding, workflow._state.db = False, tables.using
                announce(workflow_created, workflows.model, workflow=workflow, using=tables.using)
    return new.root


def enqueue(tables: Tables, requests: Sequence[Request | OJSError]) -> list[ItemResult]:
    """Enqueue jobs of workflows in the caller's transaction, and wait for all of them, also for stand-ins.

    A refused job, or an error in the place of its request, has an error in its result. Raises LostRace if a stand-in is
    deleted meanwhile.
    """
    results = enqueue_many(tables.jobs, requests, "partial", None).results
    tables.adopt({result.job.pk for result in results if result.error is None and not result.created})
    return results


class _New:
    """The rows of a new workflow, and the jobs that wait for no other."""

    def __init__(self, tables: Tables, flow: Flow, id: UUID | None) -> None:
        self._tables = tables
        self._now = database_now(tables.jobs.db)
        self.workflows: list[Any] = []
        """The root, and all that is nested in it."""
        self._members: list[Any] = []
        self._due: list[tuple[Any, Leaf]] = []
        self.root = self._build(flow, None, id, is_due=True)

    def store(self) -> None:
        """Write everything: the jobs before their members, as `Tables.lock_members` needs it."""
        requests = [leaf.request for _, leaf in self._due]
        for (member, leaf), result in zip(self._due, enqueue(self._tables, requests), strict=True):
            if result.error is not None:
                raise leaf.located(_unlocated(result))
            member.job_id = result.job.pk
        if not self._insert_workflows():
            raise JobIdTaken(
                f"A workflow with the id {self.root.pk} already exists.",
                details={"field": "id", "workflow_id": str(self.root.pk)},
            )
        self._insert(self._members)

    def _insert_workflows(self) -> bool:
        """Insert the workflows; return False if the id is taken: MariaDB says so by an error."""
        try:
            with transaction.atomic(using=self._tables.using):
                return self._insert(self.workflows) == len(self.workflows)
        except IntegrityError:
            return False

    def _insert(self, rows: Sequence[Any]) -> int:
        dialect = dialect_on(type(rows[0]), connections[self._tables.using])
        return dialect.insert_rows([row.__dict__ for row in rows])

    def _build(self, flow: Flow, root: Any, id: UUID | None, *, is_due: bool) -> Any:
        workflow = unsaved(
            self._tables.workflows.model,
            id=id or new_id(),
            type=flow.kind,
            name=flow.name,
            root_id=root and root.pk,
            extra=flow.extra,
            created_at=self._now,
        )
        self.workflows.append(workflow)
        for position, member in enumerate(flow.members):
            is_first = is_due and (flow.kind is not Kind.CHAIN or position == 0)
            self._add(workflow, Role.MEMBER, position, member, root or workflow, is_due=is_first)
        for position, (role, leaf) in enumerate(flow.callbacks.items()):
            self._add(workflow, role, position, leaf, root or workflow, is_due=False)
        return workflow

    def _add(self, workflow: Any, role: Role, position: int, member: Leaf | Flow, root: Any, *, is_due: bool) -> None:
        row = unsaved(
            self._tables.members.model,
            workflow_id=workflow.pk,
            role=role,
            position=position,
            name=member.name,
            enqueued_at=self._now if is_due else None,
        )
        if isinstance(member, Flow):
            row.child_id = self._build(member, root, None, is_due=is_due).pk
        else:
            row.request = to_json(member.request)
            member.request.workflow_id = workflow.pk
            if is_due:
                self._due.append((row, member))
            else:
                row.job_id = new_id() if member.request.id is None else uuid(member.request.id, "id")
        self._members.append(row)


def _unlocated(result: ItemResult) -> Any:
    """Return the error of an item without its index in the batch."""
    error = result.error
    assert error is not None
    prefix = f"items[{result.index}]"
    error.message = error.message.removeprefix(prefix).removeprefix(": ").removeprefix(".")
    error.details.pop("index", None)
    return error
