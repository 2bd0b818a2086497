"""Which workers live, what they take, and what they hold."""

from datetime import timedelta

import pytest

from django_ojs_unique.models import Job
from django_ojs_unique.reporting import workers as report
from django_ojs_unique.reporting.workers import SILENT_AFTER, claimed_by, workers
from tests.support.past import NOW, ago, job, worker

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize(
    ("state", "age", "standing"),
    [
        ("running", timedelta(), "running"),
        ("running", SILENT_AFTER, "running"),
        ("running", SILENT_AFTER + timedelta(microseconds=1), "silent"),
        ("stopping", timedelta(seconds=5), "stopping"),
        ("stopping", timedelta(hours=1), "silent"),
        ("running", timedelta(seconds=-5), "running"),
    ],
)
def test_a_worker_is_silent_once_its_heartbeat_is_overdue(state, age, standing):
    worker(heard=NOW - age, state=state)
    (found,) = workers("default", NOW)
    assert (found.standing, found.lives) == (standing, standing == "running")


def test_those_heard_last_come_first_and_not_too_many(monkeypatch):
    monkeypatch.setattr(report, "MOST_WORKERS", 2)
    for minutes in (3, 1, 2):
        worker(f"w{minutes}", heard=ago(minutes=minutes))
    assert [found.row.pk for found in workers("default", NOW)] == ["w1", "w2"]


@pytest.mark.parametrize("broken", ["emails", 1, {"emails": 1}, [1, None, ["x"]], []])
def test_a_row_whose_queues_are_broken_takes_nothing(broken):
    worker()
    report.WorkerProcess.objects.update(queues=broken)
    (found,) = workers("default", NOW)
    assert (found.patterns, found.names, found.takes("emails")) == ([], [], False)


def test_what_a_worker_holds_is_what_is_active_in_its_name():
    row = worker("w1")
    second = job(ago(minutes=1), state="active", worker_id="w1")
    first = job(ago(minutes=2), state="active", worker_id="w1")
    job(ago(minutes=3), state="active", worker_id="w2")
    job(ago(minutes=3), state="completed", worker_id="w1")
    assert claimed_by(Job.objects.all(), row, 5) == [first, second]
    assert claimed_by(Job.objects.all(), row, 1) == [first]
