"""Judge: which stored jobs are duplicates, and what an enqueue does about them (OJS unique jobs, "Conflict Resolution
Strategies").
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any, Final, Generic, NamedTuple, Protocol, TypeVar

from ..ojs.states import TERMINAL, UNSTARTED, JobState
from .keys import is_too_late
from .policy import OnConflict, UniquePolicy


class Stored(Protocol):
    """What a verdict needs to know of a stored job."""

    id: Any
    state: str
    created_at: datetime
    scheduled_at: datetime | None
    enqueued_at: datetime | None
    expires_at: datetime | None
    started_at: datetime | None


class Action(StrEnum):
    """What to do with the incoming job."""

    ADMIT = "admit"
    REJECT = "reject"
    IGNORE = "ignore"
    REWRITE = "rewrite"
    """Give its values to the waiting job that holds its key."""
    ID_TAKEN = "id_taken"


class Met(NamedTuple):
    """A stored job as it was when an enqueue met it: a later enqueue of the same plan may change it."""

    pk: Any
    state: str


S = TypeVar("S", bound=Stored)


@dataclass(frozen=True, slots=True)
class Verdict(Generic[S]):
    """The decision on one enqueue.

    ``existing`` is the job that the result names: the newest duplicate, or the one that cannot be replaced.
    ``cancel`` are the live duplicates to replace, ``release`` the other jobs that must release their unique key.
    ``inherited_schedule`` is the ``scheduled_at`` that the new job takes over under ``replace_except_schedule``, and
    ``inherited_place`` the ``enqueued_at`` under ``replace_in_place``.
    ``met`` are the jobs to record: those that suppress the incoming one, or are replaced.
    """

    action: Action
    existing: S | None = None
    cancel: tuple[S, ...] = ()
    release: tuple[S, ...] = ()
    inherited_schedule: datetime | None = None
    inherited_place: datetime | None = None
    met: tuple[Met, ...] = field(default=(), compare=False)

    @property
    def suppressed(self) -> str | None:
        """``rejected``, ``deduplicated`` or ``replaced``; None if no job was suppressed."""
        match self.action:
            case Action.REJECT:
                return "rejected"
            case Action.IGNORE:
                return "deduplicated"
        return "replaced" if self.cancel else None


FREE: Final[Verdict[Any]] = Verdict(Action.ADMIT)
"""No stored job matters."""


READ: Final = ("state", "created_at", "scheduled_at", "started_at", "expires_at")
"""The fields of a stored job that `counts` reads."""


def has_expired(row: Stored, now: datetime) -> bool:
    """Whether a job that waits for its first start may not start any more."""
    return row.state in UNSTARTED and is_too_late(row, now)


def counts(policy: UniquePolicy, row: Stored, now: datetime, judged_at: datetime | None = None) -> bool:
    """Whether a policy counts a stored job of the same fingerprint now, or for a job ``judged_at`` another time."""
    return policy.is_duplicate(row.state, policy.begins(row), judged_at or now) and not has_expired(row, now)


def duplicates(stored: Iterable[S], policy: UniquePolicy, now: datetime, judged_at: datetime | None = None) -> list[S]:
    """Return the stored jobs, all of one fingerprint, that the policy counts now, the newest first."""
    counted = (row for row in stored if counts(policy, row, now, judged_at))
    return sorted(counted, key=lambda row: (row.created_at, row.id), reverse=True)


def meeting(action: Action, row: S) -> Verdict[S]:
    """Return the verdict on a job that is not admitted, because of a stored one."""
    return Verdict(action, row, met=(Met(row.id, row.state),))


def judge(
    stored: Iterable[S],
    policy: UniquePolicy,
    now: datetime,
    *,
    judged_at: datetime | None = None,
    replace_active: bool,
    spared: Collection[Any] = (),
    on_conflict: OnConflict | None = None,
) -> Verdict[S]:
    """Decide on an incoming job, given all stored jobs that share its fingerprint and could matter.

    ``judged_at``: as for `counts`. ``replace_active`` says whether a running duplicate may be cancelled; if not, it
    means reject. ``spared`` are the ids of the jobs that nothing may replace. ``on_conflict`` is the strategy, if it is
    not the policy's.
    """
    strategy, rows = on_conflict or policy.on_conflict, list(stored)
    counted = duplicates(rows, policy, now, judged_at)
    if not counted:
        return Verdict(Action.ADMIT, release=tuple(rows))
    newest = counted[0]
    if strategy is OnConflict.IGNORE:
        return meeting(Action.IGNORE, newest)
    if strategy is OnConflict.REJECT:
        return meeting(Action.REJECT, newest)
    live = tuple(row for row in counted if row.state not in TERMINAL)
    running = [row for row in live if row.state == JobState.ACTIVE]
    if running and not replace_active:
        return meeting(Action.REJECT, running[0])
    if kept := [row for row in live if row.id in spared]:
        return meeting(Action.REJECT, kept[0])
    inherits = strategy is not OnConflict.REPLACE and newest.state == JobState.SCHEDULED
    return Verdict(
        Action.ADMIT,
        existing=newest,
        cancel=live,
        release=tuple(row for row in rows if row not in live),
        inherited_schedule=newest.scheduled_at if inherits else None,
        inherited_place=newest.enqueued_at if strategy is OnConflict.REPLACE_IN_PLACE and newest in live else None,
        met=tuple(Met(row.id, row.state) for row in live),
    )
