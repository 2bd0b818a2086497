"""Job keys: a caller's name for a job. A later enqueue with the key rewrites the waiting job (Graphile Worker)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any, Protocol

from ..exceptions import InvalidRequest, did_you_mean
from ..ojs.names import job_key
from ..ojs.states import INCOMPLETE, JobState
from .fingerprint import canonical_key

HOLDING = INCOMPLETE | {JobState.DISCARDED}
"""The states in which a job holds its key: until it completes or is cancelled. A discarded job still holds it."""


class KeyMode(StrEnum):
    """What an enqueue does when its key is held (Graphile Worker, "job_key_mode")."""

    REPLACE = "replace"
    """Rewrite the waiting job, its time included: debounce."""
    PRESERVE_RUN_AT = "preserve_run_at"
    """Rewrite the waiting job, but keep its time, unless an attempt has failed."""
    UNSAFE_DEDUPE = "unsafe_dedupe"
    """Return the job that holds the key and store nothing, even if that job runs or is discarded.

    Dangerous: the work of the enqueue may then never be done.
    """


class KeyScope(StrEnum):
    """Among which jobs a key is unique."""

    TYPE = "type"
    """Among those of the same type."""
    GLOBAL = "global"
    """Among all, as in Graphile Worker: an enqueue can turn a waiting job into one of another type."""


@dataclass(frozen=True, slots=True)
class JobKey:
    """A key with its mode and its scope. Raises InvalidRequest, which names the field and says how to fix it."""

    text: str
    mode: KeyMode | str = KeyMode.REPLACE
    scope: KeyScope | str = KeyScope.TYPE

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", job_key(self.text))
        for name, choices in (("mode", KeyMode), ("scope", KeyScope)):
            value = getattr(self, name)
            if value not in tuple(choices):
                raise InvalidRequest.at(
                    f"key_{name}", "is not a known choice", value=value, hint=did_you_mean(value, choices)
                )
            object.__setattr__(self, name, choices(value))

    def canonical_text(self, type: str, meta: Any = None) -> str:
        """Return the text whose fingerprint the jobs of this key share, with the context in their ``meta``."""
        return canonical_key(self.text, type=None if self.scope is KeyScope.GLOBAL else type, meta=meta)


class Expiring(Protocol):
    """What `is_too_late` needs to know of a job."""

    expires_at: datetime | None
    started_at: datetime | None


class KeyHolder(Expiring, Protocol):
    """What `judge` needs to know of the job that holds a key."""

    state: str
    attempt: int


class KeyAction(StrEnum):
    """What an enqueue does with the job that holds its key."""

    CREATE = "create"
    KEEP = "keep"
    SUCCEED = "succeed"
    """Take the key and all further attempts from the running job, and create another one."""
    REWRITE = "rewrite"
    REWRITE_BUT_TIME = "rewrite_but_time"


def is_too_late(job: Expiring, now: datetime) -> bool:
    """Tell whether a job never started and may not start any more, whether or not it is discarded."""
    return job.expires_at is not None and job.expires_at <= now and job.started_at is None


def judge(holder: KeyHolder | None, mode: KeyMode | str, now: datetime) -> KeyAction:
    """Decide on an enqueue with a key, given the job that holds it (Graphile Worker, "job_key_mode").

    A job that has expired does nobody's work, whether or not it is discarded already.
    """
    if holder is None:
        return KeyAction.CREATE
    if is_too_late(holder, now):
        return KeyAction.REWRITE
    if mode == KeyMode.UNSAFE_DEDUPE:
        return KeyAction.KEEP
    if holder.state == JobState.ACTIVE:
        return KeyAction.SUCCEED
    has_failed = holder.attempt > 0 or holder.state == JobState.DISCARDED
    if mode == KeyMode.PRESERVE_RUN_AT and not has_failed:
        return KeyAction.REWRITE_BUT_TIME
    return KeyAction.REWRITE


def is_mixed(old: Any, new: Any) -> bool:
    """Tell whether one of two args is an array and the other is not, so that a rewrite would lose the old one."""
    return isinstance(old, list) is not isinstance(new, list)


def merge(old: Any, new: Any) -> Any:
    """Return the args of a rewritten job: two arrays joined, else the new ones (Graphile Worker, "Array payload")."""
    return [*old, *new] if isinstance(old, list) and isinstance(new, list) else new
