"""The behaviour of other systems, each by its own name and options, as policies of this one."""

from __future__ import annotations

from .policy import OnConflict, UniquePolicy
from .states import ALL, INCOMPLETE, WAITING

__all__ = ["ALL", "INCOMPLETE", "WAITING", "resque_uniqueue"]


def resque_uniqueue() -> UniquePolicy:
    """Let no identical job wait on the same queue (resque-uniqueue): its type and all of its args count.

    A job that has been taken by a worker no longer counts. A duplicate is answered with the job that waits. As a rule
    for whole queues, see ``OJS_UNIQUE["UNIQUE_QUEUES"]``.
    """
    return UniquePolicy(keys=["type", "queue", "args"], states=tuple(WAITING), on_conflict=OnConflict.IGNORE)
