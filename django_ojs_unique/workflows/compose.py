"""Compose jobs: chains, groups and batches (OJS workflows)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias
from uuid import UUID

from ..exceptions import InvalidWorkflow, shorten

if TYPE_CHECKING:
    from ..models import Workflow

Item: TypeAlias = "Mapping[str, Any] | Composition"
"""What `Handler.item` returns, or any object with the arguments of ``Job.objects.enqueue()``; or another workflow."""


@dataclass(frozen=True, slots=True)
class Composition:
    """A chain, a group or a batch that is not enqueued yet. It is a value: it can be compared, nested and reused."""

    type: str
    members: tuple[Item, ...]
    name: str = ""
    callbacks: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the definition that ``Workflow.objects.enqueue()`` takes."""
        named = {"name": self.name} if self.name else {}
        called = {"callbacks": dict(self.callbacks)} if self.type == "batch" else {}
        members = [one.to_dict() if isinstance(one, Composition) else one for one in self.members]
        return {"type": self.type, **named, "steps" if self.type == "chain" else "jobs": members, **called}

    def enqueue(self, *, id: UUID | str | None = None, using: str | None = None) -> Workflow:
        """Store the workflow in the caller's transaction, and enqueue the jobs that wait for no other.

        ``id``: a UUID; by default a new UUIDv7. ``using``: the alias of the database; by default that of its tasks.
        Raises what ``Workflow.objects.enqueue()`` raises; nothing is stored then.
        """
        from ..models import Workflow

        workflow: Workflow = Workflow.objects.using(using).enqueue(self.to_dict(), id=id)
        return workflow

    async def aenqueue(self, *, id: UUID | str | None = None, using: str | None = None) -> Workflow:
        """Do what `enqueue` does, from asynchronous code."""
        from ..models import Workflow

        workflow: Workflow = await Workflow.objects.using(using).aenqueue(self.to_dict(), id=id)
        return workflow


def chain(*steps: Item, name: str = "") -> Composition:
    """Run the steps one after the other: each is enqueued when the one before it has completed.

    A step that fails ends the chain: the later ones are never enqueued.
    """
    return Composition("chain", steps, name)


def group(jobs: Iterable[Item], *, name: str = "") -> Composition:
    """Run the jobs side by side; the group ends when all of them have ended."""
    return Composition("group", _several(jobs, "group"), name)


def batch(
    jobs: Iterable[Item],
    *,
    on_success: Mapping[str, Any] | None = None,
    on_failure: Mapping[str, Any] | None = None,
    on_complete: Mapping[str, Any] | None = None,
    name: str = "",
) -> Composition:
    """Run the jobs side by side, and enqueue callbacks when all of them have ended.

    ``on_success``: if all have completed; ``on_failure``: if one has failed; ``on_complete``: in both cases.
    """
    given = {"on_complete": on_complete, "on_success": on_success, "on_failure": on_failure}
    callbacks = {name: item for name, item in given.items() if item is not None}
    return Composition("batch", _several(jobs, "batch"), name, callbacks)


def _several(jobs: Any, kind: str) -> tuple[Item, ...]:
    if isinstance(jobs, (str, Mapping, Composition)) or not isinstance(jobs, Iterable):
        raise InvalidWorkflow.at("jobs", "must be a list of jobs", hint=f"Write {kind}([{shorten(jobs)}, ...]).")
    return tuple(jobs)
