"""A deadlock is no outage: whoever the database gives up starts over at once."""

from __future__ import annotations

import random
from contextlib import suppress
from functools import partial
from threading import Event, Thread

import pytest
from django.db import connection, transaction

from django_ojs_unique import job
from django_ojs_unique.exceptions import DuplicateJob
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import claimer, finalizer
from django_ojs_unique.worker.outages import Outages
from tests.support.background import working
from tests.support.processes import PATIENCE, Parent, nursery, until
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db(transaction=True)

PRODUCERS, KEYS, ENQUEUES = 6, 20, 60
STRATEGIES = ["reject", "ignore", "replace"]


class Collision:
    """Lets the first call of a function end in a deadlock with a heavier transaction, which the database prefers."""

    def __init__(self, function):
        self._function = function
        self._mine, self._theirs = Event(), Event()
        self.error = None
        self.thread = Thread(target=self._stand_in_the_way, daemon=True)
        Queue.objects.bulk_create([Queue(name="a"), Queue(name="b")])

    def __call__(self, *args, **options):
        if self.error is None:
            self.thread.start()
            try:
                with transaction.atomic():
                    Queue.objects.filter(name="a").update(window_count=1)
                    self._mine.set()
                    assert self._theirs.wait(PATIENCE)
                    Queue.objects.filter(name="b").update(window_count=1)
            except Exception as error:
                self.error = error
                raise
        return self._function(*args, **options)

    def _stand_in_the_way(self):
        with transaction.atomic():
            if connection.vendor == "postgresql":  # where whoever looks first is given up
                with connection.cursor() as cursor:
                    cursor.execute("SET LOCAL deadlock_timeout = '60s'")
            insert_all([Job(type="weight", queue="q", state="pending") for _ in range(200)])
            Queue.objects.filter(name="b").update(window_count=2)
            self._theirs.set()
            assert self._mine.wait(PATIENCE)
            Queue.objects.filter(name="a").update(window_count=2)
            transaction.set_rollback(True)
        connection.close()


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="one writer cannot meet another")
@pytest.mark.parametrize(("module", "name"), [(claimer, "claim"), (finalizer, "finalize")])
def test_a_deadlock_of_a_claim_or_a_finalize_is_no_outage_and_costs_nothing(
    handlers, monkeypatch, caplog, module, name
):
    collision = Collision(getattr(module, name))
    monkeypatch.setattr(module, name, collision)
    monkeypatch.setattr(Outages, "failed", lambda self, error: pytest.fail(f"taken for an outage: {error}"))
    attempts = []
    job("t", takes_context=True)(lambda context: attempts.append(context.attempt))
    Job.objects.enqueue("t")
    with working():
        until(lambda: Job.objects.filter(type="t", state="completed").exists(), "the job completed")
    collision.thread.join(PATIENCE)
    assert "deadlock" in str(collision.error).lower()
    assert attempts == [1]
    assert "failed" not in caplog.text


def produce(number: int, parent: Parent) -> None:
    """Enqueue jobs of a few keys, so that many meet a duplicate that a worker is about to claim or finalize."""
    dice = random.Random(number)
    for _ in range(ENQUEUES):
        key, queue, priority = dice.randrange(KEYS), dice.choice(["a", "b"]), dice.randrange(3)
        unique = {"keys": ["type", "args"], "on_conflict": dice.choice(STRATEGIES)}
        how = dice.choice([{"key": f"k{key}"}, {"unique": unique}])
        with suppress(DuplicateJob):
            Job.objects.enqueue("quick", {"key": key}, queue=queue, priority=priority, **how)


@pytest.mark.torture
def test_two_workers_beside_six_producers_with_keys_meet_no_outage(place):
    if connection.vendor == "sqlite":
        pytest.skip("one writer cannot meet another")
    workers = [place.runworker("-v", "2"), place.runworker("-v", "2")]
    place.wait(lambda: all(worker.is_ready for worker in workers), "the workers are up")
    with nursery() as start:
        for child in [start(partial(produce, number)) for number in range(PRODUCERS)]:
            child.result()
    place.wait(lambda: not Job.objects.filter(state__in=["available", "active"]).exists(), "all jobs ended")
    for worker in workers:
        assert worker.stop() == 0
        assert "failed;" not in worker.output
        assert "failed in the upkeep" not in worker.output
