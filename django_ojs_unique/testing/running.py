"""Run jobs in the test: the worker's own code claims, executes and finalizes them, one after the other, in this thread.

So the jobs see data that the test has not committed, and their errors reach the test.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Literal

from django.db import router
from django.db.models import QuerySet

from ..db.clock import database_now
from ..execution.claim import claim
from ..execution.finalize import Finalized
from ..execution.inline import Ran, run
from ..execution.journal import crashes
from ..handlers.handler import Handler
from ..handlers.registry import registry
from ..lifecycle import write
from ..maintenance import cron, inbox, prune, timers
from ..models import CronJob, Job, SuppressedEnqueue
from ..ojs.states import JobState
from ..worker.hints import tell_of_unknown_types
from ..worker.queues import QueueFilter
from ..workflows.advance import advance_all, fail_deleted
from .capture import capture_jobs

LEASE = timedelta(minutes=1)
LIMIT = 1000

Types = str | Handler[..., Any] | Iterable[str | Handler[..., Any]]


def run_one(
    *,
    types: Types | None = None,
    queues: str | Iterable[str] | None = None,
    using: str | None = None,
    raise_errors: bool = True,
) -> Ran | None:
    """Run the job that a worker would claim next, and return its run; None if no job is due.

    ``types``, ``queues``: only these; a queue may be a pattern such as ``mail-*``. An error of the handler is raised
    here after the job is finalized, except `Retry` and `Discard`; with ``raise_errors=False`` it is only in ``error``.

    Raises UnknownJobType for a type without a handler here.
    """
    jobs = Job.objects.using(using or router.db_for_write(Job))
    _prune(jobs)
    ran = _run_next(jobs, _names(types), _filter(queues))
    return None if ran is None else ran.or_raise(raise_errors)


def run_jobs(
    *,
    types: Types | None = None,
    queues: str | Iterable[str] | None = None,
    using: str | None = None,
    raise_errors: bool = True,
    limit: int = LIMIT,
    retries: bool = False,
) -> list[Ran]:
    """Run jobs as `run_one` does until none is due, including those that they enqueue; return their runs.

    Jobs that are due later are left; `travel` makes them due. With ``retries``, jobs that wait for a retry run at once,
    until they complete or give up: only an error of the last attempt is raised.

    Raises AssertionError if more than ``limit`` jobs are due, because two jobs that enqueue each other would never end.
    """
    jobs = Job.objects.using(using or router.db_for_write(Job))
    names, chosen = _names(types), _filter(queues)
    _prune(jobs)
    done: list[Ran] = []
    while True:
        ran = _run_next(jobs, names, chosen)
        if ran is None and retries and _hasten(jobs, names, chosen):
            ran = _run_next(jobs, names, chosen)
        if ran is None:
            break
        ran.or_raise(raise_errors and not (retries and ran.outcome is Finalized.RETRIED))
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
    using = using or router.db_for_write(CronJob)
    now = database_now(using)
    cron.sync(using, now)
    with capture_jobs(using=using) as captured:
        cron.tick(using, now)
    return captured.enqueued


@contextmanager
def crash_at(step: str, when: Literal["before", "done", "stored"] = "done") -> Iterator[None]:
    """Let the next handler that comes to a step crash there, once; `run_jobs` then runs its job again.

    ``when``: ``before`` the step's function is called; when it is ``done``, and its result is not stored yet; or when
    that is ``stored``. The open transaction of the handler is rolled back. In an ``atomic`` handler, so is the step.

    Raises AssertionError at the end of the block if no handler came to the step.
    """
    if when not in ("before", "done", "stored"):
        raise ValueError(f"when: must be 'before', 'done' or 'stored' (got {when!r}).")
    crashes.add((step, when))
    try:
        yield
        if (step, when) in crashes:
            raise AssertionError(f"No handler came to step {step!r} ({when}). Is it stored already, or misspelt?")
    finally:
        crashes.discard((step, when))


@contextmanager
def temporary_handlers() -> Iterator[None]:
    """At the end of the block, remove the handlers that `@job` declared in it, and restore those that it replaced."""
    before = registry.definitions()
    try:
        yield
    finally:
        for type in list(registry):
            registry.unregister(type)
        for definition in before:
            registry.register(definition)


def _names(types: Types | None) -> list[str]:
    if types is None:
        return list(registry)
    several = [types] if isinstance(types, (str, Handler)) else types
    return [registry.get(each.definition.type if isinstance(each, Handler) else each).type for each in several]


def _filter(queues: str | Iterable[str] | None) -> QueueFilter:
    return QueueFilter([queues] if isinstance(queues, str) else queues)


def _prune(jobs: QuerySet[Job]) -> None:
    now = database_now(jobs.db)
    prune.prune(jobs, now)
    SuppressedEnqueue.objects.using(jobs.db).prune(now)


def _hasten(jobs: QuerySet[Job], types: list[str], queues: QueueFilter) -> int:
    """Make the retries due that wait for their time; return how many."""
    now = database_now(jobs.db)
    waiting = timers.timed(jobs).filter(state=JobState.RETRYABLE, type__in=types, run_at__gt=now)
    ids = [id for id, queue in waiting.values_list("pk", "queue") if queue in queues]
    return write(jobs.filter(pk__in=ids), run_at=now)


def _run_next(jobs: QuerySet[Job], types: list[str], queues: QueueFilter) -> Ran | None:
    while inbox.decide(jobs).count:  # a thousand at a time
        pass
    now = database_now(jobs.db)
    timers.rescue(jobs, now)
    timers.promote(jobs, now)
    while fail_deleted(jobs.db):  # a thousand at a time
        pass
    advance_all(jobs.db)
    while timers.expire(jobs, now):  # a workflow may wait for one of them, and its next step may have expired, too
        advance_all(jobs.db)
    taken = claim(
        jobs,
        queues=queues.waiting(jobs),
        types=types,
        limit=1,
        worker_id="test",
        lease=LEASE,
        now=database_now(jobs.db),
        leaves_slots=False,
    )
    if not taken:
        return None
    return run(jobs, taken[0], lease=LEASE)
