"""Resolve duplicates: keep one of several live jobs of a fingerprint, and cancel the others that were shown with it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet

from ..db.constraints import unfinished_or_holding
from ..db.dialects import dialect_of
from ..db.transactions import starting_over
from ..exceptions import Message
from ..ojs.states import INCOMPLETE, TERMINAL
from .bulk import change
from .operation import CANCEL

if TYPE_CHECKING:
    from ..models import Job

NEWEST, OLDEST = "newest", "oldest"
_READ = ("id", "type", "state", "fingerprint")


@dataclass(frozen=True, slots=True)
class Decision:
    """Which job of a fingerprint to keep and which to cancel, of those that were shown to the operator."""

    fingerprint: str
    keep: UUID
    cancel: tuple[UUID, ...]


@dataclass(slots=True)
class Resolved:
    """What became of a decision.

    ``cancelled``: pairs of a job and the state that it had before. ``spared``: for each other job, why it was not
    cancelled. ``unseen``: how many live jobs of the fingerprint the decision does not name; they stay. ``refusal``:
    why nothing was cancelled at all, else empty.
    """

    decision: Decision
    cancelled: list[tuple[Job, str]] = field(default_factory=list)
    spared: list[str] = field(default_factory=list)
    unseen: int = 0
    refusal: str = ""


def decide(fingerprint: str, members: Sequence[Job], rule: Any) -> Decision | None:
    """Decide to keep one of ``members`` and cancel the others; return None if that one is not among them.

    ``members``: the jobs, the oldest first. ``rule``: `NEWEST`, `OLDEST`, or the id of the job to keep.
    """
    ids = [job.pk for job in members]
    keep = ids[-1] if rule == NEWEST else ids[0] if rule == OLDEST else rule
    return Decision(fingerprint, keep, tuple(id for id in ids if id != keep)) if keep in ids else None


def resolve(jobs: QuerySet[Any], decisions: Iterable[Decision]) -> Iterator[Resolved]:
    """Carry out each decision in its own transaction. Nothing is cancelled if the job to keep is not live any more."""
    for decision in decisions:
        yield starting_over(jobs.db, partial(_resolve, jobs, decision))


def _resolve(jobs: QuerySet[Any], decision: Decision) -> Resolved:
    result, fingerprint = Resolved(decision), decision.fingerprint
    named = {decision.keep, *decision.cancel}
    with transaction.atomic(using=jobs.db):
        dialect_of(jobs).take_write_lock()
        # The lock keeps the job to keep from finishing before the others are cancelled. All lock in the order of ids.
        locked = jobs.filter(pk__in=named).order_by("pk").select_for_update().only(*_READ)
        rows = {row.pk: row for row in locked}
        kept = rows.get(decision.keep)
        if reason := _why_not(kept, fingerprint):
            result.refusal = Message(_REFUSALS[reason], id=decision.keep, state=kept and kept.state)
            return result
        why_not = {id: _why_not(rows.get(id), fingerprint) for id in decision.cancel if id != decision.keep}
        result.spared = [
            Message(reason, id=id, state=id in rows and rows[id].state) for id, reason in why_not.items() if reason
        ]
        result.cancelled = [(rows[id], rows[id].state) for id, reason in why_not.items() if not reason]
        list(change(jobs, [row.pk for row, _ in result.cancelled], CANCEL))
        live = unfinished_or_holding(fingerprint=fingerprint)
        result.unseen = jobs.filter(live, state__in=sorted(INCOMPLETE)).exclude(pk__in=named).count()
    return result


def _why_not(row: Any, fingerprint: str) -> Message | None:
    """Say why a job is not a live job of the fingerprint; None if it is one."""
    if row is None:
        return _GONE
    if row.state in TERMINAL:
        return _FINISHED
    return _LEFT if row.fingerprint != fingerprint else None


_GONE = Message("Job {id} is gone: it may have been pruned.")
_FINISHED = Message("Job {id} is {state} by now.")
_LEFT = Message("Job {id} has left this fingerprint.")
_REFUSALS = {
    _GONE: Message(
        "The job to keep, {id}, is gone: it may have been pruned. Nothing of this fingerprint was cancelled."
    ),
    _FINISHED: Message("The job to keep, {id}, is {state} by now. Nothing of this fingerprint was cancelled."),
    _LEFT: Message("The job to keep, {id}, has left this fingerprint. Nothing of this fingerprint was cancelled."),
}
