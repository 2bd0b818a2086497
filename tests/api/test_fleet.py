"""Workers of both kinds on one queue, one of each killed: each job ends once, and runs again only if its worker died.

``OJS_FLEET_JOBS=5000`` makes it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from django_ojs_unique.models import Job
from tests.support.commands import Site, site
from tests.support.history import keeping_history, moves
from tests.support.processes import Parent
from tests.support.runs import audit_row, group, left

from .examples import load
from .servers import serving

pytestmark = [pytest.mark.every_database, pytest.mark.django_db(transaction=True), pytest.mark.torture]

JOBS = int(os.environ.get("OJS_FLEET_JOBS", "200"))
LEASE = 4.0
"""Seconds: as long as the test waits for what a killed worker had; a living one must not be silent for so long."""


def test_every_job_ends_once_whichever_worker_has_it_and_whoever_is_killed(tmp_path, transactional_db, start):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    token = Token.objects.create(user=User.objects.create_user("worker", is_staff=True))
    with serving(2) as urls, site(tmp_path) as place, keeping_history():
        inside = [place.runworker("--lease", str(LEASE), "--concurrency", "2") for _ in range(2)]
        place.wait(lambda: all(command.is_ready for command in inside), "the workers are ready")
        outside = [start(work, url, token.key, tmp_path) for url in urls]
        pids = [child.hear() for child in outside]
        supply = Supply(dice)
        supply.add(JOBS)
        place.wait(lambda: left() < JOBS * 2 // 3, "a third is done")
        place.wait(lambda: stops_at_work(pids[0], supply), "the first is at work")
        outside[0].kill()
        place.wait(lambda: stops_at_work(inside[0].pid, supply), "the other first is at work")
        inside[0].kill()
        place.wait(lambda: have_ended_some(place, {pids[1], inside[1].pid}, supply), "the others have ended some")
        place.wait(lambda: left() == 0, "all jobs have ended")
        audit(place, supply.count, killed={pids[0], inside[0].pid}, outside=set(pids))
        assert inside[1].stop() == 0
        outside[1].kill()


class Supply:
    """Enqueues jobs, and counts them."""

    def __init__(self, dice: random.Random) -> None:
        self.dice, self.count = dice, 0

    def add(self, count: int) -> None:
        Job.objects.enqueue_many(self._item() for _ in range(count))
        self.count += count

    def keep_up(self) -> None:
        """Enqueue some more if few are left."""
        if left() < JOBS // 10:
            self.add(JOBS // 10)

    def _item(self) -> dict[str, Any]:
        fails = self.dice.choices([0, 1], [9, 1])[0]
        return {"type": "torture.plain", "args": {"milliseconds": self.dice.choice([10, 20, 60]), "fails": fails}}


def stops_at_work(pid: int, supply: Supply) -> bool:
    """Stop a child that has a job just now; one that has none goes on."""
    supply.keep_up()
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)
    if Job.objects.filter(state="active", worker_id__contains=f":{pid}:").exists():
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def have_ended_some(place: Site, pids: set[int], supply: Supply) -> bool:
    """Return whether each of the processes has ended two jobs."""
    supply.keep_up()
    ended = Counter(event.pid for event in place.events("ended"))
    return all(ended[pid] >= 2 for pid in pids)


def audit(place: Site, count: int, killed: set[int], outside: set[int]) -> None:
    """Hold each row against what the database saw and what the handlers wrote."""
    history, runs = moves(), group(place.events())
    rows = list(Job.objects.all())
    assert len(rows) == count, "a job was lost, or stored twice"
    seen: Counter[str] = Counter()
    for row in rows:
        assert row.state == "completed", row.errors
        audit_row(row, history[row.pk], runs[row.pk], seen)
        unbroken = [run for run in runs[row.pk] if run.event == "began" and run.pid not in killed]
        failures = [run for run in runs[row.pk] if run.event not in ("began", "ended")]
        assert len(unbroken) <= 1 + len(failures), f"it ran again though its worker lived: {history[row.pk]}"
    by = Counter(move.pid in outside for of_job in history.values() for move in of_job if move.target == "completed")
    print(f"{dict(seen)}, {by[True]} completed outside, {by[False]} inside")
    assert by[True] > 1
    assert by[False] > 1
    assert seen["rescued"] + seen["rescued, uncounted"] >= 1


def work(parent: Parent, url: str, token: str, folder: Path) -> None:
    """Run the example's worker with a handler like that of the others."""
    example = load("worker.py")

    def write(event: str, job: dict[str, Any]) -> None:
        line = {"event": event, "job": job["id"], "attempt": job["attempt"], "pid": os.getpid(), "at": time.time()}
        file = os.open(folder / "runs", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        os.write(file, json.dumps(line).encode() + b"\n")
        os.close(file)

    def plain(job: dict[str, Any]) -> None:
        write("began", job)
        time.sleep(job["args"]["milliseconds"] / 1000)
        if job["attempt"] <= job["args"]["fails"]:
            write("ValueError", job)
            raise ValueError("now and then")
        write("ended", job)

    with httpx.Client(base_url=url, headers={"Authorization": f"Token {token}"}, timeout=60) as http:
        worker = example.Worker(http, ["default"], {"torture.plain": plain}, lease=LEASE)
        parent.tell(os.getpid())
        worker.run()
