"""Atomic: complete a job in the transaction in which its handler writes.

The completion is an UPDATE under the lease's token. Whoever took the job away has changed that token, so a handler that
lost its job commits nothing: its effects on the database happen once, however often the job runs.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NoReturn, TypeVar

from django.db import OperationalError, connections, transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..db.dialects import dialect_of
from ..db.statements import writes
from ..db.transactions import is_transient, may_start_over, pause_after
from ..exceptions import HandlerError, LeaseLost
from ..handlers.registry import registry
from ..ojs.states import JobState
from .run import Run
from .run_result import completion

logger = logging.getLogger("django_ojs_unique.worker")

MOST_TRIES = 5
"""How often to call the handler, in one attempt, whose transaction fails because of a concurrent one."""
LONG_SECONDS = 30.0
"""How many seconds a transaction may be open without a warning."""
_FENCE_FIRST = (
    "If this transaction has been open for a while, the worker has extended the lease meanwhile, which changes the row"
    " of the job: call context.fence() at the beginning of the transaction."
)

T = TypeVar("T")


def in_one_transaction(run: Run, work: Callable[[], T]) -> T:
    """Do the work of an ``atomic`` handler, and complete its job, in one transaction.

    After a deadlock or a serialisation failure the work is done again, in a new transaction. That one begins with a
    lock on the job's row: else the next extension of the lease could let it fail again. Raises what the work raises,
    LeaseLost, and HandlerError when the work writes to another database; nothing is committed then.
    """
    using = run.job._state.db
    for tries in range(MOST_TRIES):
        try:
            return _try(run, work, locks=tries > 0)
        except OperationalError as error:
            if tries + 1 == MOST_TRIES or run.is_committed or not may_start_over(using, error):
                raise
            logger.info("Job %s (%s) starts over: %s", run.job.pk, run.job.type, error, extra=run.labels())
        pause_after(tries)
    raise AssertionError("unreachable")


def leased(run: Run) -> QuerySet[Any]:
    """Select the job's row, if it is still leased."""
    job = run.job
    rows: QuerySet[Any] = type(job)._default_manager.using(job._state.db)
    return rows.filter(pk=job.pk, state=JobState.ACTIVE, lease_token=job.lease_token)


def is_in_transaction(run: Run) -> bool:
    """Whether the run has begun a transaction on the database of the jobs; one around it does not count."""
    return len(connections[run.job._state.db].atomic_blocks) > run.outer_blocks


def fence(run: Run) -> None:
    """Lock the job's row until the open transaction ends. Raises LeaseLost, and RuntimeError without a transaction."""
    _need_transaction(run, "context.fence()")
    rows = leased(run)
    with advising_fence():
        dialect_of(rows).take_write_lock()
        is_leased = rows.select_for_update().values_list("pk").first() is not None
    if not is_leased:
        lose(run)


def complete_here(run: Run, result: Any) -> None:
    """Complete the job in the open transaction of its handler.

    Raises LeaseLost, and RuntimeError without a transaction or in an ``atomic`` handler.
    """
    if registry.get(run.job.type).atomic:
        raise RuntimeError("This handler is atomic: return the result instead of calling context.complete().")
    _need_transaction(run, "context.complete()")
    transaction.on_commit(partial(_note_commit, run), using=run.job._state.db)
    with advising_fence():
        _complete(run, result)


@contextmanager
def advising_fence() -> Iterator[None]:
    """Let a serialisation failure in the handler's transaction also say how to avoid it."""
    try:
        yield
    except OperationalError as error:
        if is_transient(error) and error.args:
            error.args = (*error.args[:-1], f"{error.args[-1]}\n{_FENCE_FIRST}")
        raise


def _try(run: Run, work: Callable[[], T], *, locks: bool) -> T:
    using = run.job._state.db
    run.completion = None
    with transaction.atomic(using=using):
        began = time.monotonic()
        # The first of the callbacks: the job is completed, whatever becomes of the others.
        transaction.on_commit(partial(_note_commit, run), using=using)
        if locks:
            fence(run)
        with _no_writes_elsewhere(run):
            result = work()
        _complete(run, result)
    # Inside a transaction of the caller, such as that of a test, no callback has been called yet.
    _note_commit(run)
    if (seconds := time.monotonic() - began) > LONG_SECONDS:
        logger.warning(
            "The transaction of job %s (%s) was open for %d seconds, in which others waited for its rows. Do slow work"
            " before it: without atomic=True, with context.complete() at the end.",
            run.job.pk,
            run.job.type,
            seconds,
            extra=run.labels(),
        )
    return result


def _complete(run: Run, result: Any) -> None:
    job, done = run.job, completion(run, result)
    rows = type(job)._default_manager.using(job._state.db).filter(pk=job.pk)
    changes = {} if done.result is None else {"result": done.result}
    if not lifecycle.complete(rows, done.at, token=job.lease_token, **changes):
        lose(run)
    run.completion = done


def lose(run: Run) -> NoReturn:
    """Raise LeaseLost, and let the open transaction roll back, whoever catches the error."""
    if is_in_transaction(run):
        connection = connections[run.job._state.db]
        connection.set_rollback(True)
        # Without savepoints, the end of an inner block does not end the rollback.
        inner = connection.savepoint_ids[run.outer_blocks :]
        connection.savepoint_ids[run.outer_blocks :] = [None] * len(inner)  # type: ignore[list-item]
    raise LeaseLost


def _note_commit(run: Run) -> None:
    run.is_committed = True


def _need_transaction(run: Run, call: str) -> None:
    using = run.job._state.db
    if not is_in_transaction(run):
        raise RuntimeError(
            f"{call} needs a transaction on the database of the jobs. Call it inside of `with"
            f" transaction.atomic({'' if using == 'default' else f'using={using!r}'}):`."
        )


@contextmanager
def _no_writes_elsewhere(run: Run) -> Iterator[None]:
    """Refuse writes to other databases: they would be committed even if the transaction is rolled back."""
    using = run.job._state.db
    with ExitStack() as stack:
        for alias in connections:
            if alias != using:
                stack.enter_context(connections[alias].execute_wrapper(partial(_refuse_writes, run, alias)))
        yield


def _refuse_writes(
    run: Run, alias: str, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any
) -> Any:
    if writes(sql, connections[alias]):
        raise HandlerError(
            f"{registry.get(run.job.type).place} is atomic on the database {run.job._state.db!r}, but writes to"
            f" {alias!r}, which its transaction does not cover. Write there in a job of its own that this handler"
            f" enqueues, or in a handler without atomic=True."
        )
    return execute(sql, params, many, context)
