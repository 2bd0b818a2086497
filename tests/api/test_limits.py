"""However much there is, an answer holds only so many bytes, and a request asks for so much only (docs: security)."""

import json

import pytest
from django.db import connection
from django.test import override_settings

from django_ojs_unique.db.sizes import OF_A_JOB, bytes_of
from django_ojs_unique.models import CronJob, Event, Job

pytestmark = pytest.mark.django_db

LARGE = "x" * 10_000


@pytest.fixture(autouse=True)
def small_answers():
    """Let three large jobs fit into an answer, and not four."""
    with override_settings(OJS_UNIQUE={"API": {"MAX_RESPONSE_BYTES": 35_000}, "EVENTS": True}):
        yield


def states():
    return sorted(Job.objects.values_list("state", flat=True))


def test_a_fetch_takes_only_as_many_jobs_as_its_answer_may_hold(ojs):
    ids = [ojs.enqueue(args=[LARGE])["id"] for _ in range(5)]
    assert [job["id"] for job in ojs.fetch(count=1000)] == ids[:3]
    assert states() == ["active"] * 3 + ["available"] * 2
    assert set(Job.objects.filter(state="available").values_list("attempt", flat=True)) == {0}
    assert [job["id"] for job in ojs.fetch(count=1000)] == ids[3:]


def test_what_does_not_fit_ends_the_fetch_before_the_next_queue(ojs):
    for _ in range(4):
        ojs.enqueue(queue="a", args=[LARGE])
    ojs.enqueue(queue="b")
    assert [job["queue"] for job in ojs.fetch("a", "b", count=10)] == ["a"] * 3
    assert [job["queue"] for job in ojs.fetch("a", "b", count=10)] == ["a", "b"]


def test_the_bytes_of_all_queues_add_up(ojs):
    for queue in "aabb":
        ojs.enqueue(queue=queue, args=[LARGE])
    assert [job["queue"] for job in ojs.fetch("a", "b", count=10)] == ["a", "a", "b"]
    assert states() == ["active"] * 3 + ["available"]


@pytest.mark.parametrize("count", [1, 10])
@pytest.mark.parametrize("member", ["args", "meta", "own"])
def test_a_job_that_is_larger_than_an_answer_is_handed_out_alone(ojs, count, member):
    ojs.enqueue(**{member: ["y" * 50_000] if member == "args" else {"a": "y" * 50_000}})
    ojs.enqueue()
    assert len(ojs.fetch(count=count)) == 1
    assert len(ojs.fetch(count=count)) == 1


@pytest.mark.slow
def test_many_small_jobs_are_handed_out_in_one_answer(ojs):
    Job.objects.enqueue_many([{"type": "t", "args": [number]} for number in range(250)])
    with override_settings(OJS_UNIQUE={}):
        assert [job["args"] for job in ojs.fetch(count=230)] == [[number] for number in range(230)]


def test_the_types_of_a_fetch_decide_what_is_weighed(ojs):
    for _ in range(3):
        ojs.enqueue("large", [LARGE])
    for _ in range(5):
        ojs.enqueue("small")
    assert [job["type"] for job in ojs.fetch(count=5, types=["small"])] == ["small"] * 5


@pytest.mark.slow
def test_a_page_of_dead_letters_ends_where_it_is_too_large(ojs):
    for number in range(5):
        Job.objects.enqueue("t", [LARGE, number], retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    for _ in range(5):
        (job,) = ojs.fetch()
        ojs.post("/ojs/v1/workers/nack", {"job_id": job["id"]})
    first = ojs.get("/ojs/v1/dead-letter").json()
    assert (len(first["jobs"]), first["pagination"]["has_more"], first["pagination"]["total"]) == (3, True, 5)
    second = ojs.get(f"/ojs/v1/dead-letter?cursor={first['pagination']['next_cursor']}").json()
    assert [job["args"][1] for page in (first, second) for job in page["jobs"]] == [4, 3, 2, 1, 0]
    assert not second["pagination"]["has_more"]
    assert [job["args"][1] for job in ojs.get("/ojs/v1/dead-letter?offset=3").json()["jobs"]] == [1, 0]
    assert len(ojs.get("/ojs/v1/dead-letter?limit=2").json()["jobs"]) == 2


def test_a_page_of_periodic_jobs_ends_where_it_is_too_large(ojs):
    for number in range(5):
        args = [LARGE[:5_000]]  # which an answer has twice
        CronJob.objects.create(name=f"c{number}", expression="@yearly", timezone="UTC", type="t", args=args)
    first = ojs.get("/ojs/v1/cron").json()
    second = ojs.get(f"/ojs/v1/cron?cursor={first['pagination']['next_cursor']}").json()
    assert [[entry["name"] for entry in page["crons"]] for page in (first, second)] == [
        ["c0", "c1", "c2"],
        ["c3", "c4"],
    ]


@pytest.mark.slow
def test_a_page_of_events_ends_where_it_is_too_large_and_loses_none(ojs, settings):
    for _ in range(4):
        ojs.enqueue()
        (job,) = ojs.fetch()
        ojs.post("/ojs/v1/workers/nack", {"job_id": job["id"]})
    settings.OJS_UNIQUE = {"API": {"MAX_RESPONSE_BYTES": 5_000}, "EVENTS": True}
    seen, after, pages = [], "", 0
    while (page := ojs.get(f"/ojs/v1/events?limit=1000{after}").json())["events"]:
        assert len(json.dumps(page)) < 6_000
        seen += [event["id"] for event in page["events"]]
        after, pages = f"&after={page['cursor']}", pages + 1
        if not page["has_more"]:
            break
    assert (len(seen), len(set(seen)), pages > 2) == (16, 16, True)
    with override_settings(OJS_UNIQUE={"API": {"MAX_RESPONSE_BYTES": 1}, "EVENTS": True}):
        assert len(ojs.get("/ojs/v1/events").json()["events"]) == 1
    assert len(Event.objects.follow().events) == 16


@pytest.mark.parametrize("end", ["batch", "bulk"])
def test_ignored_duplicates_do_not_multiply_a_large_job(ojs, end):
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    stored = ojs.enqueue("large", [LARGE], unique=unique)
    more = [{"type": "large", "args": [], "unique": unique}] * 20
    answer = ojs.post(f"/ojs/v1/jobs/{end}", {"jobs": [*more, {"type": "new", "args": [1]}]})
    assert len(answer.content) < 60_000
    jobs = answer.json()["jobs"] if end == "batch" else [result["job"] for result in answer.json()["results"]]
    assert {job["id"] for job in jobs[:20]} == {stored["id"]}
    assert [job.get("args") for job in jobs] == [*[[LARGE]] * 3, *[None] * 17, [1]]
    assert {job["state"] for job in jobs} == {"available"}


def test_a_single_ignored_duplicate_is_always_whole(ojs):
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    ojs.enqueue("large", ["y" * 50_000], unique=unique)
    assert ojs.enqueue("large", unique=unique)["args"] == ["y" * 50_000]


@pytest.mark.every_database
def test_the_size_of_a_row_is_about_that_of_its_json(ojs):
    ojs.enqueue(args=["ab", {"c": [1.5, None]}], meta={"d": "é"}, tags=["e"], own="f" * 100)
    (size,) = Job.objects.values_list(bytes_of(OF_A_JOB), flat=True)
    job = Job.objects.get()
    text = sum(len(json.dumps(getattr(job, name)).encode()) for name in OF_A_JOB if getattr(job, name) is not None)
    assert abs(size - text) < 20, connection.vendor


# Requests


@pytest.mark.slow
def test_a_fetch_names_no_more_pairs_of_queues_and_types_than_can_be_looked_for(ojs, refused):
    queues, types = [f"q{n}" for n in range(100)], [f"t{n}" for n in range(101)]
    error = refused(ojs.post("/ojs/v1/workers/fetch", {"queues": queues, "types": types}), 400, "invalid_request")
    assert error["details"]["field"] == "types"
    assert error["message"] == (
        "types: 101 types on 100 queues are 10,100 pairs; the limit is 10,000."
        " Fetch from fewer queues at once, or name fewer types."
    )
    assert ojs.fetch(*queues, types=types[:100]) == []
    assert ojs.fetch("q1", types=[f"t{n}" for n in range(1000)]) == []


@pytest.mark.parametrize(
    ("errors", "field", "limit"),
    [
        ([f"e{n}" for n in range(101)], "options.retry.non_retryable_errors", "100"),
        (["a", "x" * 256], "options.retry.non_retryable_errors[1]", "255"),
    ],
)
def test_a_retry_policy_names_so_many_errors_only(ojs, refused, errors, field, limit):
    body = {"type": "t", "args": [], "options": {"retry": {"non_retryable_errors": errors}}}
    error = refused(ojs.post("/ojs/v1/jobs", body), 422, "validation_error")
    assert error["details"]["field"] == field
    assert f"the limit is {limit}" in error["message"]
    assert not Job.objects.exists()


def test_the_limits_stand_in_the_manifest(ojs):
    limits = ojs.get("/ojs/manifest").json()["limits"]
    assert limits["max_response_bytes"] == 35_000
    assert {"max_body_bytes", "max_batch", "max_wait", "max_args_bytes", "max_queues", "max_types"} <= limits.keys()
