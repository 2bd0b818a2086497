"""While other runs are under way, the settler waits a moment for their end, and settles all that ended together."""

from datetime import timedelta

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finished import Finished
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, settler

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="there the loop settles"),
]


class Moment:
    """Stands for the event for which the settler waits; while it waits, other runs end."""

    def __init__(self, ends=()):
        self.ends = ends
        self.waits = []
        self.is_over = False

    def wait(self, seconds):
        self.waits.append(seconds)
        for end in self.ends:
            end()
        self.ends = ()

    def is_set(self):
        return self.is_over


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
    return [Finished(job) for job in taken]


def serve(runs, held, later=()):
    """Let a settler settle the runs, some of which end ``later``; return its waits and the sizes of its batches."""
    sizes = []

    def report(outcomes):
        sizes.append(len(outcomes))
        moment.is_over = sum(sizes) == len(runs)

    settling = settler.Settler(Job.objects.all(), report, lambda: held)
    moment = settling._stopping = Moment([lambda run=run: settling.put(run) for run in later])
    for run in runs:
        if run not in later:
            settling.put(run)
    settling._serve()
    assert Job.objects.filter(state="completed").count() == len(runs)
    return moment.waits, sizes


def test_runs_that_end_while_others_are_under_way_are_settled_together():
    runs = ended(3)
    assert serve(runs, held=4, later=runs[1:]) == ([settler.GATHER_SECONDS], [3])


def test_the_last_run_is_settled_at_once():
    assert serve(ended(2), held=2) == ([], [2])


def test_a_full_batch_is_settled_at_once(monkeypatch):
    monkeypatch.setattr(settler, "LARGEST_BATCH", 2)
    waits, sizes = serve(ended(4), held=5)
    assert (waits, sizes) == ([], [2, 2])


def test_a_worker_tells_its_settler_how_many_runs_it_holds():
    worker = Worker()
    assert worker._settler._held() == 0
    worker._held._runs[1] = None
    assert worker._settler._held() == 1
