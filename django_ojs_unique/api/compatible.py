"""What the official clients of OJS need beyond the binding (docs: HTTP, "Clients that others wrote").

Only with ``OJS_UNIQUE["API"]["COMPATIBLE_CLIENTS"]``. Nothing in the binding depends on it: three calls lead here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise
from typing import Any

from rest_framework.request import Request

from ..conf import settings
from ..exceptions import InvalidWorkflow
from ..ojs.values import short_string
from ..ojs.workflows import CALLBACKS, Kind
from ..workflows.definition import LONGEST_NAME
from .wire.codec import MEDIA_TYPE, JSONRenderer, OJSNegotiation
from .wire.errors import Unsupported

GRAPH = "from_graph"
"""The member of a workflow whose client sent `steps` with `depends_on`; it is stored with the workflow."""
_PYTHON, _RUBY = "python-httpx/", "ojs-ruby/"
"""How the user agents of two clients begin."""
_MEMBERS = {"steps", "jobs", "callbacks"}
_ALLOWED = (
    "Let each step depend on the one before it, no step on another, or `on_success`, `on_failure` and `on_complete` on"
    " all others. For other graphs nest chains, groups and batches."
)


class Negotiation(OJSNegotiation):
    """Answers the client for Python in plain JSON: it asks for the media type of the binding, and does not read it."""

    def select_renderer(
        self, request: Request, renderers: Iterable[Any], format_suffix: str | None = None
    ) -> tuple[Any, str]:
        if _is_on() and _agent(request).startswith(_PYTHON) and request.META.get("HTTP_ACCEPT") == MEDIA_TYPE:
            return JSONRenderer(), JSONRenderer.media_type
        return super().select_renderer(request, renderers, format_suffix)


def with_kind(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], dict[str, str]]:
    """Return a workflow whose steps name those that they depend on as a chain, a group or a batch.

    (HTTP binding, "Create Workflow".) Return also where each step stood by where it stands now: ``steps[2]`` by
    ``callbacks.on_success``. A workflow of another shape is returned as it is. Raises InvalidRequest, InvalidWorkflow
    and Unsupported, which name the field.
    """
    steps: Any = body.get("steps")
    is_graph = isinstance(steps, list) and steps and all(isinstance(step, dict) and "id" in step for step in steps)
    if not _is_on() or not is_graph or body.get("type") is not None:
        return body, {}
    needs = _needs(steps)
    first = {id for id, needed in needs.items() if not needed}
    callbacks = {role: step for step in steps if (role := _role(step)) and needs[step["id"]] == first}
    others = [step for step in steps if step["id"] in first] if callbacks else steps
    if callbacks and len(others) + len(callbacks) == len(steps):
        kind = Kind.BATCH
    elif steps[0]["id"] in first and all(needs[step["id"]] == {before["id"]} for before, step in pairwise(steps)):
        kind = Kind.CHAIN
    elif len(first) == len(steps):
        kind = Kind.GROUP
    else:
        wrong = next(index for index, step in enumerate(steps) if needs[step["id"]])
        raise Unsupported(
            f"steps[{wrong}].depends_on: a free graph is not supported. {_ALLOWED}",
            details={"field": f"steps[{wrong}].depends_on"},
        )
    whole = {name: value for name, value in body.items() if name not in _MEMBERS}
    whole |= {"type": str(kind), kind.members: list(map(_member, others)), GRAPH: True}
    if callbacks:
        whole["callbacks"] = {role: _member(one) for role, one in callbacks.items()}
    now_at = {one["id"]: f"{kind.members}[{index}]" for index, one in enumerate(others)}
    now_at |= {one["id"]: f"callbacks.{role}" for role, one in callbacks.items()}
    return whole, {now_at[step["id"]]: f"steps[{index}]" for index, step in enumerate(steps)}


def shown(request: Request, answer: Any) -> Any:
    """Return an answer with the members that a client reads elsewhere."""
    if not _is_on() or not isinstance(answer, dict):
        return answer
    is_ruby, workflow, job = _agent(request).startswith(_RUBY), answer.get("workflow"), answer.get("job")
    if isinstance(workflow, dict):
        if workflow.get(GRAPH) and (steps := _steps(workflow)):
            workflow["steps"] = steps
        return {**{name: one for name, one in workflow.items() if is_ruby or name not in _MEMBERS}, **answer}
    if is_ruby and isinstance(job, dict):
        return {**job, **answer}
    if is_ruby and "stats" in answer:
        return {**answer, "queue": answer["name"]}
    return answer


def _is_on() -> bool:
    return bool(settings.api["COMPATIBLE_CLIENTS"])


def _agent(request: Request) -> str:
    return str(request.META.get("HTTP_USER_AGENT", ""))


def _needs(steps: list[dict[str, Any]]) -> dict[str, set[str]]:
    """Return by the id of each step the ids of those on which it depends."""
    ids: set[str] = set()
    for index, step in enumerate(steps):
        id = short_string(step["id"], f"steps[{index}].id", LONGEST_NAME)
        if not id or id in ids:
            raise InvalidWorkflow.at(f"steps[{index}].id", "must be a text that no other step has", value=id)
        ids.add(id)
    needs = {}
    for index, step in enumerate(steps):
        needed = [] if step.get("depends_on") is None else step["depends_on"]
        if not isinstance(needed, list) or not all(isinstance(one, str) and one in ids for one in needed):
            problem = "must be an array with the ids of other steps"
            raise InvalidWorkflow.at(f"steps[{index}].depends_on", problem, value=needed)
        needs[step["id"]] = set(needed)
    return needs


def _role(step: dict[str, Any]) -> str | None:
    """Return which callback a step is, if it is one; its client says so in the options, or in the id."""
    options = step.get("options")
    said = options.get("callback_type") if isinstance(options, dict) else None
    role = step["id"].replace("-", "_") if said is None else said
    return role if role in tuple(CALLBACKS) else None


def _member(step: dict[str, Any]) -> dict[str, Any]:
    member = {name: value for name, value in step.items() if name not in ("id", "depends_on")}
    if isinstance(options := member.get("options"), dict):
        member["options"] = {name: value for name, value in options.items() if name != "callback_type"}
    return {**member, "name": step["id"]}


def _steps(workflow: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the members and the callbacks of a workflow as steps; none if the answer leaves out the members."""
    kind = Kind(workflow["type"])
    members = workflow.get(kind.members, ())
    ids = [one.get("name", f"step-{index}") for index, one in enumerate(members)]
    before = [ids[max(index - 1, 0) : index] if kind is Kind.CHAIN else [] for index in range(len(ids))]
    steps = [{"id": id, "depends_on": needed, **one} for id, needed, one in zip(ids, before, members, strict=True)]
    called = workflow.get("callbacks", {}) if steps else {}
    return [*steps, *({"id": role, "depends_on": ids, **one} for role, one in called.items())]
