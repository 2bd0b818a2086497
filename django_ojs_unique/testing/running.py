"""Run jobs in the test: the worker's own code claims, executes and settles them, one after the other, in this thread.

So the jobs see data that the test has not committed, and their errors reach the test.
"""

from __future__ import annotations

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

from ..db import sessions
from ..execution import execute, finished, leases
from ..execution.claim import claim
from ..execution.finished import Finished
from ..execution.run import Run
from ..execution.settle import Settled
from ..handlers.control import Discard, Retry, TimeLimitExceeded
from ..handlers.handler import Handler
from ..maintenance import cron, prune, sweep
from ..models import CronJob, Job, SuppressedEnqueue
from ..registry import registry
from ..worker import settler
from ..worker.hints import tell_of_unknown_types
from ..worker.queues import QueueFilter
from .capture import capture_jobs

LEASE = timedelta(minutes=1)
LIMIT = 1000

Types = str | Handler[..., Any] | Iterable[str | Handler[..., Any]]


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job: the job afterwards, the outcome, and the ``error`` that its handler raised, if any.

    ``outcome``: ``completed``, ``skipped``, ``retried``, ``discarded``, or ``refused`` if the job was cancelled or
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
    """Run the job that a worker would claim next, and return its run; None if no job is due.

    ``types``, ``queues``: only these; a queue may be a pattern such as ``mail-*``. An error of the handler is raised
    here after the job is settled, except `Retry` and `Discard`; with ``raise_errors=False`` it is only in ``error``.

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
    """Run jobs as `run_one` does until none is due, including those that they enqueue; return their runs.

    Jobs that are due later are left; `travel` makes them due. Raises AssertionError if more than ``limit`` jobs are
    due, because two jobs that enqueue each other would never end.
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
    tell_of_unknown_types(jobs, chosen)
    return done


def tick(*, using: str | None = None) -> list[Job]:
    """Enqueue the periodic jobs that are due, as a worker does from time to time; return the jobs.

    The first call stores the periodic jobs that handlers declare; their occurrences count from that moment.
    """
    now, using = timezone.now(), using or router.db_for_write(CronJob)
    cron.sync(using, now)
    with capture_jobs(using=using) as captured:
        cron.tick(using, now)
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
    prune.prune(jobs, now)
    SuppressedEnqueue.objects.using(jobs.db).prune(now)


def _run_next(jobs: QuerySet[Job], types: list[str], queues: QueueFilter, raise_errors: bool) -> Ran | None:
    now = timezone.now()
    sweep.rescue(jobs, now)
    sweep.promote(jobs, now)
    sweep.expire(jobs, now)
    taken = claim(
        jobs, queues=queues.waiting(jobs), types=types, limit=1, worker_id="test", lease=LEASE, now=timezone.now()
    )
    if not taken:
        return None
    ran = _run(jobs, taken[0])
    if ran.error is not None and _must_be_raised(ran.error, raise_errors):
        raise ran.error
    return ran


def _must_be_raised(error: BaseException, raise_errors: bool) -> bool:
    if isinstance(error, (Retry, Discard)):
        return False
    # An exception that ends the test itself is no failure of the handler: Ctrl-C, pytest.skip().
    return raise_errors or not isinstance(error, (Exception, TimeLimitExceeded, CancelledError))


def _run(jobs: QuerySet[Job], job: Job) -> Ran:
    started = Run(job, lease=LEASE)
    raised: list[BaseException] = []
    settled: list[tuple[Finished, Settled]] = []
    with _inside_the_test(started, raised):
        ended = _execute(started)
        if started.progress is not None:
            leases.store_progress(jobs, [(job, started.progress)])
        settling = settler.Settler(jobs, settled.extend)
        settling.put(ended)
        settling.settle_waiting()
    if not settled:
        raise RuntimeError(f"Job {job.pk} cannot be settled: another connection has locked its row.")
    return Ran(jobs.filter(pk=job.pk).first() or job, settled[0][1], raised[-1] if raised else None)


@contextmanager
def _inside_the_test(started: Run, raised: list[BaseException]) -> Iterator[None]:
    """Keep the test's connections, which a worker would close because they are in a transaction; note errors."""

    failed = finished.failed

    def note(failing: Run, error: BaseException) -> Finished:
        ended = failed(failing, error)
        if failing is started and ended.error is not None:  # not of a nested run, and not Skip
            raised.append(error)
        return ended

    with (
        patch.object(finished, "failed", note),
        patch.object(sessions, "renew", _keep),
    ):
        yield


def _keep(*args: Any, **options: Any) -> list[str]:
    return []


def _execute(started: Run) -> Finished:
    """Execute the job, then the handler's on-commit callbacks, as the test's transaction never commits."""
    is_async = registry.get(started.job.type).is_async
    open_ones = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    before = [(connection, connection.savepoint(), len(connection.run_on_commit)) for connection in open_ones]
    # In its own context, as in a worker: the test does not see what a handler activates.
    ended = Context().run(async_to_sync(execute.aexecute) if is_async else execute.execute, started)
    try:
        for connection, savepoint, callbacks in before:
            _mend(connection, savepoint, callbacks)
            _commit(connection, callbacks)
    except Exception as error:
        return finished.failed(started, error)
    return ended


def _mend(connection: Any, savepoint: str | None, callbacks: int) -> None:
    """Undo the run if one of its queries broke the transaction: in a worker, a handler has its own transaction."""
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
