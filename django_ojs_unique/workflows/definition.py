"""Read the definition of a workflow, and find what is invalid before anything is stored (OJS workflows)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from django.apps import apps
from django.db import router

from ..conf import settings
from ..db.clock import database_now
from ..enqueue.items import request_of_item
from ..enqueue.new_job import Reader
from ..enqueue.request import ARGUMENTS, Request, own_members
from ..exceptions import InvalidWorkflow, OJSError, did_you_mean
from ..ojs.values import short_string
from ..ojs.workflows import CALLBACKS, Kind, Role

LONGEST_NAME = 255
MEMBERS = ("type", "name", "steps", "jobs", "callbacks", "options")


@dataclass(slots=True)
class Leaf:
    """A member that is a job. ``path``: its place in the definition, such as ``steps[1].jobs[0]``.

    ``locate`` puts the place before the field of an error, if the client does not write the fields as an enqueue does.
    """

    name: str
    request: Request
    path: str
    locate: Callable[[OJSError], OJSError] | None = None

    def located(self, error: OJSError) -> OJSError:
        """Return an error about the job with its place."""
        return placed(self.path, error) if self.locate is None else self.locate(error)


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
    def using(self) -> str | None:
        """The database to which one of its jobs belongs, the first that says so; or None."""
        return next((leaf.request.using for leaf in self.leaves() if leaf.request.using is not None), None)


Member: TypeAlias = Leaf | Flow


def read_workflow(definition: Any) -> Flow:
    """Read a definition, as `WorkflowQuerySet.enqueue` describes it, and check each of its jobs.

    Raises InvalidWorkflow, or what an enqueue of the wrong job would raise, with its place; nothing has been written.
    """
    return DefinitionReader().read(definition)


def placed(path: str, error: OJSError) -> OJSError:
    """Put the place of a job before the field of its error."""
    has_field = bool(error.details.get("field"))
    error.message = f"{path}{'.' if has_field else ': '}{error.message}"
    error.details = {**error.details, "field": f"{path}.{error.details['field']}" if has_field else path}
    error.args = (error.message,)
    return error


class DefinitionReader:
    """Reads definitions as Python programs write them. A subclass can read jobs, options and other members otherwise.

    ``path`` is the place of what is read, and ``at`` the same with a dot behind it; both are empty for the whole.
    """

    def read(self, definition: Any) -> Flow:
        """Read a definition, and check each of its jobs as its enqueue would."""
        self._left = settings.max_workflow_jobs
        flow = self.flow(definition, "", {}, settings.max_workflow_depth)
        _hand_on_priority(flow)
        model = apps.get_model("django_ojs_unique", "Job")
        reader, now = Reader(model), database_now(router.db_for_write(model))
        for leaf in flow.leaves():
            try:
                reader.build(own_members(leaf.request), now)
            except OJSError as error:
                raise leaf.located(error) from None
        return flow

    def job(self, item: Any, path: str, options: Mapping[str, Any]) -> Leaf:
        """Read a job; ``options`` are those of its workflow."""
        name = ""
        if isinstance(item, Mapping):
            item = {**options, **item}
            name = read_name(item.pop("name", None), f"{path}.")
        try:  # a copy, because the same item may be enqueued again
            return Leaf(name, copy(request_of_item(item)), path)
        except OJSError as error:
            raise placed(path, error) from None

    def options(self, options: Any, at: str) -> Mapping[str, Any]:
        """Read the options that the jobs of a workflow share."""
        if not isinstance(options, Mapping):
            raise InvalidWorkflow.at(f"{at}options", "must be an object", value=options)
        shared = ARGUMENTS - {"type", "args", "id", "key"}
        for name in options:
            if name not in shared:
                hint = did_you_mean(name, sorted(shared))
                raise InvalidWorkflow.at(f"{at}options.{name}", "is not an option that jobs can share", hint=hint)
        return options

    def extra(self, members: Mapping[str, Any], at: str) -> dict[str, Any]:
        """Read the members of a workflow that are none of `MEMBERS`."""
        for name in members:
            raise InvalidWorkflow.at(f"{at}{name}", "is not a member of a workflow", hint=did_you_mean(name, MEMBERS))
        return {}

    def flow(self, definition: Any, path: str, defaults: Mapping[str, Any], levels: int) -> Flow:
        """Read a workflow that may have so many ``levels``; ``defaults`` are the options of the one around it."""
        at = f"{path}." if path else ""
        if not levels:
            raise InvalidWorkflow.at(
                path,
                f"is nested more than {settings.max_workflow_depth} levels deep",
                hint="Flatten it, or raise OJS_UNIQUE['MAX_WORKFLOW_DEPTH'].",
            )
        if hasattr(definition, "to_dict"):
            definition = definition.to_dict()
        if not isinstance(definition, Mapping):
            raise InvalidWorkflow.at(
                path or "workflow",
                "must be an object",
                value=definition,
                hint="Write chain(...), group(...) or batch(...).",
            )
        extra = self.extra({name: value for name, value in definition.items() if name not in MEMBERS}, at)
        kind = definition.get("type")
        if kind not in list(Kind):
            raise InvalidWorkflow.at(
                f"{at}type", "must be the kind of the workflow", value=kind, hint=did_you_mean(kind, Kind)
            )
        kind = Kind(kind)
        options = {**defaults, **self.options(definition.get("options", {}), at)}
        if kind is not Kind.CHAIN and "steps" in definition:
            raise InvalidWorkflow.at(f"{at}steps", f"belong to a chain; a {kind} has jobs", hint="Write jobs.")
        name = "jobs" if kind is not Kind.CHAIN or "steps" not in definition else "steps"
        if kind is Kind.CHAIN and {"steps", "jobs"} <= definition.keys():
            raise InvalidWorkflow.at(f"{at}jobs", "cannot be combined with steps", hint="Write all of them into steps.")
        found = definition.get(name)
        if not isinstance(found, (list, tuple)) or not found:
            raise InvalidWorkflow.at(
                f"{at}{kind.members}",
                "must be an array with at least one job",
                value=found,
                hint=f"Enqueue no {kind} if there is nothing to do.",
            )
        members = [self._member(one, f"{at}{name}[{index}]", options, levels) for index, one in enumerate(found)]
        callbacks = self._callbacks(definition, kind, at, options)
        return Flow(kind, read_name(definition.get("name"), at), members, callbacks, extra)

    def _member(self, member: Any, path: str, options: Mapping[str, Any], levels: int) -> Member:
        if hasattr(member, "to_dict"):
            member = member.to_dict()
        if isinstance(member, Mapping) and member.get("type") in list(Kind) and member.keys() & {"steps", "jobs"}:
            return self.flow(member, path, options, levels - 1)
        return self._counted_job(member, path, options)

    def _counted_job(self, item: Any, path: str, options: Mapping[str, Any]) -> Leaf:
        if not self._left:
            raise InvalidWorkflow(
                f"The workflow has more than {settings.max_workflow_jobs:,} jobs. Start several workflows, or raise"
                " OJS_UNIQUE['MAX_WORKFLOW_JOBS']."
            )
        self._left -= 1
        return self.job(item, path, options)

    def _callbacks(
        self, definition: Mapping[str, Any], kind: Kind, at: str, options: Mapping[str, Any]
    ) -> dict[Role, Leaf]:
        given = definition.get("callbacks")
        if kind is not Kind.BATCH:
            if given is not None:
                hint = f"Write a batch, or a chain whose first step is this {kind}."
                raise InvalidWorkflow.at(f"{at}callbacks", f"belong to a batch, not to a {kind}", hint=hint)
            return {}
        if not isinstance(given, Mapping) or not given:
            raise InvalidWorkflow.at(
                f"{at}callbacks",
                "must be an object with at least one callback",
                value=given,
                hint="Give on_success, on_failure or on_complete, or write a group.",
            )
        for name in given:
            if name not in CALLBACKS:
                raise InvalidWorkflow.at(
                    f"{at}callbacks.{name}", "is not a callback", hint=did_you_mean(name, CALLBACKS)
                )
        callbacks: dict[Role, Leaf] = {}
        for role in CALLBACKS:
            if role in given:
                callback, path = given[role], f"{at}callbacks.{role}"
                if hasattr(callback, "to_dict") or (
                    isinstance(callback, Mapping) and callback.keys() & {"steps", "jobs"}
                ):
                    hint = "Make its handler enqueue the workflow."
                    raise InvalidWorkflow.at(path, "must be a job, not a workflow", hint=hint)
                callbacks[role] = self._counted_job(callback, path, options)
        return callbacks


def _hand_on_priority(flow: Flow) -> None:
    """Give the steps of each chain that say no priority that of its first step, if that says one (OJS priority)."""
    for member in flow.members:
        if isinstance(member, Flow):
            _hand_on_priority(member)
    first = flow.members[0]
    if flow.kind is Kind.CHAIN and isinstance(first, Leaf) and first.request.priority is not None:
        for leaf in flow.leaves():
            if leaf.request.priority is None:
                leaf.request.priority = first.request.priority


def read_name(name: Any, at: str) -> str:
    """Read the name of a workflow or a job; none is empty. Raises InvalidRequest."""
    return "" if name is None else short_string(name, f"{at}name", LONGEST_NAME)
