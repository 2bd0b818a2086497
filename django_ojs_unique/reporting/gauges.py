"""The present state of the system in numbers, for a monitor that asks every few seconds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..models import Job, SuppressedEnqueue
from ..ojs.states import JobState
from .limits import LimitReport, limits
from .queues import QueueReport, declared, queues
from .text import MOST_COUNTED
from .workers import WorkerReport, is_stranded, workers

RECENT = timedelta(minutes=1)


@dataclass(frozen=True, slots=True)
class Levels:
    """The system now. Each count stops at `MOST_COUNTED` + 1, which means: that many or more.

    ``stranded``: the queues with waiting jobs that no running worker takes. ``discarded``: how many discarded jobs are
    stored, by whether they are dead letters. ``finished`` (by state) and ``suppressed`` (by outcome) count those of the
    last minute.
    """

    queues: Sequence[QueueReport]
    declared: Collection[str]
    """The queues that handlers declare."""
    stranded: Collection[str]
    workers: Sequence[WorkerReport]
    discarded: Mapping[bool, int]
    finished: Mapping[str, int]
    suppressed: Mapping[str, int]
    limits: Sequence[LimitReport] = ()


def levels(using: str, now: datetime) -> Levels:
    """Read the levels in twelve statements, with limits in up to sixteen; each reads a bounded part of an index."""
    named = declared()
    found, present = queues(using, named), workers(using, now)
    # The filter names every leading column of the index ojs_job_finished, so that only the index is read.
    ended = Job.objects.using(using).filter(payload_pruned__in=[False, True], finished_at__isnull=False).order_by()
    lately = ended.filter(dead_letter__in=[False, True], finished_at__gte=now - RECENT)
    suppressed = SuppressedEnqueue.objects.using(using).filter(created_at__gte=now - RECENT)
    most = MOST_COUNTED + 1
    return Levels(
        queues=found,
        declared=named,
        stranded={queue.name for queue in found if is_stranded(queue, present)},
        workers=present,
        discarded={
            dead: ended.filter(state=JobState.DISCARDED, dead_letter=dead)[:most].count() for dead in (False, True)
        },
        finished={
            state: lately.filter(state=state)[:most].count()
            for state in (JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED)
        },
        suppressed=Counter(suppressed.values_list("outcome", flat=True)[:most]),
        limits=limits(using),
    )
