"""Workflows in JSON: read those of a client, and show the stored ones (HTTP binding, "Workflow endpoints")."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from ...conf import settings
from ...enqueue.values import sized
from ...exceptions import InvalidRequest, InvalidWorkflow, OJSError, PayloadTooLarge
from ...handlers.redaction import redacted, redacted_args
from ...ojs.canonical import plain
from ...ojs.names import UUID7_TEXT
from ...ojs.workflows import CALLBACKS, Kind, MemberOutcome, MemberState, WorkflowState
from ...options import OPTIONS
from ...wire.enqueue import ENQUEUE, by_meaning, read_id, read_job, relocated, show_options, with_defaults
from ...wire.policies import JOB_OPTIONS
from ...wire.schema import (
    Object,
    Value,
    anything,
    array,
    flag,
    job_args,
    mapping,
    one_of,
    text,
    time,
    whole,
    without_none,
)
from ...workflows.definition import LONGEST_NAME, MEMBERS, DefinitionReader, Flow, Leaf, placed, read_name
from ...workflows.tree import Tree
from .errors import Unsupported

_SYSTEM_MANAGED = {
    "specversion", "state", "metadata", "steps_total", "steps_completed", "jobs_total", "jobs_completed", "created_at",
    "started_at", "completed_at", "cancelled_at", "parent_workflow_id", "root_workflow_id", "workflow_id",
}  # fmt: skip
_UNSUPPORTED = ("workflow_timeout", "failure_policy")
_NOTHING = {"type": "t", "args": []}
"""A job that is valid with any valid options."""
_NO_SHARED_KEY = "Give each job its own."
_MOST_ERRORS = 100
_SHOWN = {name for name, option in OPTIONS.items() if option.wire} | {"delay", "expires_in"}


@dataclass(frozen=True, slots=True)
class WantedWorkflow:
    """What a client asks for. ``rates``: the rate limits of queues, by the numbers of the jobs in `Flow.leaves`."""

    flow: Flow
    id: str | None
    rates: Mapping[int, int]


def read_workflow(body: Mapping[str, Any], now: datetime, places: Mapping[str, str]) -> WantedWorkflow:
    """Read a workflow. Raises InvalidWorkflow or Unsupported; for a job what `read_job` raises, with its place.

    ``places``: where the client wrote members that stand elsewhere in ``body``, by where they stand.
    """
    reader = _WireReader(now, places)
    try:
        flow = reader.read(body)
    except InvalidWorkflow as error:
        path = str(error.details.setdefault("field", ""))
        message = error.wire_message.removeprefix(f"{path}: ")
        error.details["validation_errors"] = [{"path": f"$.{path}".removesuffix("."), "message": message}]
        raise
    numbers = {leaf.path: number for number, leaf in enumerate(flow.leaves())}
    return WantedWorkflow(flow, read_id(body), {numbers[path]: rate for path, rate in reader.rates.items()})


class _Shared(NamedTuple):
    """An option that the jobs of a workflow share, as its client wrote it: where, and with how much JSON."""

    name: str
    value: Any
    place: str
    size: int


class _WireReader(DefinitionReader):
    """Reads the jobs of a workflow as those of an enqueue; relative times count from the enqueue of the job."""

    def __init__(self, now: datetime, places: Mapping[str, str]) -> None:
        self._now = now
        self._places = places
        self._room = settings.api["MAX_BODY_BYTES"]
        self.rates: dict[str, int] = {}

    def flow(self, definition: Any, path: str, defaults: Mapping[str, Any], levels: int) -> Flow:
        path = self._places.get(path, path)
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
        if options and options.get("key") is not None:
            raise InvalidWorkflow.at(f"{at}options.key", "is not an option that jobs can share", hint=_NO_SHARED_KEY)
        return {
            meant: _Shared(name, value, f"{at}options.{name}", len(json.dumps(value, ensure_ascii=False)))
            for meant, (name, value) in by_meaning(options or {}).items()
        }

    def job(self, item: Any, path: str, options: Mapping[str, Any]) -> Leaf:
        """Read a job; the options of its workflow are added to its own."""
        path = self._places.get(path, path)
        name, added = "", frozenset[str]()
        if isinstance(item, dict):
            if item.get("depends_on") is not None:
                hint = "a free graph is not supported. Nest chains, groups and batches."
                raise _unsupported(f"{path}.depends_on", hint)
            name = read_name(item.get("name"), f"{path}.")
            defaults = {meant: option[:2] for meant, option in options.items()}
            item, added = with_defaults({key: value for key, value in item.items() if key != "name"}, defaults)
        shared: list[_Shared] = [option for option in options.values() if option.name in added]
        self._room -= sum(option.size for option in shared)
        if self._room < 0:
            problem = f"has more than {settings.api['MAX_BODY_BYTES']:,} bytes, counted once for each job that takes it"
            hint = "Shorten it, start several workflows, or raise OJS_UNIQUE['API']['MAX_BODY_BYTES']."
            raise PayloadTooLarge.at(max(shared, key=lambda option: option.size).place, problem, hint=hint)
        given = {f"options.{option.name}": option.place for option in shared}

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


class _Workflow(NamedTuple):
    """A workflow, the counts of its members and of its jobs by their outcomes, and when it started."""

    row: Any
    direct: Counter[str]
    jobs: Counter[str]
    started_at: datetime | None


class _Member(NamedTuple):
    """A member or a callback of a workflow in its tree."""

    tree: Tree
    row: Any

    @property
    def child(self) -> Any:
        return self.tree.nested(self.row)


def show(tree: Tree, requests: Mapping[int, Any], *, members: bool = True) -> dict[str, Any]:
    """Return a workflow's JSON object. ``requests``: those of its callbacks, by the ids of these."""
    workflow = tree.workflow
    shown = _head(_Workflow(workflow, *tree.counts(), tree.started_at(workflow)))
    shown["metadata"] |= _failure(tree)
    if members:
        shown[Kind(workflow.type).members] = _members(tree, workflow)
        if not tree.has_results:
            shown["results_omitted"] = True
    if callbacks := tree.callbacks(workflow):
        shown["callbacks"] = {
            one.role: {**_definition(one.job_type, requests.get(one.pk) or {}), **CALLBACK.show(_Member(tree, one))}
            for one in callbacks
        }
    if workflow.root_id is not None:
        shown |= {"parent_workflow_id": str(tree.parent_id), "root_workflow_id": str(workflow.root_id)}
    return shown


def show_in_list(workflow: Any, direct: Counter[str], jobs: Counter[str]) -> dict[str, Any]:
    """Return a workflow's JSON object without its members. ``direct``, ``jobs``: see `Tree.counts`."""
    return _head(_Workflow(workflow, direct, jobs, workflow.started_at))


def _head(it: _Workflow) -> dict[str, Any]:
    return {**it.row.extra, **LISTED.show(it)}


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
    return without_none(shown)


def _members(tree: Tree, workflow: Any) -> list[dict[str, Any]]:
    return [MEMBER.show(_Member(tree, member)) for member in tree.members(workflow)]


def _nested(noun: str) -> Callable[[_Member], Any]:
    return lambda it: _members(it.tree, it.child) if it.child and Kind(it.child.type).members == noun else None


def _callbacks(it: _Member) -> dict[str, Any] | None:
    found = it.tree.callbacks(it.child) if it.child else ()
    return {one.role: CALLBACK.show(_Member(it.tree, one)) for one in found} or None


def _result(it: _Member) -> Any:
    is_shown = it.tree.has_results and it.row.outcome == MemberOutcome.COMPLETED
    return redacted(it.row.job_type, it.row.result) if is_shown else None


def _definition(type: str, stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored request, of a job of this type, as a client would write it."""
    given = {name: value for name, value in stored.items() if name == "limit" or value not in (None, [])}
    options = show_options({name: value for name, value in given.items() if name in _SHOWN})
    shown: dict[str, Any] = {"args": redacted_args(type, stored.get("args", {}))}
    if meta := stored.get("meta"):
        shown["meta"] = redacted(type, meta)
    return {**shown, "options": options} if options else shown


def _cancelled_at(it: _Workflow) -> Any:
    return it.row.finished_at if it.row.state == WorkflowState.CANCELLED else None


def _count(noun: str, outcome: str | None = None) -> Value:
    def count(it: _Workflow) -> int | None:
        if Kind(it.row.type).members != noun:
            return None
        return it.direct.total() if outcome is None else it.direct[outcome]

    return whole(_NOUNS[noun], of=count)


_NOUNS = {"steps": "Of a chain.", "jobs": "Of a group or a batch."}
_NAME = text("", LONGEST_NAME)
_MEMBER_JOB = ENQUEUE.extended("MemberJob", {"name?": _NAME}, "A job of a workflow.")
_SENT_MEMBER = Value({"anyOf": [_MEMBER_JOB.ref, {"$ref": "#/components/schemas/NestedWorkflow"}]})
_SHARED = {
    "name?": _NAME,
    "jobs?": array(_SENT_MEMBER, _NOUNS["jobs"], 1),
    "callbacks?": Object("Callbacks", {f"{role}?": _MEMBER_JOB.member() for role in CALLBACKS}, closed=True).member(
        "Of a batch."
    ),
    "options?": JOB_OPTIONS.member("For the jobs that do not set them."),
}
_OTHERS = "Other members are kept and returned."
_NESTED = Object(
    "NestedWorkflow",
    {"type": one_of(Kind), "steps?": array(_SENT_MEMBER, _NOUNS["steps"], 1), **_SHARED},
    f"A workflow in another one. {_OTHERS}",
)
_GRAPH_STEP = _MEMBER_JOB.extended(
    "GraphStep",
    {
        "id": text("", LONGEST_NAME),
        "depends_on?": array(text()),
        "options?": JOB_OPTIONS.extended("GraphOptions", {"callback_type?": one_of(CALLBACKS)}).member(),
    },
    "A job of a workflow without a `type`.",
)
START = Object(
    "StartWorkflow",
    {
        "type?": one_of(Kind, "Left out if the `steps` have an `id` and say on which others they depend."),
        "id?": text("", 36, UUID7_TEXT.pattern),
        "steps?": array(
            Value({"anyOf": [*_SENT_MEMBER.schema["anyOf"], _GRAPH_STEP.ref]}), "Of a chain, or without a `type`.", 1
        ),
        **_SHARED,
    },
    f"A workflow to start. {_OTHERS}",
    either=("type", "steps"),
)
_STATE = {
    "state": one_of(MemberState, of=lambda it: it.tree.state(it.row)),
    "job_id?": text(of=lambda it: None if it.row.enqueued_at is None else it.row.job_id, write=str),
    "started_at?": time(of=lambda it: it.tree.member_started_at(it.row)),
    "completed_at?": time(of="row.finished_at"),
    "result?": anything(of=_result),
    "error?": mapping(of=lambda it: redacted(it.row.job_type, it.row.error)),
}
CALLBACK = Object(
    "CallbackShown",
    {
        "type": text(of="row.job_type"),
        "args": job_args(of=None),
        "meta?": mapping(of=None),
        "options?": JOB_OPTIONS.member(of=None),
        **_STATE,
    },
)
MEMBER = Object(
    "MemberShown",
    {
        "index": whole(of="row.position"),
        "type": text(of=lambda it: it.child.type if it.child else it.row.job_type),
        "name?": text(of=lambda it: (it.child or it.row).name or None),
        **_STATE,
        "workflow_id?": text("Of a nested workflow.", of=lambda it: it.child and it.child.pk, write=str),
        **{f"{noun}?": array(mapping(), of=_nested(noun)) for noun in _NOUNS},
        "callbacks?": mapping(of=_callbacks),
    },
    "A step or a job, or a nested workflow with its own `steps` or `jobs`.",
)
_TIMES = {
    "created_at": time(of="row.created_at"),
    "completed_at?": time(of="row.finished_at"),
    "cancelled_at?": time(of=_cancelled_at),
}
_METADATA = Object(
    "Metadata",
    {
        **_TIMES,
        "started_at?": time(),
        "job_count": whole("With those of nested workflows, without callbacks.", of=lambda it: it.jobs.total()),
        "completed_count": whole(of=lambda it: it.jobs[MemberOutcome.COMPLETED]),
        "failed_count": whole(of=lambda it: it.jobs[MemberOutcome.FAILED]),
        "failed_step_index?": whole(of=None),
        "failed_callback?": one_of(CALLBACKS, of=None),
        "failed_job_ids?": array(text(), of=None),
        "errors?": array(mapping(), of=None),
        "errors_truncated?": flag(of=None),
    },
)
LISTED = Object(
    "ListedWorkflow",
    {
        "id": text(of="row.pk", write=str),
        "type": one_of(Kind, of="row.type"),
        "name?": text(of=lambda it: it.row.name or None),
        "state": one_of(WorkflowState, of="row.state"),
        **{f"{noun}_total?": _count(noun) for noun in _NOUNS},
        **{f"{noun}_completed?": _count(noun, MemberOutcome.COMPLETED) for noun in _NOUNS},
        **_TIMES,
        "metadata": _METADATA.member(of=lambda it: it, write=_METADATA.show),
    },
    "A workflow without its members.",
)
WORKFLOW = LISTED.extended(
    "Workflow",
    {
        **{f"{noun}?": array(MEMBER, help) for noun, help in _NOUNS.items()},
        "callbacks?": Object("CallbacksShown", {f"{role}?": CALLBACK.member() for role in CALLBACKS}).member(),
        "results_omitted?": flag("The results are too large together: read the jobs."),
        "parent_workflow_id? root_workflow_id?": text("Of a nested one."),
    },
    "A workflow, with the members that its client added.",
)
