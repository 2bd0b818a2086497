"""Workers die, freeze and lose their lines at any moment; what atomic handlers wrote happened once for each job.

``OJS_TORTURE_JOBS=10000`` makes it longer.
"""

from __future__ import annotations

import os
import random
import signal
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from typing import Any

import pytest
from django.db import connection, connections

from django_ojs_unique.db.now import DatabaseNow
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from tests.support.commands import Command, Site, site
from tests.support.outage import Outage, Proxy

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

JOBS = int(os.environ.get("OJS_TORTURE_JOBS", "150"))
WORKERS, ROUNDS, ACCOUNTS = 3, 5, 40
CUTS = 0.0005
DEATHS = 12
"""How many jobs let their process die, at least."""


@contextmanager
def balances() -> Iterator[None]:
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE balance (account int PRIMARY KEY, amount int NOT NULL)")
        cursor.executemany("INSERT INTO balance VALUES (%s, 0)", [(number,) for number in range(ACCOUNTS)])
    try:
        yield
    finally:
        connections.close_all()
        with connection.cursor() as cursor:
            cursor.execute("DROP TABLE balance")


class Crew:
    """Keeps three workers running, whose lines may be cut after any message."""

    def __init__(self, place: Site, outage: Outage | None) -> None:
        self.place, self.outage = place, outage
        self.lost: Counter[str] = Counter()
        self.running = [self.start() for _ in range(WORKERS)]

    def start(self) -> Command:
        options = ("--queue", "default", "--lease", "1.5", "--shutdown-timeout", "0.02")
        return self.place.runworker(*options, outage=self.outage)

    def is_complete(self) -> bool:
        """Replace those that have died, and say that all are there."""
        for number, command in enumerate(self.running):
            if not command.alive:
                self.lost[f"died with {command.wait()}"] += 1
                self.running[number] = self.start()
        return True

    def disturb(self) -> None:
        """Kill one, and freeze one for longer than its leases."""
        self.running[0].signal(signal.SIGKILL)
        self.running[0].wait()
        frozen = self.running[1]
        if frozen.alive and connection.vendor != "sqlite":  # there it could hold the only write lock
            frozen.signal(signal.SIGSTOP)
            held = Job.objects.filter(state="active", worker_id__contains=f":{frozen.pid}:")
            held = held.filter(lease_expires_at__gt=DatabaseNow())
            self.place.wait(lambda: not held.exists(), "the leases of a frozen worker ran out")
            frozen.signal(signal.SIGCONT)
            self.lost["frozen"] += 1


def torture(folder: Any, type: str) -> tuple[int, Counter[str], set[str]]:
    """Let workers run many jobs; return the sum of the balances, the jobs that follow by cause, and who completed."""
    lines = nullcontext(None) if connection.vendor == "sqlite" else closing(Proxy(cuts=CUTS))
    with site(folder) as place, balances(), lines as outage:
        crew = Crew(place, outage)
        waits = Job.objects.filter(queue="default").exclude(state__in=sorted(TERMINAL))
        for _ in range(ROUNDS):
            batch = Job.objects.enqueue_many([item(type, number) for number in range(JOBS // ROUNDS)])
            place.wait(lambda: crew.is_complete() and waits.count() < JOBS // ROUNDS // 2, "half a round is done")
            Job.objects.filter(pk__in=[batch[number].job.pk for number in (-1, -2, -3)]).cancel()
            crew.disturb()
        place.wait(lambda: crew.is_complete() and not waits.exists(), "all jobs have ended")
        for command in crew.running:
            command.kill()
        with connection.cursor() as cursor:
            cursor.execute("SELECT SUM(amount) FROM balance")
            total = int(cursor.fetchone()[0])
        print(f"{JOBS} jobs; workers: {dict(crew.lost)}; states: {dict(states())}; sum {total}")
    follows = Counter(args["of"] for args in Job.objects.filter(type="torture.follow").values_list("args", flat=True))
    done = {str(pk) for pk in Job.objects.filter(type=type, state="completed").values_list("pk", flat=True)}
    return total, follows, done


def item(type: str, number: int) -> dict[str, Any]:
    often = JOBS // ROUNDS // max(DEATHS // ROUNDS, JOBS // 1000)
    dies = number // often % 3 + 1 if number % often == 0 else 0
    return {"type": type, "args": {"account": random.randrange(ACCOUNTS), "dies": dies}}


def states() -> Counter[str]:
    return Counter(Job.objects.filter(queue="default").values_list("state", flat=True))


def test_what_atomic_handlers_write_happens_once(tmp_path, transactional_db):
    total, follows, done = torture(tmp_path, "torture.add.atomic")
    assert len(done) > JOBS // 2
    assert total == len(done)
    assert follows == Counter(done)


def test_what_plain_handlers_write_may_happen_twice(tmp_path, transactional_db):
    """So the test above can fail."""
    total, follows, done = torture(tmp_path, "torture.add")
    assert total > len(done)
    assert follows != Counter(done)


def test_a_step_is_called_once_unless_its_worker_dies_in_it(tmp_path, transactional_db):
    places = [1, 1.5, 2, 2.5, 3]
    dying = [places[number] if number < len(places) else 0 for number in range(JOBS)]
    with site(tmp_path) as place:
        jobs = [Job.objects.enqueue("torture.steps", {"dies": dies}).job for dies in dying]
        # One job at a time in each worker, so that none dies with another's. Leases that no load lets run out.
        options = ("--concurrency", "1", "--lease", "10")
        running = [place.runworker(*options) for _ in range(2)]

        def is_over() -> bool:
            running[:] = [each if each.alive else place.runworker(*options) for each in running]
            return not Job.objects.exclude(state="completed").exists()

        place.wait(is_over, "all jobs have completed")
        calls = Counter((event.job, event.event) for event in place.events())
    for row, dies in zip(jobs, dying, strict=True):
        named = {name.split()[1]: count for (job, name), count in calls.items() if job == row.pk}
        assert named == {str(number): 2 if number == dies else 1 for number in (1, 2, 3)}, "and each with one key"
    assert len(calls) == 3 * JOBS
