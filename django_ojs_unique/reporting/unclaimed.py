"""Waiting jobs that perhaps nobody claims: their type has no handler here, or no worker takes their queue."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from datetime import timedelta
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.time_limit import TimeLimitReached, time_limit
from ..exceptions import Message, nearest
from ..handlers.registry import registry
from ..ojs.states import WAITING, JobState
from .queues import in_code, in_use, used
from .text import harmless
from .workers import misspelt, taken_by_running, untaken, workers

MOST_IN_HEADS, MOST_HEADS = 10_000, 100
"""How many jobs are looked at in all queues, and how many queues."""
LONGEST = timedelta(seconds=5)
"""How long a look at all waiting jobs may take."""
MOST_NAMED = 10


class Unknown(NamedTuple):
    """The types, sorted, of waiting jobs that have no handler in this process; ``is_cut``: there may be others."""

    types: list[str]
    is_cut: bool

    @property
    def named(self) -> str:
        """The first `MOST_NAMED` types as `meant` names them, and how many more there are."""
        more = len(self.types) - MOST_NAMED
        rest = []
        if more > 0:
            template = Message("and at least {count} more") if self.is_cut else Message("and {count} more")
            rest = [Message(template, count=f"{more:,}")]
        elif self.is_cut:
            rest = [Message("and perhaps others")]
        return Message.joined(", ", [*map(meant, self.types[:MOST_NAMED]), *rest])


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


def every_unknown_type(jobs: QuerySet[Any], queues: Collection[str]) -> Unknown:
    """Look at all waiting jobs; if that takes longer than `LONGEST`, at those that `unknown_types` looks at.

    One statement, or two. It reads the row of each available job.
    """
    available = jobs.filter(finished_at=None, state=JobState.AVAILABLE).order_by()
    with suppress(TimeLimitReached), time_limit(jobs.db, LONGEST.total_seconds()):
        return Unknown(sorted(set(available.values_list("type", flat=True).distinct()).difference(registry)), False)
    return unknown_types(jobs, queues)._replace(is_cut=True)


def unknown_types(jobs: QuerySet[Any], queues: Collection[str]) -> Unknown:
    """Look at the jobs at the heads of these queues, for types that have no handler in this process.

    Such jobs come to the head and stay there, as workers with the same handlers do not claim them. One statement, by an
    index.
    """
    names = list(queues)[:MOST_HEADS]
    if not names:
        return Unknown([], False)
    most = MOST_IN_HEADS // len(names)
    head = (
        f"SELECT type FROM {jobs.model._meta.db_table} WHERE finished_at IS NULL"
        f" AND state = '{JobState.AVAILABLE}' AND queue = %s"
        f" ORDER BY blocked_by, priority DESC, enqueued_at, id LIMIT {most}"
    )
    heads = [f"SELECT {n}, type, COUNT(*) FROM ({head}) head_{n} GROUP BY type" for n in range(len(names))]
    seen: Counter[int] = Counter()
    found = set()
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(" UNION ALL ".join(heads), names)
        for number, type, count in cursor.fetchall():
            found.add(type)
            seen[number] += count
    is_cut = len(queues) > MOST_HEADS or any(count >= most for count in seen.values())
    return Unknown(sorted(found.difference(registry)), is_cut)


def meant(type: str) -> str:
    """Name a type and, if one is similar, the handler's type that was probably meant."""
    close = nearest(type, registry)
    if not close:
        return harmless(type)
    return Message("{type} (did you mean {name}?)", type=harmless(type), name=repr(close))
