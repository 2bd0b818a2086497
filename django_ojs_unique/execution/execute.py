"""Execute: call the handler of one claimed job and return the outcome; what its context may do to the job."""

from __future__ import annotations

import asyncio
from contextlib import nullcontext
from typing import Any

from asgiref.sync import sync_to_async

from ..db import sessions
from ..exceptions import TransactionLeftOpen
from ..handlers.carried import arestored, carries, restored
from ..handlers.context import JobContext
from ..handlers.control import Interrupted, Skip, TimeLimitExceeded
from ..handlers.registry import Definition, registry
from ..handlers.signature import acall, astill_wanted, call, still_wanted
from ..hooks import tracer
from ..signals import announce, job_started
from . import atomic, run_result
from .atomic import in_one_transaction
from .journal import Journal
from .run import Run
from .run_result import RunResult


def execute(run: Run) -> RunResult:
    """Run a job in this thread; an exception of the handler becomes an error record."""
    raised: BaseException | None = None
    with tracer().run(run.job) as report_end:
        try:
            with restored(run.job) if carries(run.job) else nullcontext():
                result = _run(run)
        except BaseException as error:
            ended, raised = run_result.failed(run, error), error
        else:
            ended = run_result.completed(run, result)
        # Before the outcome is finalized: that would wait for rows that a transaction left open has locked.
        if (left := sessions.renew(interrupted=run.interrupted)) and ended.error is None:
            raised = TransactionLeftOpen.on(left)
            ended = run_result.failed(run, raised)
        report_end(ended, raised)
    return ended


async def aexecute(run: Run) -> RunResult:
    """Run a job in this event loop; a timeout or a cancellation reaches the handler where it awaits."""
    deadline = asyncio.timeout(run.timeout)
    raised: BaseException | None = None
    with tracer().run(run.job) as report_end, sessions.sharing() as share:
        try:
            async with arestored(run.job) if carries(run.job) else nullcontext():
                result = await _arun(run, share, deadline)
        except BaseException as error:
            is_late = deadline.expired() and isinstance(error, TimeoutError)
            ended, raised = run_result.failed(run, TimeLimitExceeded() if is_late else error), error
        else:
            ended = run_result.completed(run, result)
        if share.leaves_something and (left := await sync_to_async(sessions.renew)(share)) and ended.error is None:
            raised = TransactionLeftOpen.on(left)
            ended = run_result.failed(run, raised)
        report_end(ended, raised)
    return ended


def _run(run: Run) -> Any:
    _announce_start(run)
    definition = registry.get(run.job.type)
    if definition.atomic:
        return in_one_transaction(run, lambda: _call(run, definition))
    return _call(run, definition)


def _call(run: Run, definition: Definition) -> Any:
    handle = JobHandle(run) if definition.takes_context else None
    context = None if handle is None else _context(run, handle)
    try:
        with run.block or nullcontext():
            args = run.job.args if definition.converter is None else definition.converter.from_json(run.job.args)
            if definition.skip_unless is not None and not still_wanted(definition, args):
                raise Skip(_reason(definition))
            run.refuse_late_start()
            return call(definition, args, context)
    except BaseException as error:
        if handle is not None:
            handle.journal.save_after(error)
        raise


async def _arun(run: Run, share: sessions.Share, deadline: asyncio.Timeout) -> Any:
    if job_started.has_listeners(type(run.job)):
        await sync_to_async(_announce_start)(run, share)
    definition = registry.get(run.job.type)
    handle = AsyncJobHandle(run) if definition.takes_context else None
    context = None if handle is None else _context(run, handle)
    try:
        async with deadline:
            args = run.job.args
            if definition.converter is not None:
                args = await sync_to_async(definition.converter.from_json)(args)
            if definition.skip_unless is not None and not await astill_wanted(definition, args):
                raise Skip(_reason(definition))
            run.refuse_late_start()
            return await acall(definition, args, context)
    except BaseException as error:
        if handle is not None and handle.journal.has_unsaved:
            await sync_to_async(handle.journal.save_after)(error)
        raise


def _announce_start(run: Run, share: sessions.Share | None = None) -> None:
    if job_started.receivers and job_started.has_listeners(type(run.job)):
        announce(job_started, type(run.job), job=run.job, using=run.job._state.db)
        sessions.renew_after_receivers(share)


def _context(run: Run, handle: JobHandle) -> JobContext:
    job = run.job
    return JobContext(
        job_id=job.pk,
        type=job.type,
        queue=job.queue,
        attempt=job.attempt,
        max_attempts=job.max_attempts,
        meta=job.meta,
        tags=job.tags,
        enqueued_at=job.enqueued_at,
        started_at=job.started_at,
        worker_id=job.worker_id,
        handle=handle,
        job=job,
    )


def _reason(definition: Definition) -> str:
    assert definition.skip_unless is not None
    return f"skip_unless {getattr(definition.skip_unless, '__qualname__', definition.skip_unless)} was false"


class JobHandle:
    """What a plain handler may do."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.report = run.report
        self.journal = Journal(run, self.checkpoint)

    def is_leased(self) -> bool:
        """Return whether the job is still leased: asks the database."""
        return not self._run.cancelled and atomic.leased(self._run).exists()

    def fence(self) -> None:
        """Lock the row until the caller's transaction ends. Raises LeaseLost, and RuntimeError without one."""
        atomic.fence(self._run)

    def complete(self, result: Any) -> None:
        """Complete the job in the caller's transaction. Raises LeaseLost, and RuntimeError where it has no place."""
        atomic.complete_here(self._run, result)

    def checkpoint(self) -> None:
        """Raise Interrupted if the worker stops."""
        if self._run.is_stopping:
            raise Interrupted


class AsyncJobHandle(JobHandle):
    """What an ``async def`` handler may do."""

    def is_leased(self) -> bool:
        """Return whether the job was still leased when the worker looked last."""
        return not self._run.cancelled
