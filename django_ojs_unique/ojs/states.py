"""The eight job states, the moves between them, and the named groups (OJS core, "Lifecycle")."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum


class JobState(StrEnum):
    """A job's state, spelled as on the wire."""

    AVAILABLE = "available"
    ACTIVE = "active"
    SCHEDULED = "scheduled"
    RETRYABLE = "retryable"
    PENDING = "pending"
    COMPLETED = "completed"
    CANCELLED = "cancelled"
    DISCARDED = "discarded"

    @property
    def bit(self) -> int:
        """This state's bit in a stored set of states. The numbers are in users' databases: never renumber."""
        return _BITS[self]


_BITS: Mapping[str, int] = {state: 1 << position for position, state in enumerate(JobState)}

ALL = frozenset(JobState)
TERMINAL = frozenset({JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED})
INCOMPLETE = ALL - TERMINAL
"""The default `states` of a unique policy."""
WAITING = INCOMPLETE - {JobState.ACTIVE}
UNSTARTED = WAITING - {JobState.RETRYABLE}
"""States in which a job may wait for its first start."""
TIMED = frozenset({JobState.SCHEDULED, JobState.RETRYABLE})
"""States that wait until the row's `run_at`."""
UNSUCCESSFUL = frozenset({JobState.DISCARDED, JobState.CANCELLED})
"""States of jobs that have not done their work, and never will by themselves."""
POSTPONED = TIMED | {JobState.PENDING}
"""States that a retry by an operator ends: they wait for their time, or for an activation."""

MOVES: Mapping[JobState, frozenset[JobState]] = {
    JobState.SCHEDULED: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.PENDING: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.AVAILABLE: frozenset({JobState.ACTIVE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.ACTIVE: frozenset(
        {JobState.AVAILABLE, JobState.COMPLETED, JobState.RETRYABLE, JobState.CANCELLED, JobState.DISCARDED}
    ),
    JobState.RETRYABLE: frozenset({JobState.AVAILABLE, JobState.CANCELLED, JobState.DISCARDED}),
    JobState.COMPLETED: frozenset(),
    JobState.CANCELLED: frozenset({JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING}),
    JobState.DISCARDED: frozenset({JobState.AVAILABLE, JobState.SCHEDULED, JobState.PENDING}),
}
"""The states to which a job may move from each state. From `cancelled` and `discarded` it is a retry by an operator."""


def to_mask(states: Iterable[JobState | str]) -> int:
    """Pack a set of states into the small integer that a row stores."""
    mask = 0
    for state in states:
        mask |= _BITS[state]
    return mask


def from_mask(mask: int) -> frozenset[JobState]:
    """Unpack what `to_mask` packed."""
    return frozenset(state for state in JobState if mask & state.bit)


KINDS: Mapping[str, tuple[JobState, bool]] = {
    "completed": (JobState.COMPLETED, False),
    "cancelled": (JobState.CANCELLED, False),
    "discarded": (JobState.DISCARDED, False),
    "dead_letter": (JobState.DISCARDED, True),
}
"""The kinds of finished jobs that ``OJS_UNIQUE["RETENTION"]`` names: the row's `state` and `dead_letter`."""
