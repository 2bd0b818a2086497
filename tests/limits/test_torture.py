"""Workers of eight processes run jobs of fifty keys; some die by kill -9, some are stopped beyond their leases.

The judge is what the handlers wrote. ``OJS_TORTURE_ROUNDS`` makes it longer, ``OJS_TORTURE_SEED`` repeats its choices.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import defaultdict
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.db import connection

from django_ojs_unique import Limit, job
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from tests.support.processes import Child, Parent, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
PROCESSES, PARTITIONS, JOBS, FAULTS = 8, 50, 600 * ROUNDS, 12 * ROUNDS
LEASE = timedelta(seconds=2)


def most(key: int) -> int:
    """How many jobs of a partition may run at once."""
    return key % 3 + 1


def run(parent: Parent, log: str, seed: str) -> None:
    """Be a worker until killed; each handler writes when it starts and when it ends."""
    dice = random.Random(seed)
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    def write(word: str, key: int, id: Any) -> None:
        os.write(file, f"{time.monotonic_ns()} {word} {os.getpid()} {key} {id}\n".encode())

    @job("limits.torture", retry={"max_attempts": 50, "initial_interval": "PT0.01S"}, takes_context=True)
    def handle(context: Any, key: int) -> None:
        write("start", key, context.job_id)
        try:
            time.sleep(dice.choice([0, 0, 0.01, 0.03]))  # the work
            if dice.random() < 0.1:
                raise RuntimeError("once more")
        finally:
            write("end", key, context.job_id)

    parent.tell("ready")
    Worker(concurrency=3, lease=LEASE).run()


def test_no_more_run_than_allowed_and_every_job_ends(start, tmp_path):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    log, over = tmp_path / "log", {}
    Job.objects.enqueue_many(
        {
            "type": "limits.torture",
            "args": {"key": key},
            "priority": dice.choice([0, 0, 1]),
            "retry": {"max_attempts": 50, "initial_interval": "PT0.01S"},
            "limit": [
                Limit(key=["args.key"], running=most(key)),
                *([Limit(name="all", running=PROCESSES)] if number % 2 else []),
            ],
        }
        for number, key in ((number, dice.randrange(PARTITIONS)) for number in range(JOBS))
    )

    def left() -> int:
        return Job.objects.filter(finished_at=None).count()

    workers: list[Child] = [start(run, str(log), f"{seed}.{number}") for number in range(PROCESSES)]
    for worker in workers:
        worker.hear()
    for fault in range(FAULTS):
        goal = JOBS - JOBS * (fault + 1) // (FAULTS + 2)
        until(lambda goal=goal: left() <= goal, f"{JOBS - goal} jobs ended")
        number = dice.randrange(PROCESSES)
        pid = workers[number].process.pid
        # A process that is stopped while it writes would stop all others on SQLite, which has one writer at a time.
        if connection.vendor == "sqlite" or dice.random() < 0.5:
            over[pid] = time.monotonic_ns()
            workers[number].kill()
            workers[number] = start(run, str(log), f"{seed}.{fault}.{number}")
            workers[number].hear()
        else:
            over[pid] = time.monotonic_ns()
            os.kill(pid, signal.SIGSTOP)
            try:
                wait_for_rescue(pid)
            finally:
                os.kill(pid, signal.SIGCONT)
            workers[number].kill()  # what it writes after its stop says nothing about its leases
            workers[number] = start(run, str(log), f"{seed}.{fault}.{number}")
            workers[number].hear()
    until(lambda: left() == 0, "every job ended")
    for worker in workers:
        worker.kill()
    assert Job.objects.filter(state="completed").count() == JOBS
    judge(log, over)


def wait_for_rescue(pid: int) -> None:
    """Wait until the jobs of a stopped process were taken from it, or it held none."""
    until(
        lambda: not Job.objects.filter(state="active", worker_id__contains=f":{pid}:").exists(),
        f"the jobs of process {pid} were rescued",
    )


def judge(log: Path, over: dict[int, int]) -> None:
    """Assert that no moment had more runs of a key than its limit; a run of a dead process ended with it."""
    starts: dict[tuple[str, ...], int] = {}
    moments: dict[int, list[tuple[int, int]]] = defaultdict(list)
    everything: list[tuple[int, int]] = []
    for line in log.read_text().splitlines():
        at, word, pid, key, id = line.split()
        end = min(int(at), over.get(int(pid), int(at)))
        if word == "start":
            starts[pid, key, id] = int(at)
        elif (began := starts.pop((pid, key, id))) < end:
            moments[int(key)] += [(began, 1), (end, -1)]
    for (pid, key, _), began in starts.items():
        if began < over[int(pid)]:
            moments[int(key)] += [(began, 1), (over[int(pid)], -1)]
    for key, changes in moments.items():
        assert peak(changes) <= most(key), f"key {key}"
        everything += changes
    assert max(peak(changes) for changes in moments.values()) > 1, "some jobs must have run side by side"
    print(f"{len(everything) // 2} runs, at most {peak(everything)} at once")


def peak(changes: list[tuple[int, int]]) -> int:
    """Return the most runs at one moment; a run that ends when another starts is over."""
    running = highest = 0
    for _, change in sorted(changes):
        running += change
        highest = max(highest, running)
    return highest
