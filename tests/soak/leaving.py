"""Handlers of the siege, which leave something behind. Types ``limit.*`` have a time limit of `LIMIT_SECONDS`."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import get_context
from threading import Event, Thread
from typing import Any

from django.db import transaction

from django_ojs_unique import JobContext, job
from django_ojs_unique.models import Job

from . import LIMIT_SECONDS, RETRY
from .logs import written

FEW = {**RETRY, "max_attempts": 3}
_tasks: list[Any] = []
LIMITED: dict[str, Any] = {"takes_context": True, "retry": FEW, "timeout": LIMIT_SECONDS}


def leaving(name: str) -> Callable[[Callable[[], Any]], Any]:
    """Declare a plain handler that calls a function, which leaves something behind."""

    def declare(function: Callable[[], Any]) -> Any:
        @job(name, takes_context=True, retry=FEW)
        def handler(context: JobContext) -> Any:
            with written(context):
                return function()

        return function

    return declare


# Time limits. Of a handler that never ends, the log has no end: it says so at once.


@job("limit.plain", **LIMITED)
def plain(context: JobContext) -> None:
    with written(context):
        while True:
            time.sleep(0.01)


@job("limit.atomic", atomic=True, **LIMITED)
def in_a_transaction(context: JobContext) -> None:
    """Hold the lock of the job's own row, on SQLite that of the database."""
    with written(context):
        Job.objects.filter(pk=context.job_id).update(progress_note="locked")
        while True:
            time.sleep(0.01)


@job("limit.async", **LIMITED)
async def awaits(context: JobContext) -> None:
    with written(context):
        await asyncio.Event().wait()


@job("limit.swallows", **LIMITED)
def swallows(context: JobContext) -> None:
    with written(context):
        pass
    while True:
        try:
            time.sleep(0.1)
        except BaseException:
            continue


@job("limit.blocks", **LIMITED)
def blocks(context: JobContext) -> None:
    with written(context):
        pass
    Event().wait()


@job("limit.async.swallows", **LIMITED)
async def swallows_async(context: JobContext) -> None:
    with written(context):
        pass
    while True:
        try:
            await asyncio.sleep(0.1)
        except BaseException:
            continue


# What outlives a handler


@leaving("leave.transaction")
def leave_a_transaction() -> None:
    transaction.atomic().__enter__()
    Job.objects.filter(type="nothing").update(progress_note="")  # takes the lock of SQLite


@leaving("leave.autocommit")
def leave_autocommit_off() -> None:
    transaction.set_autocommit(False)
    Job.objects.count()


@leaving("leave.thread")
def leave_a_thread() -> None:
    Thread(target=Event().wait, daemon=False).start()


@leaving("leave.executor")
def leave_an_executor() -> None:
    ThreadPoolExecutor().submit(Event().wait)


@leaving("leave.program")
def leave_a_program() -> None:
    subprocess.Popen(["sleep", "3"])


@leaving("leave.process")
def leave_a_process() -> None:
    get_context("fork").Process(target=signal.pause, daemon=True).start()


@leaving("leave.exit")
def leave() -> None:
    raise SystemExit(3)


@leaving("leave.promise")
def leave_a_promise() -> Any:
    return asyncio.Event().wait()


@job("leave.async", takes_context=True, retry=FEW)
async def leave_tasks(context: JobContext) -> None:
    with written(context):
        _tasks.append(asyncio.create_task(asyncio.Event().wait()))
        asyncio.get_running_loop().run_in_executor(None, Event().wait)


@job("leave.async.exit", takes_context=True, retry=FEW)
async def leave_async(context: JobContext) -> None:
    with written(context):
        raise SystemExit(3)
