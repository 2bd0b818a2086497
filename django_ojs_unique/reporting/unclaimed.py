"""Waiting jobs that perhaps nobody claims: their type has no handler here, or no worker takes their queue."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..db.clock import database_now
from ..exceptions import Message, nearest
from ..handlers.registry import registry
from ..ojs.states import WAITING, JobState
from .queues import in_code, in_use, used
from .text import harmless
from .workers import misspelt, taken_by_running, untaken, workers

MOST_AT_HEAD, MOST_IN_HEADS, MOST_HEADS = 1_000, 10_000, 100
"""How many jobs are looked at in one queue and in all queues, and how many queues."""
MOST_NAMED = 10


def nobody(job: Any, using: str) -> str:
    """Say that no worker takes the queue of a waiting job; empty if one does. One statement, or two."""
    if job.state not in WAITING:
        return ""
    now = database_now(using)
    present = workers(using, now)
    if not (problem := untaken(job.queue, taken_by_running(using, now, present))):
        return ""
    if not any(worker.lives and worker.names for worker in present):
        return problem
    return Message.joined(" ", filter(None, [problem, misspelt(job.queue, present, in_use(using))]))


def doubt(using: str, name: str) -> str:
    """Say that nothing knows a queue of this name, and which was probably meant; empty if the queue is known."""
    present = workers(using, database_now(using))
    known = in_code().union(used(using), *(worker.names for worker in present))
    if name in known or any(worker.takes(name) and "*" not in worker.patterns for worker in present):
        return ""
    close = nearest(name, known)
    meant = f"Did you mean {close!r}?" if close else "`jobs queues` shows those that have jobs."
    return f"Nothing knows the queue {name!r}: no job, no worker, no handler. {meant}"


def unknown_types(jobs: QuerySet[Any], queues: Iterable[str]) -> list[str]:
    """Return, sorted, the types of the jobs at the heads of these queues that have no handler in this process.

    Such jobs stay at the head, as workers with the same handlers do not claim them. One statement, by an index.
    """
    names = list(queues)[:MOST_HEADS]
    if not names:
        return []
    most = min(MOST_AT_HEAD, MOST_IN_HEADS // len(names))
    head = (
        f"SELECT type FROM {jobs.model._meta.db_table} WHERE finished_at IS NULL"
        f" AND state = '{JobState.AVAILABLE}' AND queue = %s"
        f" ORDER BY blocked_by, priority DESC, enqueued_at, id LIMIT {most}"
    )
    heads = " UNION ".join(f"SELECT DISTINCT type FROM ({head}) head_{number}" for number in range(len(names)))
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(heads, names)
        return sorted({type for (type,) in cursor.fetchall()}.difference(registry))


def meant(type: str) -> str:
    """Name a type and, if one is similar, the handler's type that was probably meant."""
    close = nearest(type, registry)
    if not close:
        return harmless(type)
    return Message("{type} (did you mean {name}?)", type=harmless(type), name=repr(close))


def named(types: Sequence[str]) -> str:
    """Name the first `MOST_NAMED` types as `meant` does, and say how many more there are."""
    more = len(types) - MOST_NAMED
    rest = [Message("and {count} more", count=f"{more:,}")] if more > 0 else []
    return Message.joined(", ", [*map(meant, types[:MOST_NAMED]), *rest])
