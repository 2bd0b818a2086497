"""GET /ojs/v1/jobs: a list with the filters of `manage.py jobs list` (docs: HTTP)."""

from datetime import timedelta
from urllib.parse import urlencode

import pytest
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.api.wire import pages
from django_ojs_unique.api.wire.queries import FILTERS
from django_ojs_unique.management.jobs import filters
from django_ojs_unique.models import Job
from django_ojs_unique.reporting import bounded
from tests.support.secrets import ARGS, META, assert_hidden

pytestmark = pytest.mark.django_db

JOBS = "/ojs/v1/jobs"


def listed(ojs, **query):
    answer = ojs.get(f"{JOBS}?{urlencode(query, doseq=True)}")
    assert answer.status_code == 200, answer.content
    return [each["id"] for each in answer.json()["jobs"]]


def change(job, **values):
    Job._base_manager.filter(pk=job["id"]).update(**values)


def test_the_newest_job_comes_first_as_it_is_shown_by_its_id(ojs):
    first, second = ojs.enqueue("a"), ojs.enqueue("b", [1], own=5, options={"tags": ["x"]})
    page = ojs.get(JOBS).json()
    assert page["jobs"] == [second, first]
    assert page["pagination"] == {"total": 2, "has_more": False, "limit": 50, "offset": 0}


@pytest.fixture
def jobs(ojs):
    """One job that each filter finds, by the name of its queue."""
    made = {name: ojs.enqueue("mail.send" if name == "type" else "t", options={"queue": name}) for name in NAMES}
    old, ended = timezone.now() - timedelta(days=2), timezone.now()
    change(made["state"], state="completed", finished_at=ended)
    change(made["key"], key="order-7")
    change(made["worker"], state="active", worker_id="w-1", lease_expires_at=ended + timedelta(hours=1))
    change(made["old"], created_at=old, enqueued_at=old)
    change(made["dead"], state="discarded", dead_letter=True, finished_at=ended)
    return made


NAMES = ("queue", "state", "type", "key", "worker", "old", "dead")


QUERIES = [
    ({}, NAMES),
    ({"queue": "queue"}, ["queue"]),
    ({"queue": "nobody"}, []),
    ({"state": "completed"}, ["state"]),
    ({"state": "completed,discarded"}, ["state", "dead"]),
    ({"state": ["completed", "active"]}, ["state", "worker"]),
    ({"state": ""}, NAMES),
    ({"type": "mail.send"}, ["type"]),
    ({"key": "order-7"}, ["key"]),
    ({"key": "ORDER-7"}, []),
    ({"worker_id": "w-1"}, ["worker"]),
    ({"since": "PT1H"}, [name for name in NAMES if name != "old"]),
    ({"until": "PT1H"}, ["old"]),
    ({"until": "2000-01-01T00:00:00Z"}, []),
    ({"finished_since": "PT1H"}, ["state", "dead"]),
    ({"finished_until": "PT1H"}, []),
    ({"since": "2000-01-01T00:00:00+02:00"}, NAMES),
    ({"dead_letter": "true"}, ["dead"]),
    ({"dead_letter": "false"}, [name for name in NAMES if name != "dead"]),
    ({"state": "available", "queue": "key", "key": "order-7"}, ["key"]),
    ({"state": "completed", "queue": "key"}, []),
]


@pytest.mark.parametrize(("query", "found"), QUERIES, ids=str)
def test_jobs_are_filtered_by_all_that_is_given(ojs, jobs, query, found):
    assert listed(ojs, **query) == [jobs[name]["id"] for name in reversed(found)]


@pytest.mark.parametrize(
    ("query", "field", "hint"),
    [
        ({"state": "failed"}, "state", "discarded"),
        ({"state": "available,x"}, "state", "Valid"),
        ({"queue": "Mail"}, "queue", "Did you mean 'mail'?"),
        ({"queue": ["a", "b"]}, "queue", "each value"),
        ({"type": ""}, "type", "lower-case"),
        ({"key": "\0"}, "key", "character"),
        ({"worker_id": "\0"}, "worker_id", "character"),
        ({"since": "yesterday"}, "since", "RFC 3339"),
        ({"since": "2026-01-01T00:00:00"}, "since", "with a zone"),
        ({"until": "P1Y"}, "until", "PT30M"),
        ({"until": "P9999999999D"}, "until", "PT30M"),
        ({"dead_letter": "1"}, "dead_letter", "true or false"),
        ({"quue": "mail"}, "quue", "queue"),
        ({"limit": "0"}, "limit", "from 1"),
    ],
    ids=str,
)
def test_what_is_no_filter_is_refused_by_the_name_of_the_parameter(ojs, refused, query, field, hint):
    error = refused(ojs.get(f"{JOBS}?{urlencode(query, doseq=True)}"), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert hint in error["message"]


def test_the_filters_are_those_of_the_command(ojs):
    from argparse import ArgumentParser

    parser = ArgumentParser()
    filters.add_filters(parser)
    command = {action.dest for action in parser._actions} - {"help"}
    assert {"worker" if name == "worker_id" else name for name in FILTERS} == command


@pytest.mark.parametrize(("query", "found"), QUERIES, ids=str)
@pytest.mark.parametrize("most", [0, 1, 3])
def test_the_cursors_lead_to_all_that_a_filter_selects_however_few_jobs_a_page_looks_at(
    ojs, jobs, monkeypatch, query, found, most
):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    monkeypatch.setattr(bounded, "MOST_COUNTED", most)
    ids, cursor = [], {}
    while cursor is not None:
        page = ojs.get(f"{JOBS}?{urlencode({**query, **cursor}, doseq=True)}").json()
        ids += [each["id"] for each in page["jobs"]]
        cursor = {"cursor": page["pagination"]["next_cursor"]} if page["pagination"]["has_more"] else None
    assert ids == [jobs[name]["id"] for name in reversed(found)]


def test_a_page_without_jobs_leads_to_the_next_one(ojs, jobs, monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 2)
    page = ojs.get(f"{JOBS}?queue=queue").json()
    assert (page["jobs"], page["pagination"]["has_more"]) == ([], True)


def test_very_many_jobs_are_not_counted(ojs, monkeypatch):
    monkeypatch.setattr(pages, "MOST_COUNTED", 2)
    for _ in range(2):
        ojs.enqueue()
    assert ojs.get(JOBS).json()["pagination"]["total"] == 2
    ojs.enqueue()
    assert ojs.get(f"{JOBS}?limit=1").json()["pagination"].keys() >= {"has_more", "next_cursor"}
    assert "total" not in ojs.get(JOBS).json()["pagination"]


def test_a_page_ends_before_its_jobs_become_too_large(ojs, settings):
    for _ in range(3):
        ojs.enqueue(args=["x" * 1000])
    settings.OJS_UNIQUE = {"API": {"MAX_RESPONSE_BYTES": 2500}}
    page = ojs.get(JOBS).json()
    assert (len(page["jobs"]), page["pagination"]["has_more"]) == (1, True)


def test_the_list_shows_the_state_of_this_moment(ojs):
    late = ojs.enqueue(options={"scheduled_at": "+PT1H"})
    change(late, run_at=timezone.now() - timedelta(seconds=1))
    assert listed(ojs, state="available") == [late["id"]]


def test_what_is_redacted_is_masked(ojs, handlers):
    @job("bank.pay", redact=["iban"])
    def pay(iban, to, amount):
        pass

    ojs.enqueue("bank.pay", ARGS, meta=META)
    assert_hidden(ojs.get(JOBS).content.decode())


def test_who_may_enqueue_only_sees_no_list(ojs, settings, refused):
    settings.OJS_UNIQUE = {
        "API": {
            "PERMISSIONS": {"producers": ["rest_framework.permissions.AllowAny"], "operators": [f"{__name__}.Nobody"]}
        }
    }
    assert ojs.enqueue()
    refused(ojs.get(JOBS), 403, "x_forbidden")


class Nobody:
    def has_permission(self, request, view):
        return False
