"""Handlers that write each start and end into one file, and some of which wait until a gate is opened."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from threading import Thread
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_ojs_unique import JobContext, job
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.worker import claimed_runs, housekeeper, pools

FOLDER = Path(os.environ.get("OJS_TEST_FOLDER", "/nowhere"))
SOON = {"initial_interval": "PT0.05S", "backoff_strategy": "constant", "jitter": False}

pools.WORK_AHEAD_SECONDS = float(os.environ.get("OJS_TEST_WORK_AHEAD", pools.WORK_AHEAD_SECONDS))
claimed_runs.LONGEST_UNSTARTED = pools.LONGEST_UNSTARTED = float(
    os.environ.get("OJS_TEST_LONGEST_UNSTARTED", pools.LONGEST_UNSTARTED)
)
housekeeper.SCAN_SECONDS = float(os.environ.get("OJS_TEST_SCAN", housekeeper.SCAN_SECONDS))
claimed_runs.WRITE_OFF_SECONDS = float(os.environ.get("OJS_TEST_WRITE_OFF", claimed_runs.WRITE_OFF_SECONDS))
if "OJS_TEST_RESCUES" in os.environ:  # nobody
    timers.rescue = lambda jobs, now: 0


def write(event: str, context: JobContext) -> None:
    """Append a line in one step, whoever else writes, and whatever becomes of this process next."""
    line = {"event": event, "job": str(context.job_id), "attempt": context.attempt, "pid": os.getpid()}
    file = os.open(FOLDER / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, json.dumps({**line, "at": time.time()}).encode() + b"\n")
    os.close(file)


@contextmanager
def written(context: JobContext) -> Iterator[None]:
    write("began", context)
    try:
        yield
    except BaseException as error:
        write(type(error).__name__, context)
        raise
    write("ended", context)


def hold(context: JobContext, gate: str, fails: bool = False) -> None:
    """Wait until the gate is open."""
    with written(context):
        while not (FOLDER / gate).exists():
            time.sleep(0.005)
        if fails:
            raise ValueError("on demand")


async def ahold(context: JobContext, gate: str) -> None:
    with written(context):
        while not (FOLDER / gate).exists():
            await asyncio.sleep(0.005)


job("hold", takes_context=True, retry=SOON)(hold)
job("hold.shortly", takes_context=True, retry=SOON, lease="PT1S")(hold)
job("hold.once", takes_context=True, retry={"max_attempts": 1})(hold)
job("hold.async", takes_context=True, retry=SOON)(ahold)


def fork(context: JobContext) -> None:
    """Fork a child that would never end, end it as `multiprocessing` does, and write down its exit code."""
    child = get_context("fork").Process(target=_wait_for_ever, daemon=True)
    child.start()
    child.terminate()
    child.join()
    write(f"exit code {child.exitcode}", context)


def _wait_for_ever() -> None:
    while True:
        signal.pause()


def start(context: JobContext) -> None:
    """Start a program that sends itself Ctrl-C, and write down its exit code."""
    program = subprocess.run(["sh", "-c", "kill -INT $$"], check=False)
    write(f"exit code {program.returncode}", context)


def in_the_loop(function: Callable[[JobContext], None]) -> Any:
    async def handler(context: JobContext) -> None:
        function(context)

    return handler


for function in (fork, start):
    job(function.__name__, takes_context=True)(function)
    job(f"{function.__name__}.async", takes_context=True)(in_the_loop(function))


async def leave_a_call(context: JobContext) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(0.01):
            await asyncio.to_thread(finish, context)


def finish(context: JobContext) -> None:
    """Go on after the job, until a gate is opened."""
    while not (FOLDER / "threads").exists():
        time.sleep(0.005)
    write("finished", context)


job("leave.thread", takes_context=True)(lambda context: Thread(target=finish, args=[context], daemon=False).start())
job("leave.executor", takes_context=True)(lambda context: ThreadPoolExecutor().submit(finish, context) and None)
job("leave.to_thread", takes_context=True)(leave_a_call)


def leave_a_process(context: JobContext, daemon: bool) -> None:
    """Start a process that would never end, and write down its id."""
    child = get_context("fork").Process(target=_wait_for_ever, daemon=daemon)
    child.start()
    write(f"pid {child.pid}", context)


job("leave.process", takes_context=True)(leave_a_process)


@job("leave.handler", takes_context=True)
def never_end(context: JobContext) -> None:
    write("began", context)
    _wait_for_ever()


ONCE: Any = {"retry": {"max_attempts": 1}}


@job("end.late", timeout="PT0.1S", **ONCE)
def go_on() -> None:
    while True:
        with suppress(BaseException):
            time.sleep(0.01)


@job("end.late.async", timeout="PT0.1S", **ONCE)
async def go_on_in_the_loop() -> None:
    while True:
        with suppress(BaseException):
            await asyncio.sleep(0.01)


def leave_a_transaction() -> None:
    transaction.atomic().__enter__()
    Job.objects.filter(type="quick").update(progress_note="undone")


def leave() -> None:
    raise SystemExit(3)


def promise() -> Any:
    return asyncio.sleep(0)


def in_a_thread(function: Callable[[], Any]) -> Any:
    async def handler() -> Any:
        return await sync_to_async(function)()

    return handler


for name, end in {"transaction": leave_a_transaction, "exit": leave, "promise": promise}.items():
    job(f"end.{name}", **ONCE)(partial(end))
    job(f"end.{name}.async", **ONCE)(in_a_thread(end))


@job("quick", takes_context=True)
def quick(context: JobContext, **args: Any) -> None:
    write("began", context)
    write("ended", context)


@job("torture.plain", takes_context=True, retry={**SOON, "max_attempts": 30})
def plain(context: JobContext, milliseconds: int = 0, fails: int = 0, looks: bool = False) -> None:
    with written(context):
        time.sleep(milliseconds / 1000)
        if looks:
            Job.objects.filter(pk=context.job_id).get()
        if context.attempt <= fails:
            raise ValueError("now and then")


@job("torture.async", takes_context=True, retry={**SOON, "max_attempts": 30})
async def slow(context: JobContext, milliseconds: int = 0, fails: int = 0) -> None:
    with written(context):
        await asyncio.sleep(milliseconds / 1000)
        if context.attempt <= fails:
            raise ValueError("now and then")


@job("torture.poison", takes_context=True, retry={**SOON, "max_attempts": 2})
def poison(context: JobContext) -> None:
    write("began", context)
    os.kill(os.getpid(), signal.SIGKILL)


def add(context: JobContext, account: int, dies: int = 0) -> None:
    """Add 1 to a balance, and enqueue a job that says so; let the first run die after so many statements."""

    def reached(number: int) -> None:
        if dies == number and not context.job.errors:
            os.kill(os.getpid(), signal.SIGKILL)

    with connection.cursor() as cursor:
        cursor.execute("UPDATE balance SET amount = amount + 1 WHERE account = %s", [account])
    reached(1)
    Job.objects.enqueue("torture.follow", {"of": str(context.job_id)}, queue="later")
    reached(2)
    transaction.on_commit(lambda: reached(3))


job("torture.add", takes_context=True, retry={**SOON, "max_attempts": 100})(add)
job("torture.add.atomic", takes_context=True, retry={**SOON, "max_attempts": 100}, atomic=True)(add)
job("torture.follow")(lambda of: None)


@job("torture.steps", takes_context=True, retry={**SOON, "max_attempts": 20})
def walk(context: JobContext, dies: float = 0) -> None:
    """Do three steps; let the first run die in one of them (1, 2, 3), or after one (1.5, 2.5)."""

    def do(number: int) -> int:
        write(f"step {number} {context.idempotency_key(str(number))}", context)
        reached(number)
        return number

    def reached(place: float) -> None:
        if dies == place and not context.job.errors:
            os.kill(os.getpid(), signal.SIGKILL)

    for number in (1, 2, 3):
        assert context.step(f"step {number}", do, number) == number
        reached(number + 0.5)
