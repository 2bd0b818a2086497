"""Workers of several queues, plain and async, share limits and a rate, while some are killed, frozen and terminated.

Handlers write when they start and when they end; that judges. ``OJS_TORTURE_ROUNDS`` makes it longer: thirty rounds
take five minutes. ``OJS_TORTURE_SEED`` repeats its choices.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from django.db import connection

from django_ojs_unique import Limit, chain, job
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.worker import Worker
from tests.support.processes import Child, Parent, until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture, pytest.mark.release]

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
JOBS, WORKFLOWS = 60, 4
RETRY = {"max_attempts": 50, "initial_interval": "PT0.01S"}
LEASE = timedelta(seconds=2)
RUNNING, RATE = 4, 20
WORKERS = ("f", "g", "gh", "fgh")
"""The queues of each worker. The last one is never disturbed, so that each queue always has a worker."""
SEEN_SECONDS = 5
"""A job that has waited for so long is known to the claims of all workers."""
TOGETHER_SECONDS = 2
"""Within so many seconds, jobs that were claimed in their order may start in another."""


class Started(NamedTuple):
    at: int
    pid: int
    id: str


def run(parent: Parent, log: str, queues: str, seed: str) -> None:
    """Be a worker until killed or terminated."""
    file, dice = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), random.Random(seed)

    def write(word: str, context: Any) -> None:
        os.write(file, f"{time.monotonic_ns()} {word} {os.getpid()} {context.job_id}\n".encode())

    @job("siege.plain", takes_context=True)
    def plain(context: Any, n: int = 0) -> None:
        write("start", context)
        time.sleep(dice.choice([0, 0.01, 0.05]))  # the work
        write("end", context)

    @job("siege.async", takes_context=True)
    async def coroutine(context: Any, n: int = 0) -> None:
        write("start", context)
        await asyncio.sleep(dice.choice([0, 0.01, 0.05]))
        write("end", context)

    worker = Worker(queues=list(queues), concurrency=4, lease=LEASE)
    signal.signal(signal.SIGTERM, lambda *_: worker.stop())
    parent.tell("ready")
    worker.run()


def requests(dice: random.Random) -> Iterator[dict[str, Any]]:
    """Yield jobs that share a limit with weights, and others with a key each and a rate."""
    for number in range(JOBS):
        shared = Limit(name="shared", running=RUNNING, weight=dice.choice([1, 1, 1, RUNNING]))
        others = [Limit(key=["args.n"], running=1), Limit(name="rate", per_second=RATE)]
        yield {
            "type": dice.choice(["siege.plain", "siege.async"]),
            "queue": dice.choice("fgh"),
            "args": {"n": dice.randrange(5)},
            "limit": shared if number % 2 else others,
            "retry": RETRY,
        }


def test_limits_hold_in_their_order_whatever_becomes_of_the_workers(start, tmp_path):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice, log = random.Random(seed), tmp_path / "log"
    numbers = iter(range(10**6))

    def begin(queues: str) -> Child:
        child = start(run, str(log), queues, f"{seed}.{next(numbers)}")
        child.hear()
        return child

    ended: dict[int, int] = {}
    enqueued: dict[str, int] = {}
    cancelled: dict[str, int] = {}
    workers = [begin(queues) for queues in WORKERS]
    for _ in range(ROUNDS):
        for result in Job.objects.enqueue_many(requests(dice)):
            enqueued[str(result.job.id)] = time.monotonic_ns()
        flows = [chain(*[item(dice) for _ in range(3)]).enqueue() for _ in range(WORKFLOWS)]
        left = unfinished()
        until(lambda left=left: unfinished() <= left * 2 // 3, "a third of the jobs ended")
        number = dice.randrange(len(workers) - 1)
        for id in disturb(workers[number], dice, ended):
            enqueued.pop(id, None)  # they had their turn
        workers[number] = begin(WORKERS[number])
        for flow in flows[::2]:
            members = [str(id) for id in Job.objects.filter(workflow_id=flow.id).values_list("pk", flat=True)]
            with suppress(InvalidTransition):  # it has ended
                flow.cancel()
                cancelled |= dict.fromkeys(members, time.monotonic_ns())
        until(lambda left=left: unfinished() <= left // 3, "two thirds of the jobs ended")
    until(lambda: unfinished() == 0, "every job ended")
    until(lambda: not Workflow.objects.running().exists(), "every workflow ended")
    for worker in workers:
        worker.kill()
    assert set(Job.objects.values_list("state", flat=True)) <= {"completed", "cancelled"}
    runs = list(read(log, ended))
    judge_numbers(runs)
    judge_order([each for each, _ in runs], enqueued)
    late = [each for each, _ in runs if each.at > cancelled.get(each.id, each.at) + 10**9]
    assert late == [], "a job began more than a second after its cancellation"


def item(dice: random.Random) -> dict[str, Any]:
    type = dice.choice(["siege.plain", "siege.async"])
    return {"type": type, "queue": dice.choice("fgh"), "limit": Limit(name="shared", running=RUNNING), "retry": RETRY}


def unfinished() -> int:
    return Job.objects.filter(finished_at=None).count()


def disturb(worker: Child, dice: random.Random, ended: dict[int, int]) -> set[str]:
    """Kill a worker, terminate it, or freeze it until others have taken its jobs. Return the jobs that it held."""
    pid = worker.process.pid
    assert pid is not None
    # A process that is frozen while it writes would stop all others on SQLite, which has one writer at a time.
    fault = dice.choice(["kill", "terminate", "freeze"] if connection.vendor != "sqlite" else ["kill", "terminate"])
    os.kill(pid, signal.SIGSTOP)
    rows = Job.objects.filter(state="active", worker_id__contains=f":{pid}:")
    held = {str(id) for id in rows.values_list("pk", flat=True)}
    if fault == "terminate":
        worker.process.terminate()
        os.kill(pid, signal.SIGCONT)
        worker.result()
        return held
    ended[pid] = time.monotonic_ns()
    if fault == "freeze":
        until(lambda: not rows.exists(), f"the jobs of process {pid} were rescued")
    worker.kill()
    return held


def read(log: Path, ended: dict[int, int]) -> Iterator[tuple[Started, int]]:
    """Yield each run and when it ended: with its process, if that was killed before."""
    open: dict[tuple[int, str], Started] = {}
    for line in log.read_text().splitlines():
        at, word, pid, id = line.split()
        if word == "start":
            open[int(pid), id] = Started(int(at), int(pid), id)
        else:
            yield open.pop((int(pid), id)), int(at)
    yield from ((started, ended[started.pid]) for started in open.values())


def judge_numbers(runs: list[tuple[Started, int]]) -> None:
    """Assert that no partition had more runs at a moment than its limit says."""
    limits = dict(Job.objects.values_list("pk", "limits"))
    limits_of = {str(id): given or () for id, given in limits.items()}
    changes: dict[str, list[tuple[int, int]]] = defaultdict(list)
    most = {}
    for started, end in runs:
        for limit in limits_of[started.id]:
            if "running" in limit:
                weight, most[limit["id"]] = limit.get("weight", 1), limit["running"]
                changes[limit["id"]] += [(started.at, weight), (end, -weight)]
    for id, moments in changes.items():
        running = 0
        for _, change in sorted(moments):
            running += change
            assert running <= most[id]


def judge_order(runs: list[Started], enqueued: dict[str, int]) -> None:
    """Assert that no job was passed by a later one of the shared limit, once all claims knew the earlier one."""
    shared = {
        str(id) for id, limits in Job.objects.values_list("pk", "limits") if limits and limits[0]["name"] == "shared"
    }
    first: dict[str, int] = {}
    for started in sorted(runs):
        if started.id in shared and started.id in enqueued:
            first.setdefault(started.id, started.at)
    order = sorted(first, key=lambda id: (enqueued[id], id))
    for place, id in enumerate(order):
        known = enqueued[id] + SEEN_SECONDS * 10**9
        passed = [other for other in order[place + 1 :] if known < first[other] < first[id] - TOGETHER_SECONDS * 10**9]
        assert not passed, f"{id} was passed by {passed}"
    print(f"{len(runs)} runs, {len(first)} of them in order")
