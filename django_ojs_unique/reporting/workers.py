"""Which workers live, and which queues they take."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from django.db.models import Case, Count, QuerySet, Value, When

from ..exceptions import Message, nearest
from ..models import Job, WorkerProcess
from ..ojs.names import matches
from ..ojs.states import JobState
from .stopped import stopped
from .text import harmless

if TYPE_CHECKING:
    from .queues import QueueReport

SILENT_AFTER = timedelta(seconds=30)
"""A worker writes a heartbeat every ten seconds; when three are missing, it counts as silent."""

SILENT = "silent"
MOST_WORKERS = 200
MOST_RUNNING = 1_000


class Taken:
    """The queues that a worker takes, as its row says: patterns, of which those that begin with ``!`` exclude."""

    def __init__(self, queues: Any) -> None:
        self.patterns = [text for text in queues if isinstance(text, str)] if isinstance(queues, list) else []

    def __contains__(self, queue: str) -> bool:
        include = [text for text in self.patterns if not text.startswith("!")]
        exclude = [text[1:] for text in self.patterns if text.startswith("!")]
        return matches(queue, include) and not matches(queue, exclude)


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker now. ``standing`` is its state, or ``silent`` when its heartbeat is overdue."""

    row: WorkerProcess
    standing: str

    @property
    def lives(self) -> bool:
        return self.standing == WorkerProcess.State.RUNNING

    @property
    def taken(self) -> Taken:
        """The queues that it takes."""
        return Taken(self.row.queues)

    @property
    def patterns(self) -> list[str]:
        """The queues that it takes, as patterns; a pattern that begins with ``!`` excludes queues."""
        return self.taken.patterns

    @property
    def names(self) -> list[str]:
        """The queues that it names without a wildcard."""
        # A name that is not printable cannot be a queue's, and a page could not show it.
        return [text for text in self.patterns if "*" not in text and text[:1] != "!" and text.isprintable()]

    def takes(self, queue: str) -> bool:
        """Whether it takes jobs of a queue."""
        return queue in self.taken


def standing(row: WorkerProcess, now: datetime) -> str:
    """Return the state of a worker: ``running``, ``quiet``, ``stopping`` or ``silent``."""
    return SILENT if now - row.heartbeat_at > SILENT_AFTER else str(row.state)


def workers(using: str, now: datetime, *, every: bool = False) -> list[WorkerReport]:
    """Return up to `MOST_WORKERS` workers, or ``every`` one, those with the latest heartbeat first. One statement."""
    rows = WorkerProcess.objects.using(using).order_by("-heartbeat_at", "pk")[: None if every else MOST_WORKERS]
    return [WorkerReport(row, standing(row, now)) for row in rows]


def standings(using: str, now: datetime) -> Counter[str]:
    """Count all workers by how they stand. One statement."""
    is_silent = Case(When(heartbeat_at__lt=now - SILENT_AFTER, then=Value(True)), default=Value(False))
    rows = WorkerProcess.objects.using(using).order_by().values_list("state", is_silent).annotate(Count("pk"))
    counts: Counter[str] = Counter()
    for state, silent, count in rows:
        counts[SILENT if silent else state] += count
    return counts


def taken_by_running(using: str, now: datetime, present: Sequence[WorkerReport] | None = None) -> list[Taken]:
    """Return which queues running workers take, each of them once.

    One statement; none if ``present``, the result of `workers`, has all of them.
    """
    if present is not None and len(present) < MOST_WORKERS:
        found = [worker.row.queues for worker in present if worker.lives]
    else:
        running = WorkerProcess.objects.using(using).filter(
            state=WorkerProcess.State.RUNNING, heartbeat_at__gte=now - SILENT_AFTER
        )
        found = list(running.order_by().values_list("queues", flat=True).distinct())
    return [Taken(queues) for queues in found]


def is_stranded(queue: QueueReport, taken: Sequence[Taken]) -> bool:
    """Whether jobs wait in a queue, and none of the workers that is running takes it."""
    return queue.waiting > 0 and not any(queue.name in one for one in taken)


def untaken(queue: str, taken: Sequence[Taken]) -> str:
    """Say that no running worker takes a queue; empty if one does. ``taken``: the result of `taken_by_running`."""
    if not taken:
        return Message("No worker runs: `manage.py runworker` starts one.")
    if any(queue in one for one in taken):
        return ""
    return Message("No running worker says that it takes {queue}.", queue=harmless(queue))


def misspelt(queue: str, present: Iterable[WorkerReport], used: Collection[str]) -> str:
    """Say which queue was perhaps meant: a running worker takes it, its name is similar, and it has no job."""
    close = nearest(queue, {name for worker in present if worker.lives for name in worker.names if name not in used})
    if not close:
        return ""
    template = Message("One takes {name}, in which there is no job: was {queue} meant?")
    return Message(template, name=repr(close), queue=repr(harmless(queue)))


def claimed_by(jobs: QuerySet[Any], worker: WorkerProcess, most: int) -> list[Job]:
    """Return up to ``most`` of the jobs that a worker runs now, the earliest started first. One statement."""
    found = _running(jobs.using(worker._state.db), "type", "queue", "state", "started_at", worker_id=worker.pk)
    return list(found.order_by("started_at", "pk")[:most])


def running(using: str) -> dict[str, list[Job]]:
    """Return up to `MOST_RUNNING` of the jobs that run now by the id of their worker, the earliest started first.

    One statement.
    """
    found = _running(Job.objects.using(using), "type", "worker_id", "started_at", "progress")[:MOST_RUNNING]
    by_worker: dict[str, list[Job]] = {}
    for job in sorted((job for job in found if job.started_at), key=lambda job: (job.started_at, job.pk)):
        by_worker.setdefault(job.worker_id or "", []).append(job)
    return by_worker


def _running(jobs: QuerySet[Any], *fields: str, **which: Any) -> QuerySet[Any]:
    """Select some fields of the jobs that run, and of those that were cancelled or replaced and whose runs go on."""
    jobs = jobs.filter(**which).only(*fields).order_by()
    others = jobs.filter(state=JobState.CANCELLED, pk__in=stopped(jobs.db, **which).values("job_id"))
    # The state implies that none has finished; the condition is there so that the index ojs_job_live is used.
    return jobs.filter(state=JobState.ACTIVE, finished_at__isnull=True).union(others, all=True)
