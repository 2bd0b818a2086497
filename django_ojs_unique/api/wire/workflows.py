"""Workflows in JSON: read those of a client, and show the stored ones (HTTP binding, "Workflow endpoints")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ...conf import settings
from ...enqueue.values import sized
from ...exceptions import InvalidRequest, InvalidWorkflow, OJSError
from ...handlers.redaction import redacted, redacted_args
from ...ojs.canonical import plain
from ...ojs.moments import milliseconds
from ...ojs.workflows import Kind, MemberOutcome, WorkflowState
from ...options import OPTIONS
from ...workflows.definition import MEMBERS, DefinitionReader, Flow, Leaf, placed, read_name
from ...workflows.tree import Tree
from .enqueue import by_meaning, read_id, read_job, relocated, show_options, with_defaults
from .errors import Unsupported

_SYSTEM_MANAGED = {
    "specversion", "state", "metadata", "steps_total", "steps_completed", "jobs_total", "jobs_completed", "created_at",
    "started_at", "completed_at", "cancelled_at", "parent_workflow_id", "root_workflow_id", "workflow_id",
}  # fmt: skip
_UNSUPPORTED = ("workflow_timeout", "failure_policy")
_NOTHING = {"type": "t", "args": []}
"""A job that is valid with any valid options."""
_MOST_ERRORS = 100
_SHOWN = {name for name, option in OPTIONS.items() if option.wire} | {"delay", "expires_in"}


@dataclass(frozen=True, slots=True)
class WantedWorkflow:
    """What a client asks for. ``rates``: the rate limits of queues, by the numbers of the jobs in `Flow.leaves`."""

    flow: Flow
    id: str | None
    rates: Mapping[int, int]


def read_workflow(body: Mapping[str, Any], now: datetime) -> WantedWorkflow:
    """Read a workflow. Raises InvalidWorkflow or Unsupported; for a job what `read_job` raises, with its place."""
    reader = _WireReader(now)
    try:
        flow = reader.read(body)
    except InvalidWorkflow as error:
        path = str(error.details.setdefault("field", ""))
        message = error.wire_message.removeprefix(f"{path}: ")
        error.details["validation_errors"] = [{"path": f"$.{path}".removesuffix("."), "message": message}]
        raise
    numbers = {leaf.path: number for number, leaf in enumerate(flow.leaves())}
    return WantedWorkflow(flow, read_id(body), {numbers[path]: rate for path, rate in reader.rates.items()})


class _WireReader(DefinitionReader):
    """Reads the jobs of a workflow as those of an enqueue; relative times count from the enqueue of the job."""

    def __init__(self, now: datetime) -> None:
        self._now = now
        self.rates: dict[str, int] = {}

    def flow(self, definition: Any, path: str, defaults: Mapping[str, Any], levels: int) -> Flow:
        if isinstance(definition, dict):
            definition = {name: value for name, value in definition.items() if value is not None or name not in MEMBERS}
            at = f"{path}." if path else ""
            if definition.get("type") == "saga":
                raise _unsupported(f"{at}type", "a saga is not supported. Write a chain, a group or a batch.")
        return super().flow(definition, path, defaults, levels)

    def extra(self, members: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Keep what OJS does not define; refuse what would change the meaning."""
        for name in _UNSUPPORTED:
            if members.get(name) is not None:
                raise _unsupported(f"{at}{name}", "is not supported. Leave it out.")
        if "args" in members:
            raise InvalidWorkflow.at(f"{at}args", "belong to a job, not to a workflow", hint="Leave them out.")
        if at and members.get("id") is not None:
            raise InvalidWorkflow.at(f"{at}id", "cannot be chosen for a nested workflow", hint="Leave it out.")
        extra = {name: value for name, value in members.items() if name != "id" and name not in _SYSTEM_MANAGED}
        try:
            return sized(plain(extra, "extra"), "extra", settings.max_meta_bytes, "META")  # type: ignore[no-any-return]
        except InvalidRequest as error:
            raise _below(at, relocated(error, {})) from None

    def options(self, options: Any, at: str) -> Mapping[str, Any]:
        """Read the options by their meaning, so that a job can have the same under another name."""
        try:
            read_job({**_NOTHING, "options": options}, self._now)
        except OJSError as error:
            raise _below(at, error) from None
        return {
            meant: (name, value, f"{at}options.{name}") for meant, (name, value) in by_meaning(options or {}).items()
        }

    def job(self, item: Any, path: str, options: Mapping[str, Any]) -> Leaf:
        """Read a job; the options of its workflow are added to its own."""
        name, added = "", frozenset[str]()
        if isinstance(item, dict):
            if item.get("depends_on") is not None:
                hint = "a free graph is not supported. Nest chains, groups and batches."
                raise _unsupported(f"{path}.depends_on", hint)
            name = read_name(item.get("name"), f"{path}.")
            defaults = {meant: option[:2] for meant, option in options.items()}
            item, added = with_defaults({key: value for key, value in item.items() if key != "name"}, defaults)
        given = {f"options.{name}": place for name, _, place in options.values() if name in added}

        def locate(error: OJSError) -> OJSError:
            written = str(error.details.get("field", ""))
            for option, place in given.items():
                if written == option or written.startswith((f"{option}.", f"{option}[")):
                    error.details["field"] = place + written.removeprefix(option)
                    error.message = place + error.message.removeprefix(option)
                    return error
            return placed(path, error)

        try:
            wanted = read_job(item, self._now, is_early=True)
        except OJSError as error:
            raise locate(error) from None
        if wanted.max_per_second is not None:
            self.rates[path] = wanted.max_per_second
        return Leaf(name, wanted.request, path, lambda error: locate(wanted.locate(error)))


def _unsupported(field: str, message: str) -> Unsupported:
    return Unsupported(f"{field}: {message}", details={"field": field})


def _below(at: str, error: OJSError) -> OJSError:
    return placed(at.removesuffix("."), error) if at else error


def show(tree: Tree, requests: Mapping[int, Any], *, members: bool = True) -> dict[str, Any]:
    """Return a workflow's JSON object. ``requests``: those of its callbacks, by the ids of these."""
    workflow = tree.workflow
    shown = _head(workflow, *tree.counts(), tree.started_at(workflow))
    shown["metadata"] |= _failure(tree)
    if members:
        shown[Kind(workflow.type).members] = _members(tree, workflow)
        if not tree.has_results:
            shown["results_omitted"] = True
    if callbacks := tree.callbacks(workflow):
        shown["callbacks"] = {
            one.role: {**_definition(one.job_type, requests.get(one.pk) or {}), **_state(tree, one)}
            for one in callbacks
        }
    if workflow.root_id is not None:
        shown |= {"parent_workflow_id": str(tree.parent_id), "root_workflow_id": str(workflow.root_id)}
    return shown


def show_in_list(workflow: Any, direct: Counter[str], jobs: Counter[str]) -> dict[str, Any]:
    """Return a workflow's JSON object without its members. ``direct``, ``jobs``: see `Tree.counts`."""
    return _head(workflow, direct, jobs, workflow.started_at)


def _head(workflow: Any, direct: Counter[str], jobs: Counter[str], started_at: datetime | None) -> dict[str, Any]:
    noun = Kind(workflow.type).members
    shown: dict[str, Any] = {**workflow.extra, "id": str(workflow.pk), "type": workflow.type}
    if workflow.name:
        shown["name"] = workflow.name
    cancelled_at = workflow.finished_at if workflow.state == WorkflowState.CANCELLED else None
    moments = {"created_at": workflow.created_at, "completed_at": workflow.finished_at, "cancelled_at": cancelled_at}
    times = {name: milliseconds(moment) for name, moment in moments.items() if moment is not None}
    started = {} if started_at is None else {"started_at": milliseconds(started_at)}
    metadata = {
        **times,
        **started,
        "job_count": jobs.total(),
        "completed_count": jobs[MemberOutcome.COMPLETED],
        "failed_count": jobs[MemberOutcome.FAILED],
    }
    return {
        **shown,
        "state": workflow.state,
        f"{noun}_total": direct.total(),
        f"{noun}_completed": direct[MemberOutcome.COMPLETED],
        **times,
        "metadata": metadata,
    }


def _failure(tree: Tree) -> dict[str, Any]:
    """Return what the metadata of a failed workflow say besides."""
    if tree.workflow.state != WorkflowState.FAILED:
        return {}
    shown: dict[str, Any] = {}
    failed = [one for one in tree.leaves(tree.workflow) if one.outcome == MemberOutcome.FAILED]
    if tree.workflow.type == Kind.CHAIN:
        steps = (one.position for one in tree.members(tree.workflow) if one.outcome == MemberOutcome.FAILED)
        shown["failed_step_index"] = next(steps, None)
    callback = next((one for one in tree.callbacks(tree.workflow) if one.outcome == MemberOutcome.FAILED), None)
    if callback is not None:
        shown["failed_callback"] = callback.role
        failed.append(callback)
    named = failed[:_MOST_ERRORS]
    shown["failed_job_ids"] = [str(one.job_id) for one in named if one.job_id is not None]
    shown["errors"] = [redacted(one.job_type, one.error) for one in named]
    if len(failed) > len(named):
        shown["errors_truncated"] = True
    return {name: value for name, value in shown.items() if value is not None}


def _members(tree: Tree, workflow: Any) -> list[dict[str, Any]]:
    return [_member(tree, member) for member in tree.members(workflow)]


def _member(tree: Tree, member: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"index": member.position}
    child = tree.nested(member)
    shown["type"] = member.job_type if child is None else child.type
    if name := member.name if child is None else child.name:
        shown["name"] = name
    shown |= _state(tree, member)
    if child is not None:
        shown |= {"workflow_id": str(child.pk), Kind(child.type).members: _members(tree, child)}
        if callbacks := tree.callbacks(child):
            shown["callbacks"] = {one.role: {"type": one.job_type, **_state(tree, one)} for one in callbacks}
    return shown


def _state(tree: Tree, member: Any) -> dict[str, Any]:
    shown: dict[str, Any] = {"state": str(tree.state(member))}
    if member.job_id is not None and member.enqueued_at is not None:
        shown["job_id"] = str(member.job_id)
    for name, moment in (("started_at", tree.member_started_at(member)), ("completed_at", member.finished_at)):
        if moment is not None:
            shown[name] = milliseconds(moment)
    if tree.has_results and member.outcome == MemberOutcome.COMPLETED and member.result is not None:
        shown["result"] = redacted(member.job_type, member.result)
    if member.error is not None:
        shown["error"] = redacted(member.job_type, member.error)
    return shown


def _definition(type: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored request as a client would write it."""
    options = show_options(
        {name: value for name, value in stored.items() if name in _SHOWN and value not in (None, [])}
    )
    shown: dict[str, Any] = {"type": type, "args": redacted_args(type, stored.get("args", {}))}
    if meta := stored.get("meta"):
        shown["meta"] = redacted(type, meta)
    return {**shown, "options": options} if options else shown
