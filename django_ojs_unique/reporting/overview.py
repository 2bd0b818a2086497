"""Everything for one page: queues and the jobs that lately ended in them, workers, and activity over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..models import Job
from ..ojs.states import JobState
from .activity import Activity, activity
from .failures import Failures, failures
from .queues import MOST_QUEUES, Now, QueueReport, declared, queues, together
from .text import count_text
from .times import Span
from .unclaimed import Unknown, unknown_types
from .waits import Spread, Waits, waits
from .workers import WorkerReport, is_stranded, misspelt, running, taken_by_running, workers

LONG_WAIT = timedelta(minutes=5)
MOST_EXPLAINED = 5
"""How many of the queues that no worker takes are compared with the names that workers take."""


@dataclass(frozen=True, slots=True)
class QueueActivity:
    """A queue, and how many of its jobs completed and failed for good in a span.

    ``waited``: how long some of the completed ones had waited. ``is_stranded``: jobs wait in it, and no running worker
    takes it; None if workers were not asked for.
    """

    queue: QueueReport
    completed: int
    failed: int
    waited: Spread | None
    is_stranded: bool | None

    def waits_long(self, now: datetime) -> bool:
        """Whether a job has waited longer than `LONG_WAIT` for a worker, and its queue is not paused."""
        since = self.queue.waits_since
        return since is not None and self.queue.paused_at is None and now - since > LONG_WAIT

    @property
    def failure_rate(self) -> float | None:
        """Failed jobs as a share of the completed and failed ones, from 0 to 1; None if there were none."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole system. ``now``: what is unfinished in all queues. ``more_queues``: how many are left out.

    ``observed_since``: since when it is known what happened in the span, for a rate; at the earliest, since it began.
    ``workers``: None if they were not asked for. ``running``: the jobs that run now, by worker; empty without workers.
    ``unknown``: the types of waiting jobs that have no handler in this process.
    """

    now: Now
    queues: Sequence[QueueActivity]
    more_queues: int
    workers: Sequence[WorkerReport] | None
    running: Mapping[str, Sequence[Job]]
    failures: Failures
    activity: Activity
    waits: Waits
    observed_since: datetime
    has_jobs: bool
    unknown: Unknown

    @property
    def more_text(self) -> str:
        """``more_queues`` as text, with a plus sign if there may be more."""
        return count_text(self.more_queues, self.now.is_cut)

    @property
    def stranded(self) -> list[str]:
        """The queues with waiting jobs that no running worker takes."""
        return [each.queue.name for each in self.queues if each.is_stranded]

    @property
    def misspelt(self) -> list[str]:
        """For some stranded queues, say which similar queue name a worker takes instead."""
        used = {each.queue.name for each in self.queues if each.queue.unfinished}
        return list(filter(None, (misspelt(name, self.workers or (), used) for name in self.stranded[:MOST_EXPLAINED])))


def overview(using: str, span: Span, now: datetime, *, with_workers: bool = True) -> Overview:
    """Read everything in eleven statements: two more for a day or a week, one less if no job waits."""
    present = workers(using, now) if with_workers else None
    taken = [] if present is None else taken_by_running(using, now, present)
    happened, waited = activity(using, span, now), waits(using, span, now)
    own = declared()
    names = {*own}
    names.update(name for worker in present or () for name in worker.names)
    names.update(queue for queue, _ in happened.by_queue)
    found = queues(using, names)
    shown = sorted(found, key=lambda queue: (not queue.unfinished, queue.name not in own))[:MOST_QUEUES]
    all_queues = together(found)
    unknown = unknown_types(Job.objects.using(using), [queue.name for queue in found if queue.waiting])
    oldest = Job.objects.using(using).order_by("pk").values_list("created_at", flat=True).first()
    return Overview(
        now=all_queues,
        queues=[
            QueueActivity(
                queue,
                happened.by_queue[queue.name, JobState.COMPLETED],
                happened.by_queue[queue.name, JobState.DISCARDED],
                waited.by_queue.get(queue.name),
                None if present is None else is_stranded(queue, taken),
            )
            for queue in sorted(shown, key=lambda queue: queue.name)
        ],
        more_queues=len(found) - len(shown),
        workers=present,
        running=running(using) if present else {},
        failures=failures(using, happened.edges[0]),
        activity=happened,
        waits=waited,
        observed_since=_observed_since(happened, oldest or now, now),
        has_jobs=oldest is not None or any(happened.enqueued),
        unknown=unknown._replace(is_cut=unknown.is_cut or all_queues.is_cut),
    )


def _observed_since(happened: Activity, oldest: datetime, now: datetime) -> datetime:
    """Return when the oldest job was created, or when the first part with counts of pruned jobs ended, if earlier."""
    counts = zip(happened.edges[1:], happened.enqueued, happened.completed, happened.failed, strict=True)
    counted = next((end for end, *numbers in counts if any(numbers)), now)
    return max(happened.edges[0], min(oldest, counted))
