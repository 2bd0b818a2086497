"""Run jobs in the test: the worker's own code claims, executes and settles them, one after the other, in this thread.

So they see what the test has not committed, and their failures reach the test.
"""

from __future__ import annotations

import logging
from asyncio import CancelledError
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from unittest.mock import patch

from asgiref.sync import async_to_sync
from django.db import connections, router
from django.db.models import QuerySet
from django.utils import timezone

from ..control import Discard, Retry, TimeLimitExceeded
from ..handlers import Handler
from ..models import CronJob, Job, SuppressedAttempt
from ..registry import registry
from ..worker import hold, maintain, retention, run, schedule, settler
from ..worker.claim import claim
from ..worker.queues import QueueFilter
from ..worker.run import Finished, Run
from ..worker.settle import Settled
from .capture import capture_jobs

logger = logging.getLogger("django_ojs_unique.worker")

LEASE = timedelta(minutes=1)
LIMIT = 1000

Types = str | Handler[..., Any] | Iterable[str | Handler[..., Any]]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job: the job as it is now, what became of the run, and what its handler raised.

    ``outcome`` is ``completed``, ``skipped``, ``retried``, ``discarded``, or ``refused``: the job was cancelled or
    replaced while it ran.
    """

    job: Job
    outcome: Settled
    error: BaseException | None = None


def run_one(
    *,
    types: Types | None = None,
    queues: str | Iterable[str] | None = None,
    using: str | None = None,
    raise_errors: bool = True,
) -> Ran | None:
    """Run the job that a worker would take next, and return what became of it; None when no job is due.

    ``types``, ``queues``: only these; a queue may be a pattern such as ``mail-*``. What a handler raises is raised here
    once it is settled, `Retry` and `Discard` excepted; with ``raise_errors=False`` it is the ``error`` of the answer.

    Raises UnknownJobType for a type without a handler here.
    """
    jobs = Job.objects.using(using or router.db_for_write(Job))
    _prune(jobs)
    return _run_next(jobs, _names(types), _filter(queues), raise_errors)


def run_jobs(
    *,
    types: Types | None = None,
    queues: str | Iterable[str] | None = None,
    using: str | None = None,
    raise_errors: bool = True,
    limit: int = LIMIT,
) -> list[Ran]:
    """Run jobs as `run_one` does until none is due, those that they enqueue included; return what became of each.

    Jobs that are due later stay, until `travel` makes them due. Raises AssertionError when more than ``limit`` jobs
    are due: two jobs that enqueue each other would never end.
    """
    jobs = Job.objects.using(using or router.db_for_write(Job))
    names, chosen = _names(types), _filter(queues)
    _prune(jobs)
    done: list[Ran] = []
    while (ran := _run_next(jobs, names, chosen, raise_errors)) is not None:
        if len(done) == limit:
            last = ", ".join(dict.fromkeys(each.job.type for each in [*done[-9:], ran]))
            raise AssertionError(
                f"More than {limit:,} jobs were due, the last ones of {last}. Do they enqueue each other without end?"
                " If not, give run_jobs() a higher limit."
            )
        done.append(ran)
    if strangers := maintain.unknown_types(jobs, list(registry), chosen.waiting(jobs)):
        logger.warning("Jobs wait for handlers that are not here: %s.", ", ".join(strangers[:10]))
    return done


def tick(*, using: str | None = None) -> list[Job]:
    """Enqueue the periodic jobs that are due, as a worker does now and then; return them.

    The first time, what handlers declare is written down, and its occurrences count from there.
    """
    now, using = timezone.now(), using or router.db_for_write(CronJob)
    schedule.sync(using, now)
    with capture_jobs(using=using) as captured:
        schedule.tick(using, now)
    return captured.enqueued


def _names(types: Types | None) -> list[str]:
    if types is None:
        return list(registry)
    several = [types] if isinstance(types, (str, Handler)) else types
    return [registry.get(each.definition.type if isinstance(each, Handler) else each).type for each in several]


def _filter(queues: str | Iterable[str] | None) -> QueueFilter:
    return QueueFilter([queues] if isinstance(queues, str) else queues)


def _prune(jobs: QuerySet[Job]) -> None:
    now = timezone.now()
    retention.prune(jobs, now)
    SuppressedAttempt.objects.using(jobs.db).prune(now)


def _run_next(jobs: QuerySet[Job], types: list[str], queues: QueueFilter, raise_errors: bool) -> Ran | None:
    now = timezone.now()
    maintain.rescue(jobs, now)
    maintain.promote(jobs, now)
    maintain.expire(jobs, now)
    claimed = claim(
        jobs, queues=queues.waiting(jobs), types=types, limit=1, worker_id="test", lease=LEASE, now=timezone.now()
    )
    if not claimed:
        return None
    ran = _run(jobs, claimed[0])
    if ran.error is not None and _must_be_raised(ran.error, raise_errors):
        raise ran.error
    return ran


def _must_be_raised(error: BaseException, raise_errors: bool) -> bool:
    if isinstance(error, (Retry, Discard)):
        return False
    # What ends the test itself is no failure of the handler: Ctrl-C, pytest.skip().
    return raise_errors or not isinstance(error, (Exception, TimeLimitExceeded, CancelledError))


def _run(jobs: QuerySet[Job], job: Job) -> Ran:
    started = Run(job, lease=LEASE)
    raised: list[BaseException] = []
    settled: list[tuple[Finished, Settled]] = []
    with _inside_the_test(started, raised):
        finished = _execute(started)
        if started.progress is not None:
            hold.store_progress(jobs, [(job, started.progress)])
        settling = settler.Settler(jobs, settled.extend)
        settling.put(finished)
        settling.settle_waiting()
    if not settled:
        raise RuntimeError(f"Job {job.pk} cannot be settled: another connection has locked its row.")
    return Ran(jobs.filter(pk=job.pk).first() or job, settled[0][1], raised[-1] if raised else None)


@contextmanager
def _inside_the_test(started: Run, raised: list[BaseException]) -> Iterator[None]:
    """Keep the test's connections, which a worker would close as left inside a transaction; note what is raised."""
    failed = run._failed

    def note(failing: Run, error: BaseException) -> Finished:
        finished = failed(failing, error)
        if failing is started and finished.error is not None:  # no run inside this one, and no Skip
            raised.append(error)
        return finished

    with (
        patch.object(run, "_failed", note),
        patch.object(run, "drop_broken_connections", _keep),
        patch.object(settler, "drop_broken_connections", _keep),
    ):
        yield


def _keep(*, interrupted: bool = False) -> None:
    pass


def _execute(started: Run) -> Finished:
    """Execute, then do what the handler left for the commit, which the test's transaction would never do."""
    is_async = registry.get(started.job.type).is_async
    open_ones = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    before = [(connection, connection.savepoint(), len(connection.run_on_commit)) for connection in open_ones]
    # In a context of its own, as in a worker: what a handler activates is not seen by the test.
    finished = Context().run(async_to_sync(run.aexecute) if is_async else run.execute, started)
    try:
        for connection, savepoint, callbacks in before:
            _mend(connection, savepoint, callbacks)
            _commit(connection, callbacks)
    except Exception as error:
        return run._failed(started, error)
    return finished


def _mend(connection: Any, savepoint: str | None, callbacks: int) -> None:
    """Go back to before the run if a query of it broke the transaction: a worker's handler has one of its own."""
    if connection.needs_rollback or not connection.is_usable():
        connection.needs_rollback = False
        connection.savepoint_rollback(savepoint)
        del connection.run_on_commit[callbacks:]
    else:
        connection.savepoint_commit(savepoint)


def _commit(connection: Any, callbacks: int) -> None:
    while len(connection.run_on_commit) > callbacks:
        _, callback, is_robust = connection.run_on_commit.pop(callbacks)
        savepoint, more = connection.savepoint(), len(connection.run_on_commit)
        try:
            callback()
        except Exception:
            if not is_robust:
                raise
        finally:
            _mend(connection, savepoint, more)
