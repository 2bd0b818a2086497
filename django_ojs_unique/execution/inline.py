"""Run one claimed job in the caller's thread and on its connections: the worker's own code executes and finalizes it.

So the handler sees what the caller's transaction has not committed.
"""

from __future__ import annotations

from asyncio import CancelledError
from collections.abc import Sequence
from contextvars import Context
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from asgiref.sync import async_to_sync
from django.db import connections
from django.db.models import QuerySet

from .. import lifecycle
from ..db import sessions
from ..db.now import DatabaseNow
from ..exceptions import TransactionLeftOpen
from ..handlers.control import Discard, Retry, TimeLimitExceeded
from ..handlers.registry import registry
from ..lifecycle.events import collected
from ..models import Job
from . import atomic, run_result
from .execute import aexecute, execute
from .finalize import Finalized, announce_outcome, finalize
from .journal import Crashed
from .leases import store_progress
from .run import Run
from .run_result import RunResult


@dataclass(frozen=True, slots=True)
class Ran:
    """One run of a job: the job afterwards, the outcome, and the ``error`` that its handler raised, if any.

    ``outcome``: ``completed``, ``skipped``, ``retried``, ``discarded``, or ``refused`` if the job was cancelled or
    replaced while it ran, or if a test let it crash.
    """

    job: Job
    outcome: Finalized
    error: BaseException | None = None

    def or_raise(self, raise_errors: bool) -> Self:
        """Return this run, or raise its error: only if ``raise_errors``, and never `Retry` or `Discard`.

        An exception that is meant for the whole process, such as Ctrl-C or ``pytest.skip()``, is always raised.
        """
        error = self.error
        if error is None or isinstance(error, (Retry, Discard)):
            return self
        if raise_errors or not isinstance(error, (Exception, SystemExit, TimeLimitExceeded, CancelledError)):
            raise error
        return self


def run(jobs: QuerySet[Job], job: Job, *, lease: timedelta) -> Ran:
    """Execute and finalize a claimed job.

    Raises RuntimeError if another connection has locked its row, and what the database raises.
    """
    started = Run(job, lease=lease)
    started.outer_blocks = len(connections[jobs.db].atomic_blocks)
    ended = _execute(started)
    if started.progress is not None:
        store_progress(jobs, [(job, started.progress)])
    if isinstance(ended.exception, Crashed):
        # Nobody finalizes it, as if its process had died, and its lease runs out.
        lifecycle.write(atomic.leased(started), lease_expires_at=DatabaseNow() - timedelta(seconds=1))
        return Ran(jobs.get(pk=job.pk), Finalized.REFUSED)
    finalized = finalize(jobs, [ended])
    with collected(jobs.db):
        for each, outcome in finalized:
            announce_outcome(each, outcome, jobs.db)
    if not finalized:
        raise RuntimeError(f"Job {job.pk} cannot be finalized: another connection has locked its row.")
    return Ran(jobs.filter(pk=job.pk).first() or job, finalized[0][1], ended.exception)


def _execute(started: Run) -> RunResult:
    """Execute the job; then call the handler's on-commit callbacks in each transaction that the caller has open.

    In a test, such a transaction never commits.
    """
    open_ones = [connection for connection in connections.all(initialized_only=True) if connection.in_atomic_block]
    before = [(connection, connection.savepoint(), len(connection.run_on_commit)) for connection in open_ones]
    blocks = [(connection, len(connection.atomic_blocks)) for connection in open_ones]
    # In its own context, as in a worker: the caller does not see what a handler activates.
    ended = Context().run(_execute_here, started)
    if left := [connection.alias for connection, number in blocks if _leave_blocks(connection, number)]:
        ended = _left_open(started, ended, left)
    try:
        for connection, savepoint, callbacks in before:
            _repair(connection, savepoint, callbacks)
            _commit(connection, callbacks)
    except Exception as error:
        return run_result.failed(started, error)
    return ended


def _execute_here(started: Run) -> RunResult:
    is_async = registry.get(started.job.type).is_async
    with sessions.keeping():
        try:
            ended = (async_to_sync(aexecute) if is_async else execute)(started)
        except BaseException as error:  # asyncio lets SystemExit of any task end the event loop
            ended = run_result.failed(started, error)
        return _left_open(started, ended, left) if (left := sessions.renew()) else ended


def _left_open(started: Run, ended: RunResult, databases: Sequence[str]) -> RunResult:
    return run_result.failed(started, TransactionLeftOpen.on(databases)) if ended.error is None else ended


def _leave_blocks(connection: Any, number: int) -> bool:
    """Leave the blocks that the handler has left open within the caller's, as if it had failed; return whether any."""
    is_inside = len(connection.atomic_blocks) > number
    if is_inside:
        del connection.atomic_blocks[number:], connection.savepoint_ids[number - 1 :]
        connection.needs_rollback = True
    return is_inside


def _repair(connection: Any, savepoint: str | None, callbacks: int) -> None:
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
            _repair(connection, savepoint, more)
