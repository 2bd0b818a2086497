"""The words of workflows (OJS workflows)."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class Kind(StrEnum):
    """One job after another; all at once; all at once with callbacks."""

    CHAIN = "chain"
    GROUP = "group"
    BATCH = "batch"

    @property
    def members(self) -> str:
        """What a definition calls its members."""
        return "steps" if self is Kind.CHAIN else "jobs"


class WorkflowState(StrEnum):
    """A workflow's state; all but the first are final."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


class MemberOutcome(StrEnum):
    """What became of a member of a workflow; ``skipped`` is a callback that was not needed."""

    OPEN = "open"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


UNSUCCESSFUL: Final = (MemberOutcome.FAILED, MemberOutcome.CANCELLED)
"""The outcomes of members that have not done their work."""


class MemberState(StrEnum):
    """What is shown of a member: ``waiting`` for others, ``pending`` as a stored job, or what became of it."""

    WAITING = "waiting"
    PENDING = "pending"
    ACTIVE = "active"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"
    SKIPPED = "skipped"


class Role(StrEnum):
    """What a member is in its workflow: a step or job, or a callback."""

    MEMBER = "member"
    ON_COMPLETE = "on_complete"
    ON_SUCCESS = "on_success"
    ON_FAILURE = "on_failure"


CALLBACKS: Final = (Role.ON_COMPLETE, Role.ON_SUCCESS, Role.ON_FAILURE)
"""The callbacks of a batch, in the order in which they are enqueued."""
