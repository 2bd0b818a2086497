"""Which workers live, which queues they take, and which waiting jobs none of them may run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db import connections
from django.db.models import QuerySet
from django.utils import timezone

from ..exceptions import Message, nearest
from ..handlers.registry import registry
from ..models import Job, WorkerProcess
from ..ojs.names import matches
from ..ojs.states import WAITING, JobState
from .queues import QueueReport, in_code, in_use, used
from .text import harmless

SILENT_AFTER = timedelta(seconds=30)
"""A worker writes a heartbeat every ten seconds; when three are missing, it counts as silent."""

SILENT = "silent"
MOST_WORKERS = 200
MOST_RUNNING = 1_000
MOST_AT_HEAD, MOST_IN_HEADS, MOST_HEADS = 1_000, 10_000, 100
"""How many jobs are looked at in one queue and in all queues, and how many queues."""
MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class WorkerReport:
    """A worker now. ``standing`` is its state, or ``silent`` when its heartbeat is overdue."""

    row: WorkerProcess
    standing: str

    @property
    def lives(self) -> bool:
        return self.standing == WorkerProcess.State.RUNNING

    @property
    def patterns(self) -> list[str]:
        """The queues that it takes, as patterns; a pattern that begins with ``!`` excludes queues."""
        return [text for text in self.row.queues if isinstance(text, str)] if isinstance(self.row.queues, list) else []

    @property
    def names(self) -> list[str]:
        """The queues that it names without a wildcard."""
        # A name that is not printable cannot be a queue's, and a page could not show it.
        return [text for text in self.patterns if "*" not in text and text[:1] != "!" and text.isprintable()]

    def takes(self, queue: str) -> bool:
        """Whether it takes jobs of a queue."""
        include = [text for text in self.patterns if not text.startswith("!")]
        exclude = [text[1:] for text in self.patterns if text.startswith("!")]
        return matches(queue, include) and not matches(queue, exclude)


def standing(row: WorkerProcess, now: datetime) -> str:
    """Return the state of a worker: ``running``, ``quiet``, ``stopping`` or ``silent``."""
    return SILENT if now - row.heartbeat_at > SILENT_AFTER else str(row.state)


def workers(using: str, now: datetime) -> list[WorkerReport]:
    """Return up to `MOST_WORKERS` workers, those with the latest heartbeat first. One statement."""
    rows = WorkerProcess.objects.using(using).order_by("-heartbeat_at", "pk")[:MOST_WORKERS]
    return [WorkerReport(row, standing(row, now)) for row in rows]


def is_stranded(queue: QueueReport, present: Iterable[WorkerReport]) -> bool:
    """Whether jobs wait in a queue, and none of the workers that is running takes it."""
    return queue.waiting > 0 and not any(worker.lives and worker.takes(queue.name) for worker in present)


def untaken(queue: str, present: Sequence[WorkerReport]) -> str:
    """Say that no running worker takes a queue; empty if one does, or if there are too many workers to know."""
    if len(present) >= MOST_WORKERS or any(worker.lives and worker.takes(queue) for worker in present):
        return ""
    if not any(worker.lives for worker in present):
        return Message("No worker runs: `manage.py runworker` starts one.")
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
    # The state implies that none has finished; the condition is there so that the index ojs_job_live is used.
    active = jobs.using(worker._state.db).filter(state=JobState.ACTIVE, finished_at__isnull=True)
    fields = ("type", "queue", "state", "started_at")
    return list(active.filter(worker_id=worker.pk).only(*fields).order_by("started_at", "pk")[:most])


def running(using: str) -> dict[str, list[Job]]:
    """Return up to `MOST_RUNNING` of the jobs that run now by the id of their worker, the earliest started first.

    One statement.
    """
    active = Job.objects.using(using).filter(state=JobState.ACTIVE, finished_at__isnull=True).order_by()
    found = active.only("type", "worker_id", "started_at", "progress")[:MOST_RUNNING]
    by_worker: dict[str, list[Job]] = {}
    for job in sorted((job for job in found if job.started_at), key=lambda job: (job.started_at, job.pk)):
        by_worker.setdefault(job.worker_id or "", []).append(job)
    return by_worker


def doubt(using: str, name: str) -> str:
    """Say that nothing knows a queue of this name, and which was probably meant; empty if the queue is known."""
    present = workers(using, timezone.now())
    known = in_code().union(used(using), *(worker.names for worker in present))
    if name in known or any(worker.takes(name) and "*" not in worker.patterns for worker in present):
        return ""
    close = nearest(name, known)
    meant = f"Did you mean {close!r}?" if close else "`jobs queues` shows those that have jobs."
    return f"Nothing knows the queue {name!r}: no job, no worker, no handler. {meant}"


def nobody(job: Any, using: str) -> str:
    """Say that no worker takes the queue of a waiting job; empty if one does. One statement, or two."""
    if job.state not in WAITING:
        return ""
    present = workers(using, timezone.now())
    if not (problem := untaken(job.queue, present)):
        return ""
    if not any(worker.lives and worker.names for worker in present):
        return problem
    return Message.joined(" ", filter(None, [problem, misspelt(job.queue, present, in_use(using))]))


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
