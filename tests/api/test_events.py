"""GET /ojs/v1/events (HTTP binding, "Events")."""

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Event, Job, Queue

EVENTS = "/ojs/v1/events"


@pytest.fixture(autouse=True)
def on(settings):
    settings.OJS_UNIQUE = {"EVENTS": True}


def poll(ojs, query=""):
    answer = ojs.get(f"{EVENTS}{query}")
    assert answer.status_code == 200, answer.content
    return answer.json()


def types(page):
    return [event["type"] for event in page["events"]]


def test_an_event_has_the_envelope_of_the_specification(ojs):
    job = ojs.enqueue("email.send", options={"queue": "emails", "priority": 3})
    page = poll(ojs)
    (event,) = page["events"]
    assert re.fullmatch(r"evt_[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", event["id"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", event["time"])
    assert event == {
        "specversion": "1.0",
        "id": event["id"],
        "type": "job.enqueued",
        "source": "ojs://django-ojs-unique",
        "time": event["time"],
        "subject": job["id"],
        "data": {"job_id": job["id"], "job_type": "email.send", "queue": "emails", "priority": 3},
    }
    assert (page["cursor"], page["has_more"]) == (event["id"], False)


def test_pages_follow_each_other_and_repeat_themselves_byte_for_byte(ojs):
    jobs = [ojs.enqueue()["id"] for _ in range(3)]
    first = poll(ojs, "?limit=2")
    second = poll(ojs, f"?limit=2&after={first['cursor']}")
    assert [event["subject"] for event in first["events"] + second["events"]] == jobs
    assert (first["has_more"], second["has_more"]) == (True, False)
    again = f"{EVENTS}?limit=2&after={second['cursor']}"
    assert ojs.get(again).json() == {"events": [], "cursor": second["cursor"], "has_more": False}
    assert ojs.get(f"{EVENTS}?limit=2").content == ojs.get(f"{EVENTS}?limit=2").content


def test_nothing_has_happened_yet(ojs):
    assert poll(ojs) == {"events": [], "has_more": False}


@pytest.mark.parametrize(
    ("query", "subjects"),
    [
        ("?types=job.enqueued", "abc"),
        ("?types=job.cancelled", "a"),
        ("?types=job.cancelled,job.enqueued", "abca"),
        ("?types=job.cancelled&types=job.enqueued", "abca"),
        ("?queues=one", "aba"),
        ("?queues=one,two&job_types=b,c", "bc"),
        ("?job_types=a&types=job.enqueued", "a"),
        ("?types=&queues=", "abca"),
        ("?queues=none", ""),
    ],
)
def test_filters_are_combined(ojs, query, subjects):
    for type, queue in (("a", "one"), ("b", "one"), ("c", "two")):
        ojs.enqueue(type, options={"queue": queue})
    Job.objects.get(type="a").cancel()
    assert "".join(event["data"]["job_type"] for event in poll(ojs, query)["events"]) == subjects


def test_events_of_queues_and_of_periodic_jobs_are_there(ojs):
    Queue.objects.pause("emails")
    CronJob.objects.define("hourly", "@hourly", "t")
    CronJob.objects.update(next_run_at=timezone.now() - timedelta(hours=2))
    cron.tick("default", timezone.now())
    assert types(poll(ojs)) == ["queue.paused", "job.enqueued", "cron.triggered"]
    assert types(poll(ojs, "?queues=emails")) == ["queue.paused"]
    assert types(poll(ojs, "?job_types=t")) == ["job.enqueued", "cron.triggered"]


def test_what_time_has_done_is_told_without_a_worker(ojs):
    id = ojs.enqueue(options={"expires_at": "+PT1H"})["id"]
    Job.objects.filter(pk=id).update(expires_at=timezone.now() - timedelta(hours=1))
    assert types(poll(ojs)) == ["job.enqueued", "job.expired"]


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=1001", "limit"),
        ("limit=-1", "limit"),
        ("limit=1.5", "limit"),
        ("limit=", "limit"),
        ("limit=٣", "limit"),
        ("limit=" + "9" * 5000, "limit"),
        ("after=", "after"),
        ("after=1", "after"),
        ("after=evt_%00", "after"),
        ("after=evt_0190aaaa-0000-7000-8000-000000000000", "after"),
        ("types=job.enqueue", "types"),
        ("types=job.enqueued,,job.started", "types"),
        ("types=%00", "types"),
        ("queues=No", "queues"),
        ("queues=a,%00", "queues"),
        ("queues=" + "q" * 129, "queues"),
        ("job_types=a.b,C", "job_types"),
    ],
)
def test_an_invalid_parameter_is_named(ojs, refused, query, field):
    error = refused(ojs.get(f"{EVENTS}?{query}"), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert error["message"].startswith(f"{field}: ")


def test_a_misspelt_type_is_fixed(ojs, refused):
    assert "job.enqueued" in refused(ojs.get(f"{EVENTS}?types=job.enqueue"), 400, "invalid_request")["message"]


def test_a_pruned_cursor_is_told_how_to_go_on(ojs, refused):
    ojs.enqueue()
    ojs.enqueue()
    page = poll(ojs, "?limit=1")
    Event.objects.order_by("pk")[:1].get().delete()
    assert (
        "begin with the oldest"
        in refused(ojs.get(f"{EVENTS}?after={page['cursor']}"), 400, "invalid_request")["message"]
    )


def test_it_says_how_to_switch_events_on(ojs, refused, settings):
    settings.OJS_UNIQUE = {}
    assert "OJS_UNIQUE['EVENTS'] = True" in refused(ojs.get(EVENTS), 422, "unsupported")["message"]


def test_it_is_not_for_everybody(client, db):
    assert client.get(EVENTS).status_code in (401, 403)


def test_other_methods_are_refused(ojs, refused):
    refused(ojs.post(EVENTS, {}), 405, "invalid_request")
