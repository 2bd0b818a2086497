"""Which workers live, and which queues they take."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from ..models import Job, WorkerProcess
from ..ojs.names import matches
from ..ojs.states import JobState
from .queues import QueueInsight

SILENT_AFTER = timedelta(seconds=30)
"""A worker writes its heartbeat every ten seconds; after three that are missing it is taken for dead."""

SILENT = "silent"
MOST_WORKERS = 200


@dataclass(frozen=True, slots=True)
class WorkerInsight:
    """A worker now. ``standing`` is its state, or ``silent`` when its heartbeat is overdue."""

    row: WorkerProcess
    standing: str

    @property
    def lives(self) -> bool:
        return self.standing == WorkerProcess.State.RUNNING

    @property
    def patterns(self) -> list[str]:
        """The queues that it takes, as patterns; those to leave out begin with ``!``."""
        return [text for text in self.row.queues if isinstance(text, str)] if isinstance(self.row.queues, list) else []

    @property
    def names(self) -> list[str]:
        """The queues that it takes by name."""
        # One that cannot be printed is no queue's, and no page could hold it.
        return [text for text in self.patterns if "*" not in text and text[:1] != "!" and text.isprintable()]

    def takes(self, queue: str) -> bool:
        """Whether it takes jobs of a queue."""
        include = [text for text in self.patterns if not text.startswith("!")]
        exclude = [text[1:] for text in self.patterns if text.startswith("!")]
        return matches(queue, include) and not matches(queue, exclude)


def standing(row: WorkerProcess, now: datetime) -> str:
    """Say how a worker stands: ``running``, ``quiet``, ``stopping`` or ``silent``."""
    return SILENT if now - row.heartbeat_at > SILENT_AFTER else str(row.state)


def workers(using: str, now: datetime) -> list[WorkerInsight]:
    """Return up to `MOST_WORKERS` workers, those that were heard last first. One statement."""
    rows = WorkerProcess.objects.using(using).order_by("-heartbeat_at", "pk")[:MOST_WORKERS]
    return [WorkerInsight(row, standing(row, now)) for row in rows]


def is_stranded(queue: QueueInsight, present: Iterable[WorkerInsight]) -> bool:
    """Whether jobs wait in a queue that none of the workers present takes and lives."""
    return queue.waiting > 0 and not any(worker.lives and worker.takes(queue.name) for worker in present)


def held(worker: WorkerProcess, most: int) -> list[Job]:
    """Return up to ``most`` jobs that a worker holds now, those that it took first first. One statement."""
    # That none is finished follows from the state; the index ojs_job_live is found by it.
    active = Job.objects.using(worker._state.db).filter(state=JobState.ACTIVE, finished_at__isnull=True)
    fields = ("type", "queue", "state", "started_at")
    return list(active.filter(worker_id=worker.pk).only(*fields).order_by("started_at", "pk")[:most])
