"""While other runs are under way, the finalizer waits a moment for their end, and finalizes all that ended together."""

from datetime import timedelta
from threading import Event

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, finalizer
from tests.support.processes import PATIENCE

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="there the loop finalizes"),
]


def ended(count):
    Job.objects.enqueue_many({"type": "t", "args": {"n": number}} for number in range(count))
    lease, now = timedelta(minutes=1), timezone.now()
    taken = claim(
        Job.objects.all(),
        queues=["default"],
        types=None,
        limit=count,
        worker_id="w",
        lease=lease,
        now=now,
        with_rules=(),
    )
    return [RunResult(job) for job in taken]


@pytest.fixture
def serve(monkeypatch):
    """Let a finalizer finalize the runs, some of which end ``later``; return its waits and the sizes of its batches."""

    def serve(runs, count, later=()):
        class Moment(Event):
            """The event for which the finalizer waits; while it waits, other runs end."""

            def wait(self, seconds):
                waits.append(seconds)
                for run in later:
                    finalizing.put(run)

        waits, sizes = [], []
        monkeypatch.setattr(finalizer, "Event", Moment)
        finalizing = finalizer.Finalizer(Job.objects.all(), lambda outcomes: sizes.append(len(outcomes)), lambda: count)
        for run in runs:
            finalizing.put(run)
        finalizing.stop(PATIENCE)  # once it has finalized them
        finalizing.start()
        finalizing.stop(PATIENCE)
        assert Job.objects.filter(state="completed").count() == len(runs) + len(later)
        return waits, sizes

    return serve


def test_runs_that_end_while_others_are_under_way_are_finalized_together(serve):
    first, *later = ended(3)
    assert serve([first], count=4, later=later) == ([finalizer.GATHER_SECONDS], [3])


def test_the_last_run_is_finalized_at_once(serve):
    assert serve(ended(2), count=2) == ([], [2])


def test_a_full_batch_is_finalized_at_once(serve, monkeypatch):
    monkeypatch.setattr(finalizer, "LARGEST_BATCH", 2)
    assert serve(ended(4), count=5) == ([], [2, 2])


def test_a_worker_tells_its_finalizer_that_others_are_under_way(handlers, monkeypatch):
    waits = Event()

    class Moment(Event):
        def wait(self, seconds):
            waits.set()

    monkeypatch.setattr(finalizer, "Event", Moment)
    job("ends")(lambda: None)
    job("goes.on")(lambda: waits.wait(PATIENCE))
    for type in ("ends", "goes.on"):
        Job.objects.enqueue(type)
    assert Worker(concurrency=2).run(drain=True).completed == 2
    assert waits.is_set()
