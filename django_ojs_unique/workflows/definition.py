"""Read the definition of a workflow, and find what is invalid before anything is stored (OJS workflows)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

from django.apps import apps
from django.utils import timezone

from ..conf import settings
from ..enqueue.incoming import Reader
from ..enqueue.items import request_of_item
from ..enqueue.request import ARGUMENTS, Request, snapshot
from ..enqueue.values import short_string
from ..exceptions import InvalidWorkflow, OJSError, did_you_mean
from ..ojs.workflows import CALLBACKS, Kind, Role

LONGEST_NAME = 255
_OF_WORKFLOWS = ("type", "name", "steps", "jobs", "callbacks", "options")


@dataclass(slots=True)
class Leaf:
    """A member that is a job. ``path``: its place in the definition, such as ``steps[1].jobs[0]``."""

    name: str
    request: Request
    path: str


@dataclass(slots=True)
class Flow:
    """A valid definition of a workflow."""

    kind: Kind
    name: str
    members: list[Member]
    callbacks: dict[Role, Leaf] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)

    def leaves(self) -> Iterator[Leaf]:
        """Yield all jobs, those of nested workflows and the callbacks included."""
        for member in self.members:
            if isinstance(member, Leaf):
                yield member
            else:
                yield from member.leaves()
        yield from self.callbacks.values()

    @property
    def depth(self) -> int:
        """How many levels of workflows there are."""
        return 1 + max((member.depth for member in self.members if isinstance(member, Flow)), default=0)


Member: TypeAlias = Leaf | Flow


def read_workflow(definition: Any) -> Flow:
    """Read a definition, as `WorkflowQuerySet.enqueue` describes it, and check each of its jobs.

    Raises InvalidWorkflow, or what an enqueue of the wrong job would raise, with its place; nothing has been written.
    """
    flow = _flow(definition, "", {}, settings.max_workflow_depth)
    check(flow)
    return flow


def check(flow: Flow) -> None:
    """Check each job of a definition, as its enqueue would. Raises what `read_workflow` raises."""
    reader, now = Reader(apps.get_model("django_ojs_unique", "Job")), timezone.now()
    for number, leaf in enumerate(flow.leaves(), 1):
        if number > settings.max_workflow_jobs:
            raise InvalidWorkflow(
                f"The workflow has more than {settings.max_workflow_jobs:,} jobs. Start several workflows, or raise"
                " OJS_UNIQUE['MAX_WORKFLOW_JOBS']."
            )
        with_place(leaf.path, lambda leaf=leaf: reader.build(snapshot(leaf.request), now))


def with_place(path: str, step: Any) -> Any:
    """Call ``step``; put the place of a job before the field of its error."""
    try:
        return step()
    except OJSError as error:
        raise placed(path, error) from None


def placed(path: str, error: OJSError) -> OJSError:
    """Put the place of a job before the field of its error."""
    has_field = "field" in error.details
    error.message = f"{path}{'.' if has_field else ': '}{error.message}"
    error.details = {**error.details, "field": f"{path}.{error.details['field']}" if has_field else path}
    error.args = (error.message,)
    return error


def _flow(definition: Any, path: str, defaults: Mapping[str, Any], levels: int) -> Flow:
    at = f"{path}." if path else ""
    if not levels:
        raise InvalidWorkflow.at(
            path,
            f"is nested more than {settings.max_workflow_depth} levels deep",
            mend="Flatten it, or raise OJS_UNIQUE['MAX_WORKFLOW_DEPTH'].",
        )
    if hasattr(definition, "to_dict"):
        definition = definition.to_dict()
    if not isinstance(definition, Mapping):
        raise InvalidWorkflow.at(
            path or "workflow",
            "must be an object",
            value=definition,
            mend="Write chain(...), group(...) or batch(...).",
        )
    kind = definition.get("type")
    if kind not in list(Kind):
        raise InvalidWorkflow.at(
            f"{at}type", "must be the kind of the workflow", value=kind, mend=did_you_mean(kind, Kind)
        )
    kind = Kind(kind)
    for name in definition:
        if name not in _OF_WORKFLOWS:
            mend = did_you_mean(name, _OF_WORKFLOWS)
            raise InvalidWorkflow.at(f"{at}{name}", "is not a member of a workflow", mend=mend)
    options = {**defaults, **_options(definition.get("options", {}), at)}
    if kind is not Kind.CHAIN and "steps" in definition:
        raise InvalidWorkflow.at(f"{at}steps", f"belong to a chain; a {kind} has jobs", mend="Write jobs.")
    name = "jobs" if kind is not Kind.CHAIN or "steps" not in definition else "steps"
    if kind is Kind.CHAIN and {"steps", "jobs"} <= definition.keys():
        raise InvalidWorkflow.at(f"{at}jobs", "cannot be combined with steps", mend="Write all of them into steps.")
    found = definition.get(name)
    if not isinstance(found, (list, tuple)) or not found:
        raise InvalidWorkflow.at(
            f"{at}{kind.members}",
            "must be an array with at least one job",
            value=found,
            mend=f"Enqueue no {kind} if there is nothing to do.",
        )
    members = [_member(one, f"{at}{name}[{index}]", options, levels) for index, one in enumerate(found)]
    return Flow(kind, _name(definition.get("name"), at), members, _callbacks(definition, kind, at, options))


def _member(member: Any, path: str, options: Mapping[str, Any], levels: int) -> Member:
    if hasattr(member, "to_dict"):
        member = member.to_dict()
    if isinstance(member, Mapping) and member.get("type") in list(Kind) and member.keys() & {"steps", "jobs"}:
        return _flow(member, path, options, levels - 1)
    return _leaf(member, path, options)


def _leaf(item: Any, path: str, options: Mapping[str, Any]) -> Leaf:
    name = ""
    if isinstance(item, Mapping):
        item = {**options, **item}
        name = _name(item.pop("name", None), f"{path}.")
    # A copy, because the same item may be enqueued again.
    return Leaf(name, replace(with_place(path, lambda: request_of_item(item))), path)


def _name(name: Any, at: str) -> str:
    return "" if name is None else short_string(name, f"{at}name", LONGEST_NAME)


def _options(options: Any, at: str) -> Mapping[str, Any]:
    if not isinstance(options, Mapping):
        raise InvalidWorkflow.at(f"{at}options", "must be an object", value=options)
    shared = ARGUMENTS - {"type", "args", "id", "key"}
    for name in options:
        if name not in shared:
            mend = did_you_mean(name, sorted(shared))
            raise InvalidWorkflow.at(f"{at}options.{name}", "is not an option that jobs can share", mend=mend)
    return options


def _callbacks(definition: Mapping[str, Any], kind: Kind, at: str, options: Mapping[str, Any]) -> dict[Role, Leaf]:
    given = definition.get("callbacks")
    if kind is not Kind.BATCH:
        if given is not None:
            mend = f"Write a batch, or a chain whose first step is this {kind}."
            raise InvalidWorkflow.at(f"{at}callbacks", f"belong to a batch, not to a {kind}", mend=mend)
        return {}
    if not isinstance(given, Mapping) or not given:
        raise InvalidWorkflow.at(
            f"{at}callbacks",
            "must be an object with at least one callback",
            value=given,
            mend="Give on_success, on_failure or on_complete, or write a group.",
        )
    for name in given:
        if name not in CALLBACKS:
            raise InvalidWorkflow.at(f"{at}callbacks.{name}", "is not a callback", mend=did_you_mean(name, CALLBACKS))
    callbacks: dict[Role, Leaf] = {}
    for role in CALLBACKS:
        if role in given:
            callback, path = given[role], f"{at}callbacks.{role}"
            if hasattr(callback, "to_dict") or (isinstance(callback, Mapping) and callback.keys() & {"steps", "jobs"}):
                mend = "Make its handler enqueue the workflow."
                raise InvalidWorkflow.at(path, "must be a job, not a workflow", mend=mend)
            callbacks[role] = _leaf(callback, path, options)
    return callbacks
