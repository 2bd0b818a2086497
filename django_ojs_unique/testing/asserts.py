"""Assertions about the stored jobs, suppressed enqueues and workflows."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Unpack

from django.db import router
from django.db.models import Model, QuerySet

from ..handlers.handler import Handler
from ..models import Job, SuppressedEnqueue, Workflow
from . import matching
from .matching import ExpectedJob, ExpectedSuppression, TypeOrHandler


def assert_enqueued(
    type: TypeOrHandler | None = None,
    *,
    count: int | None = None,
    using: str | None = None,
    **wanted: Unpack[ExpectedJob],
) -> Job:
    """Assert that a job was enqueued, whatever its state is now; return the first match.

    ``type``: a job type or a handler; any by default. ``count``: exactly how many; by default, at least one.
    ``args``, ``meta``: the whole value; ``args__contains``, ``meta__contains``: these members, also in nested values.
    ``scheduled_at``: the moment, None for at once, or a pair of moments between which it lies.
    ``delay``: how long after its enqueue it is due, compared to the second; as for `Job.objects.enqueue`.
    ``queue``, ``priority``, ``state``, ``key``: the values of the row. ``using``: by default, the database of enqueues.

    Raises AssertionError, which lists the stored jobs, the most similar first, and how each differs; and the enqueues
    that met a duplicate and stored no job, if some are missing.
    """
    __tracebackhide__ = True
    criteria = matching.criteria(type, wanted, ExpectedJob)
    suppressed = partial(_stored, SuppressedEnqueue, using)
    found: Job = matching.require(_stored(Job, using), criteria, count, "enqueued", suppressed)
    return found


def assert_not_enqueued(
    type: TypeOrHandler | None = None, *, using: str | None = None, **wanted: Unpack[ExpectedJob]
) -> None:
    """Assert that no such job was enqueued; the arguments are those of `assert_enqueued`."""
    __tracebackhide__ = True
    matching.refuse(_stored(Job, using), matching.criteria(type, wanted, ExpectedJob), "enqueued")


def assert_deduplicated(
    type_or_job: TypeOrHandler | Job | None = None,
    *,
    count: int | None = None,
    using: str | None = None,
    **wanted: Unpack[ExpectedSuppression],
) -> SuppressedEnqueue:
    """Assert that an enqueue met a duplicate: it was rejected or deduplicated, or replaced it. Return the first match.

    ``type_or_job``: the type or handler of the requested job, or the stored job that it met. ``outcome``: ``rejected``,
    ``deduplicated`` or ``replaced``. The others are those of `assert_enqueued`, about the requested job. If the
    enqueue's transaction is rolled back, so is its record; `capture_jobs` finds such enqueues, too.

    Raises AssertionError, which lists the stored suppressed enqueues, the most similar first, and how each differs.
    """
    __tracebackhide__ = True
    criteria = matching.criteria(type_or_job, wanted, ExpectedSuppression)
    found: SuppressedEnqueue = matching.require(_stored(SuppressedEnqueue, using), criteria, count, "suppressed")
    return found


def assert_workflow_enqueued(
    type: str | None = None,
    *,
    name: str | None = None,
    steps: Sequence[TypeOrHandler] | None = None,
    using: str | None = None,
) -> Workflow:
    """Assert that a workflow was enqueued, whatever its state is now; return the first match.

    ``type``: ``chain``, ``group`` or ``batch``. ``steps``: the types or handlers of its steps or jobs, in order; a
    nested workflow has its kind there. Nested ones are found, too. ``using``: by default, the database of enqueues.

    Raises AssertionError, which lists the stored workflows.
    """
    __tracebackhide__ = True
    stored: QuerySet[Workflow] = _stored(Workflow, using).order_by("created_at", "pk")
    wanted = None if steps is None else [one.definition.type if isinstance(one, Handler) else one for one in steps]
    found = [(workflow, _steps(workflow)) for workflow in stored]
    for workflow, types in found:
        if type in (None, workflow.type) and name in (None, workflow.name) and wanted in (None, types):
            return workflow
    named = ", ".join(f"{key}={value!r}" for key, value in (("type", type), ("name", name), ("steps", wanted)) if value)
    listed = "\n".join(f"  {workflow.type} {workflow.name!r} steps={types}" for workflow, types in found)
    raise AssertionError(
        f"No workflow with {named or 'any members'} was enqueued. The stored ones:\n{listed or '  none'}"
    )


def _steps(workflow: Workflow) -> list[str]:
    return [
        member.request["type"] if member.child is None else member.child.type
        for member in workflow.members.select_related("child")
    ]


def _stored(model: type[Model], using: str | None) -> QuerySet[Any]:
    return model._default_manager.using(using or router.db_for_write(model)).order_by("pk")
