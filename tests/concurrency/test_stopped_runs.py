"""Jobs are replaced and cancelled while they run in several processes, one of which is killed: one runs at a time.

The judge is what the handlers wrote.
"""

from __future__ import annotations

import os
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db.models import F

from django_ojs_unique import Limit, job
from django_ojs_unique.models import Job
from django_ojs_unique.reporting.stopped import stopped
from django_ojs_unique.worker import Worker
from tests.limits.test_torture import peak
from tests.support.processes import Parent, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

PROCESSES, KEYS = 3, 3
ROUNDS = 16 * int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
LEASE = timedelta(seconds=3)


def run(parent: Parent, log: str) -> None:
    """Be a worker until killed; a handler goes on for a while, whatever becomes of its job."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(word: str, key: int) -> None:
        os.write(file, f"{time.monotonic_ns()} {word} {os.getpid()} {key}\n".encode())

    @job("stopped", takes_context=True)
    def handle(context: Any, key: int) -> None:
        write("start", key)
        for _ in range(15):
            assert context.cancelled in (False, True)  # a query: the work
        write("end", key)

    parent.tell("ready")
    Worker(concurrency=KEYS, lease=LEASE).run()


def test_no_more_run_than_the_limit_says(start, tmp_path):
    log, over = tmp_path / "log", {}
    workers = [start(run, str(log)) for _ in range(PROCESSES)]
    for worker in workers:
        worker.hear()
    for number in range(ROUNDS):
        for key in range(KEYS):
            Job.objects.enqueue(
                "stopped",
                {"key": key},
                unique={"keys": ["type", "args"], "on_conflict": "replace"},
                limit=Limit(key=["args.key"], running=1),
            )
        until(lambda: Job.objects.filter(state="active").exists() or not left(), "some job runs, or all have ended")
        if number % 3 == 0:
            Job.objects.filter(state="active").cancel()
        if number == ROUNDS // 2:
            over[workers[0].process.pid] = time.monotonic_ns()
            workers[0].kill()
    until(lambda: not left(), "every job ended")
    until(lambda: not stopped("default").exists(), "every worker let go")
    for worker in workers:
        worker.kill()
    assert Job.objects.filter(state="cancelled", started_at__gte=F("created_at")).count() > KEYS
    judge(log, over)


def left() -> bool:
    return Job.objects.filter(finished_at=None).exists()


def judge(log: Path, over: dict[int, int]) -> None:
    """Assert that no two runs of a key overlapped; a run of the dead process ended with it."""
    began: dict[tuple[str, str], int] = {}
    moments: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for line in log.read_text().splitlines():
        at, word, pid, key = line.split()
        if word == "start":
            assert (pid, key) not in began, "a process ran two of a key"
            began[pid, key] = int(at)
        else:
            moments[key] += [(began.pop((pid, key)), 1), (int(at), -1)]
    for (pid, key), start in began.items():
        moments[key] += [(start, 1), (over[int(pid)], -1)]
    assert {key: peak(changes) for key, changes in moments.items()} == dict.fromkeys(moments, 1)
    assert len(moments) == KEYS
