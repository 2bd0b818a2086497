"""Lists that look at a bounded number of rows: what an index finds, and the first ones in an order."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, JobState
from django_ojs_unique.reporting import bounded
from django_ojs_unique.reporting.bounded import few, first
from django_ojs_unique.reporting.job_filters import filters, matching, narrowed
from tests.support.rows import insert

pytestmark = [pytest.mark.every_database, pytest.mark.django_db]

FILTERS = [
    {"state": [JobState.AVAILABLE]},
    {"state": [JobState.AVAILABLE, JobState.DISCARDED]},
    {"state": [JobState.SCHEDULED, JobState.ACTIVE], "queue": "b"},
    {"state": [JobState.COMPLETED], "queue": "b"},
    {"since": timezone.now() - timedelta(days=1)},
    {"since": timezone.now() - timedelta(days=1), "state": [JobState.CANCELLED]},
    {"finished_since": timezone.now() - timedelta(days=1)},
    {"finished_until": timezone.now() - timedelta(days=1), "since": timezone.now() - timedelta(days=3)},
    {"finished_since": timezone.now() - timedelta(days=1), "state": [JobState.DISCARDED, JobState.ACTIVE]},
    {"dead_letter": True},
    {"dead_letter": False, "queue": "a"},
    {"key": "k"},
]


@pytest.fixture
def every_kind():
    now = timezone.now()
    for days in (0, 2):
        for state in JobState:
            moment = now - timedelta(days=days)
            for queue in ("a", "b"):
                row = {"type": "t", "queue": queue, "state": state, "created_at": moment}
                if state not in TERMINAL:
                    insert(**row, key="k" if queue == "a" and state == "active" else None)
                    continue
                insert(**row, finished_at=moment, payload_pruned=queue == "a")
                if state == JobState.DISCARDED:
                    insert(**row, finished_at=moment, dead_letter=True)


@pytest.mark.parametrize("given", FILTERS, ids=" ".join)
def test_an_index_finds_all_that_match(every_kind, given):
    jobs, wanted = Job.objects.all(), filters(given)
    found = few(jobs, wanted)
    assert len(found) == len(set(found)) < jobs.count()
    assert set(narrowed(jobs.filter(pk__in=found), wanted)) == set(matching(jobs, wanted)) != set()


def test_no_job_that_waits_is_looked_at_for_dead_letters(every_kind):
    found = few(Job.objects.all(), filters({"dead_letter": True}))
    assert set(found) == set(Job.objects.filter(dead_letter=True).values_list("pk", flat=True)) != set()


@pytest.mark.parametrize("given", FILTERS, ids=" ".join)
def test_an_index_finds_no_more_than_the_bound(every_kind, monkeypatch, given):
    jobs, wanted = Job.objects.all(), filters(given)
    found = len(few(jobs, wanted))
    monkeypatch.setattr(bounded, "MOST_COUNTED", found)
    assert len(few(jobs, wanted)) == found
    monkeypatch.setattr(bounded, "MOST_COUNTED", found - 1)
    assert few(jobs, wanted) is None


@pytest.mark.parametrize(
    "given", [{}, {"type": "t"}, {"queue": "a"}, {"worker": "w"}, {"until": timezone.now()}], ids=" ".join
)
def test_no_index_knows_other_filters(given):
    assert few(Job.objects.all(), filters(given)) is None


@pytest.mark.parametrize("by", [["-pk"], ["pk"], ["-finished_at", "-id"], ["finished_at", "id"]], ids=str)
def test_the_parts_of_a_list_hold_each_row_once_in_order(monkeypatch, by):
    now = timezone.now()
    for minutes in (0, 1, 1, 1, 2):  # three of one moment, at two ends of a part
        insert(type="t", state="completed", finished_at=now - timedelta(minutes=minutes))
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    jobs, seen = Job.objects.all(), []
    part, last = first(jobs, by)
    while last is not None:
        assert part.count() == 2
        seen += part.order_by(*by)
        part, last = first(jobs.filter(bounded.behind(by, last)), by)
    assert [*seen, *part.order_by(*by)] == list(jobs.order_by(*by))


def test_a_list_that_ends_at_the_bound_has_no_more(monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    for _ in range(2):
        insert(type="t")
    assert first(Job.objects.all(), ["-pk"])[1] is None
