"""Due: one statement looks for all that maintenance may have to do, so that nobody asks for nothing else in vain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple

from django.db.models import QuerySet

from ..db.firsts import Moment, firsts
from ..execution.queue_rules import QueueState, columns_of_state
from ..ojs.states import JobState
from ..workflows.tables import Tables
from . import cron, inbox, timers


class Seen(NamedTuple):
    """What a look has found, and how many blocks it read, where the database tells.

    ``due`` is when the next scheduled or retryable job is due. The others are the id of a job that is available, that
    its worker has lost, that has expired, or whose end a workflow must count, the name of a cron entry that is due, and
    the id of a request in the inbox.
    ``queues`` has the states of the queues that it was asked for.
    """

    due: datetime | None
    available: Any
    lost: Any
    late: Any
    ended: Any
    cron: Any
    request: Any
    blocks: int
    queues: Mapping[str, QueueState]

    def calls_for_maintenance(self, now: datetime) -> bool:
        """Whether something is due."""
        is_due = self.due is not None and self.due <= now
        return is_due or any(found is not None for found in (self.lost, self.late, self.ended, self.cron, self.request))


def look(jobs: QuerySet[Any], now: datetime, queues: Mapping[str, Sequence[str] | None] = MappingProxyType({})) -> Seen:
    """Look once. ``queues``: whose states to return, each with the types of the jobs that count; None means any."""
    also = [columns_of_state(jobs, queue, types) for queue, types in queues.items()]
    found, blocks, states = firsts(jobs, _selections, cron.names_of_mine(jobs.db), now=now, also=also)
    values = map(bool, states)
    by_name = {queue: QueueState(*islice(values, len(QueueState._fields))) for queue in queues}
    return Seen._make([*found, blocks, by_name])


def _selections(jobs: QuerySet[Any], mine: Sequence[str]) -> list[QuerySet[Any]]:
    now: Any = Moment()
    due = timers.timed(jobs).values_list("run_at", flat=True)
    available = jobs.filter(state=JobState.AVAILABLE, finished_at=None).order_by("queue")
    others = (
        available,
        timers.lost(jobs, now),
        timers.late(jobs, now),
        Tables.on(jobs.db).ended,
        cron.due(jobs.db, now, mine),
        inbox.waiting(jobs.db),
    )
    return [due, *(rows.values_list("pk", flat=True) for rows in others)]
