"""An assertion about the stored workflows."""

from __future__ import annotations

from collections.abc import Sequence

from django.db import router
from django.db.models import QuerySet

from ..handlers.handler import Handler
from ..models import Workflow
from .matching import TypeOrHandler


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
    stored: QuerySet[Workflow] = Workflow.objects.using(using or router.db_for_write(Workflow)).order_by(
        "created_at", "pk"
    )
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
