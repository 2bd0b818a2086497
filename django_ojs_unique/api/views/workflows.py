"""Workflows: start, list, show, cancel (HTTP binding, "Workflow endpoints")."""

from __future__ import annotations

from functools import partial
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from ... import models
from ...conf import settings
from ...exceptions import OJSError
from ...maintenance.on_demand import run_maintenance, unless_busy
from ...ojs.names import UUID_TEXT
from ...ojs.workflows import Kind, MemberOutcome, Role, WorkflowState
from ...wire.enqueue import HINTS, hints
from ...wire.schema import Object, choice, text, whole
from ...workflows.advance import fail_deleted
from ...workflows.tree import Tree, counts_of
from ..authorize import Action, demand_request, demand_workflow
from ..base import OJSView, operation
from ..compatible import with_kind
from ..enqueue_for_client import start_workflow
from ..wire.errors import NotFound
from ..wire.pages import PARAMETERS, Page, paged
from ..wire.queries import stored_text
from ..wire.workflows import LISTED, START, WORKFLOW, read_workflow, show, show_in_list

FILTERS = {
    "state": choice(WorkflowState, "In this state."),
    "type": choice(Kind, "Of this kind."),
    "name": text("With this name.", read=stored_text),
}
ONE_WORKFLOW = Object("OneWorkflow", {"workflow": WORKFLOW})
STARTED = ONE_WORKFLOW.extended("StartedWorkflow", HINTS)
PAGE_OF_WORKFLOWS = paged("PageOfWorkflows", workflows=LISTED)
_STOPPED = WORKFLOW.extended("StoppedWorkflow", {"steps_cancelled steps_already_completed": whole()})
CANCELLED = Object("CancelledWorkflow", {"workflow": _STOPPED})
MEMBERS = choice(("true", "false"), "Whether to show its steps or jobs.")


class Workflows(OJSView):
    """``/ojs/v1/workflows``."""

    group = "producers"
    groups = {"GET": "operators"}

    @operation(
        "listWorkflows",
        "workflows",
        "List the outermost workflows, the newest first",
        {200: PAGE_OF_WORKFLOWS},
        query={**FILTERS, **PARAMETERS},
    )
    def get(self, request: Request) -> Response:
        """List the outermost ones, the newest first; the parameters ``state``, ``type`` and ``name`` filter them.

        With a state they go by their creation, else by their ids, which ascend with it unless a caller chose them.
        """
        parameters = request.query_params
        wanted = {name: one.read(parameters[name], name) for name, one in FILTERS.items() if name in parameters}
        self.demand("read", None, None)  # a workflow can have jobs of any queue and type
        run_maintenance(self.jobs, self.now())
        rows = models.Workflow.objects.using(self.using).filter(root=None)
        of, by = "workflows", ["-id"]
        if "state" in wanted:  # which has an index of its own
            rows = rows.filter(state=wanted.pop("state"))
            of, by = "workflows of a state", ["-created_at", "-id"]
        found, pagination = Page.read(parameters, of).of_rows(rows, *by, wanted=wanted, large=("extra",))
        counts = counts_of(found, self.using)
        return Response({"workflows": [show_in_list(row, *counts[row.pk]) for row in found], "pagination": pagination})

    @operation(
        "startWorkflow",
        "workflows",
        "Start a chain, a group or a batch of jobs",
        {201: STARTED},
        START,
        refusals=(409,),
    )
    def post(self, request: Request) -> Response:
        body, places = with_kind(self.body)
        wanted = read_workflow(body, self.now(), places)
        for leaf in wanted.flow.leaves():
            try:
                demand_request(request, leaf.request)
            except OJSError as error:
                raise leaf.located(error) from None
        workflow = start_workflow(self.jobs, wanted)
        location = f"{request.path}/{workflow.pk}"
        found = hints((leaf.path, leaf.request) for leaf in wanted.flow.leaves())
        return Response({"workflow": _shown(workflow), **found}, status=201, headers={"Location": location})


class Workflow(OJSView):
    """``/ojs/v1/workflows/{id}``; also of a nested one."""

    group = "producers"

    @operation("getWorkflow", "workflows", "Look at a workflow", {200: ONE_WORKFLOW}, query={"members": MEMBERS})
    def get(self, request: Request, id: str) -> Response:
        """Show the workflow; with ``?members=false`` without its steps or jobs."""
        members = MEMBERS.read(request.query_params.get("members", "true"), "members") == "true"
        run_maintenance(self.jobs, self.now())
        workflow = self._found(id, "read")
        if unless_busy(self.using, partial(fail_deleted, self.using, workflow.root_id or workflow.pk)):
            workflow.refresh_from_db()
        return Response({"workflow": _shown(workflow, members=members)})

    @operation("cancelWorkflow", "workflows", "Cancel a workflow", {200: CANCELLED}, refusals=(409,))
    def delete(self, request: Request, id: str) -> Response:
        workflow = self._found(id, "cancel")
        workflow.cancel()
        counts = workflow.counts()
        counts = {
            "steps_cancelled": counts[MemberOutcome.CANCELLED],
            "steps_already_completed": counts[MemberOutcome.COMPLETED],
        }
        return Response({"workflow": {**_shown(workflow), **counts}})

    def _found(self, id: str, action: Action) -> models.Workflow:
        rows = models.Workflow.objects.using(self.using)
        workflow = rows.filter(pk=id).first() if UUID_TEXT.fullmatch(id) else None
        if workflow is None:
            raise NotFound.of("workflow", id)
        demand_workflow(self.request, action, workflow)
        return workflow


def _shown(workflow: Any, *, members: bool = True) -> dict[str, Any]:
    tree = Tree(workflow, max_bytes=settings.api["MAX_RESPONSE_BYTES"] if members else 0, is_whole=members)
    called = workflow.all_members.exclude(role=Role.MEMBER) if workflow.type == Kind.BATCH else ()
    return show(tree, {one.pk: one.request for one in called}, members=members)
