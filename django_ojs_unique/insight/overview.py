"""Everything on one page: queues with what ended in them lately, workers, and what happened over time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from ..models import Job
from ..ojs.states import JobState
from .history import Activity, Span, Waits, activity, waits
from .queues import MOST_QUEUES, QueueInsight, declared, queues
from .workers import WorkerInsight, is_stranded, workers


@dataclass(frozen=True, slots=True)
class QueueActivity:
    """A queue, and how many of its jobs completed and failed in a span.

    ``is_stranded``: jobs wait in it and no worker that lives takes them; None when workers were not asked for.
    """

    queue: QueueInsight
    completed: int
    failed: int
    is_stranded: bool | None

    @property
    def failure_rate(self) -> float | None:
        """The failed ones among those that completed or failed, from 0 to 1; None when there were none."""
        ended = self.completed + self.failed
        return self.failed / ended if ended else None


@dataclass(frozen=True, slots=True)
class Overview:
    """The whole system; ``workers`` is None when it was not asked for, ``more_queues`` counts those left out."""

    queues: Sequence[QueueActivity]
    more_queues: int
    workers: Sequence[WorkerInsight] | None
    activity: Activity
    waits: Waits
    has_jobs: bool

    @property
    def stranded(self) -> list[str]:
        """The queues in which jobs wait that no worker that lives takes."""
        return [each.queue.name for each in self.queues if each.is_stranded]


def overview(using: str, span: Span, now: datetime, *, with_workers: bool = True) -> Overview:
    """Look at everything, in eight statements; a ninth when there is next to nothing to see."""
    present = workers(using, now) if with_workers else None
    happened = activity(using, span, now)
    names = declared()
    names.update(name for worker in present or () for name in worker.names)
    names.update(queue for queue, _ in happened.by_queue)
    found = queues(using, names)
    shown = sorted(found, key=lambda queue: not queue.unfinished)[:MOST_QUEUES]
    return Overview(
        queues=[
            QueueActivity(
                queue,
                happened.by_queue[queue.name, JobState.COMPLETED],
                happened.by_queue[queue.name, JobState.DISCARDED],
                None if present is None else is_stranded(queue, present),
            )
            for queue in sorted(shown, key=lambda queue: queue.name)
        ],
        more_queues=len(found) - len(shown),
        workers=present,
        activity=happened,
        waits=waits(using, span, now),
        has_jobs=any(queue.unfinished for queue in found)
        or any(happened.enqueued)
        or Job.objects.using(using).exists(),
    )
