"""What an enqueue does about the stored jobs of its fingerprint (OJS unique jobs, "Conflict Resolution Strategies")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, Protocol, TypeVar

from ..ojs.states import TERMINAL, JobState
from .policy import OnConflict, UniquePolicy


class Stored(Protocol):
    """What a verdict needs to know of a stored job."""

    id: Any
    state: str
    created_at: datetime
    scheduled_at: datetime | None


class Action(StrEnum):
    """What to do with the incoming job."""

    ADMIT = "admit"
    REJECT = "reject"
    IGNORE = "ignore"


S = TypeVar("S", bound=Stored)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[S]):
    """The decision on one enqueue.

    ``existing`` is the job that the result names: the newest duplicate, or the one that cannot be replaced.
    ``cancel`` are the live duplicates to replace, ``release`` the other jobs that must release their unique key.
    ``inherited_schedule`` is the ``scheduled_at`` that the new job takes over under ``replace_except_schedule``.
    """

    action: Action
    existing: S | None = None
    cancel: tuple[S, ...] = ()
    release: tuple[S, ...] = ()
    inherited_schedule: datetime | None = None


FREE: Final[Verdict[Any]] = Verdict(Action.ADMIT)
"""No stored job matters."""


def duplicates(stored: Iterable[S], policy: UniquePolicy, now: datetime) -> list[S]:
    """Return the stored jobs, all of one fingerprint, that the policy counts now, the newest first."""
    counted = (row for row in stored if policy.is_duplicate(row.state, row.created_at, now))
    return sorted(counted, key=lambda row: (row.created_at, row.id), reverse=True)


def judge(stored: Iterable[S], policy: UniquePolicy, now: datetime, *, replace_active: bool) -> Verdict[S]:
    """Decide on an incoming job, given all stored jobs that share its fingerprint and could matter.

    ``replace_active`` says whether a running duplicate may be cancelled; if not, a running duplicate means reject.
    """
    rows = list(stored)
    counted = duplicates(rows, policy, now)
    if not counted:
        return Verdict(Action.ADMIT, release=tuple(rows))
    newest = counted[0]
    if policy.on_conflict is OnConflict.IGNORE:
        return Verdict(Action.IGNORE, newest)
    if policy.on_conflict is OnConflict.REJECT:
        return Verdict(Action.REJECT, newest)
    live = tuple(row for row in counted if row.state not in TERMINAL)
    running = [row for row in live if row.state == JobState.ACTIVE]
    if running and not replace_active:
        return Verdict(Action.REJECT, running[0])
    inherits = policy.on_conflict is OnConflict.REPLACE_EXCEPT_SCHEDULE and newest.state == JobState.SCHEDULED
    return Verdict(
        Action.ADMIT,
        existing=newest,
        cancel=live,
        release=tuple(row for row in rows if row not in live),
        inherited_schedule=newest.scheduled_at if inherits else None,
    )
