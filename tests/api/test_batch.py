"""Many jobs in one request: all or none, or each on its own (HTTP binding, "Batch enqueue")."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue

BATCH, BULK = "/ojs/v1/jobs/batch", "/ojs/v1/jobs/bulk"
UNIQUE = {"keys": ["type", "args"]}
IGNORE = {**UNIQUE, "on_conflict": "ignore"}
REPLACE = {**UNIQUE, "on_conflict": "replace"}


def item(number, **options):
    return {"type": "t", "args": [number], "options": options}


def test_jobs_are_stored_together_and_returned_in_order(ojs):
    jobs = [item(n, queue="q", priority=n % 3, scheduled_at="+P1D" if n == 2 else None) for n in range(100)]
    answer = ojs.post(BATCH, {"jobs": jobs})
    body = answer.json()
    assert (answer.status_code, body["count"]) == (201, 100)
    assert [job["args"] for job in body["jobs"]] == [[n] for n in range(100)]
    assert [job["state"] for job in body["jobs"][:4]] == ["available", "available", "scheduled", "available"]
    for job in (body["jobs"][0], body["jobs"][2], body["jobs"][99]):
        assert ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"] == job


@pytest.mark.slow
def test_a_batch_takes_a_thousand_jobs_in_few_statements(ojs):
    with CaptureQueriesContext(connection) as queries:
        answer = ojs.post(BATCH, {"jobs": [item(n) for n in range(1000)]})
    assert answer.json()["count"] == Job.objects.count() == 1000
    assert len(queries) < 15


@pytest.mark.parametrize("given", ["made here", "chosen", "mixed"])
def test_jobs_come_up_in_the_order_of_the_array(ojs, given):
    """Also when the callers choose ids that do not ascend."""
    ids = sorted((str(new_id()) for _ in range(20)), reverse=True)
    chosen = {"made here": [], "chosen": range(20), "mixed": range(0, 20, 3)}[given]
    jobs = [{**item(n), **({"id": ids[n]} if n in chosen else {})} for n in range(20)]
    assert ojs.post(BATCH, {"jobs": jobs}).status_code == 201
    ordered = Job.objects.order_by("-priority", "enqueued_at", "id")  # as the claim takes them
    assert [job.args[0] for job in ordered] == list(range(20))
    assert all(job.enqueued_at - job.created_at < timedelta(milliseconds=1) for job in ordered)


@pytest.mark.parametrize(
    ("wrong", "status", "code", "field"),
    [
        ({"args": []}, 400, "invalid_request", "type"),
        ({"type": "T", "args": []}, 400, "invalid_request", "type"),
        ({"type": "t"}, 400, "invalid_request", "args"),
        (5, 400, "invalid_request", ""),
        (None, 400, "invalid_request", ""),
        ([], 400, "invalid_request", ""),
        ({"type": "t", "args": [], "options": {"priority": 101}}, 400, "invalid_request", "options.priority"),
        ({"type": "t", "args": [], "options": {"unique": {"keys": 5}}}, 400, "invalid_request", "options.unique.keys"),
        ({"type": "t", "args": [], "unique": {"args_keys": ["a"]}}, 400, "invalid_request", "unique.args_keys"),
        ({"type": "t", "args": [], "retry": {"jitter": 5}}, 422, "validation_error", "retry.jitter"),
        ({"type": "t", "args": ["\x00"]}, 400, "invalid_request", "args[0]"),
        ({"type": "t", "args": [], "meta": {"a": "x" * 2**16}}, 413, "payload_too_large", "meta"),
    ],
)
def test_one_wrong_job_keeps_all_of_them_out(ojs, refused, wrong, status, code, field):
    good = item(1, rate_limit={"max_per_second": 1})
    error = refused(ojs.post(BATCH, {"jobs": [good, item(2), wrong, item(3)]}), status, code)
    assert (error["details"]["index"], error["details"]["field"]) == (2, field)
    assert error["message"].startswith(f"jobs[2]: {field}")
    assert "items" not in error["message"]
    assert not Job.objects.exists()
    assert not Queue.objects.exists()


def test_a_batch_is_no_larger_than_the_project_says(ojs, refused):
    with override_settings(OJS_UNIQUE={"API": {"MAX_BATCH": 3}}):
        for path in (BATCH, BULK):
            refused(ojs.post(path, {"jobs": [item(n) for n in range(4)]}), 413, "payload_too_large")
        assert not Job.objects.exists()
        assert ojs.post(BATCH, {"jobs": [item(n) for n in range(3)]}).status_code == 201


def test_a_refused_duplicate_keeps_all_of_them_out(ojs, refused):
    existing = ojs.enqueue("t", [7], unique=UNIQUE)
    error = refused(ojs.post(BATCH, {"jobs": [item(1), item(7, unique=UNIQUE)]}), 409, "duplicate")
    assert error["details"] == {
        "index": 1,
        "existing_job_id": existing["id"],
        "existing_job_state": "available",
        "unique_key": Job.objects.get().fingerprint,
    }
    assert Job.objects.count() == 1


def test_an_earlier_job_of_the_batch_counts(ojs, refused):
    refused(ojs.post(BATCH, {"jobs": [item(7, unique=UNIQUE), item(7, unique=UNIQUE)]}), 409, "duplicate")
    assert not Job.objects.exists()
    first, second = ojs.post(BATCH, {"jobs": [item(7, unique=UNIQUE), item(7, unique=IGNORE)]}).json()["jobs"]
    assert first == second
    assert Job.objects.count() == 1


def test_an_ignored_duplicate_is_answered_by_the_whole_existing_job(ojs):
    existing = ojs.enqueue("t", [7], unique=UNIQUE, meta={"a": 1}, own=[1])
    answer = ojs.post(BATCH, {"jobs": [item(1), item(7, unique=IGNORE)]}).json()
    assert (answer["jobs"][1], answer["count"]) == (existing, 2)
    assert Job.objects.count() == 2


def test_a_replaced_job_is_cancelled(ojs):
    existing = ojs.enqueue("t", [7], unique=UNIQUE)
    (job,) = ojs.post(BATCH, {"jobs": [item(7, unique=REPLACE)]}).json()["jobs"]
    assert job["id"] != existing["id"]
    assert ojs.get(f"/ojs/v1/jobs/{existing['id']}").json()["job"]["state"] == "cancelled"


def test_an_id_in_use_or_twice_keeps_all_of_them_out(ojs, refused):
    id = ojs.enqueue("t")["id"]
    error = refused(ojs.post(BATCH, {"jobs": [item(1), {**item(2), "id": id}]}), 409, "duplicate")
    assert error["details"] == {"index": 1, "field": "id", "existing_job_id": id, "existing_job_state": "available"}
    new = str(new_id())
    error = refused(ojs.post(BATCH, {"jobs": [{**item(n), "id": new} for n in range(2)]}), 409, "duplicate")
    assert (error["details"]["index"], error["details"]["existing_job_id"]) == (1, new)
    assert Job.objects.count() == 1


def test_the_last_rate_of_a_queue_holds(ojs):
    rates = [("a", 5), ("b", 3), ("a", 2)]
    jobs = [item(n, queue=queue, rate_limit={"max_per_second": rate}) for n, (queue, rate) in enumerate(rates)]
    for path in (BATCH, BULK):
        ojs.post(path, {"jobs": jobs})
        assert dict(Queue.objects.values_list("name", "max_per_second")) == {"a": 2, "b": 3}
        Queue.objects.all().delete()


def test_in_bulk_each_job_has_an_outcome_of_its_own(ojs):
    existing = ojs.enqueue("t", [7], unique=UNIQUE)
    replaced = ojs.enqueue("t", [8], unique=UNIQUE)
    answer = ojs.post(
        BULK,
        {
            "jobs": [
                item(1),
                {"args": []},
                item(7, unique=IGNORE),
                item(7, unique=UNIQUE),
                item(2, retry={"max_attempts": -1}),
                item(8, unique=REPLACE),
                {**item(3), "id": existing["id"]},
                {**item(4), "args": ["\x00"]},
                5,
            ]
        },
    )
    body = answer.json()
    assert answer.status_code == 200
    said = [
        "created", "invalid", "deduplicated", "rejected", "invalid", "replaced", "rejected", "invalid", "invalid"
    ]  # fmt: skip
    assert [result["status"] for result in body["results"]] == said
    assert [result["index"] for result in body["results"]] == list(range(9))
    assert body["counts"] == {"created": 1, "deduplicated": 1, "replaced": 1, "rejected": 2, "invalid": 4}
    results = body["results"]
    assert results[2]["job"] == existing
    assert results[3]["error"]["details"]["existing_job_id"] == existing["id"]
    assert results[3]["error"]["details"]["unique_key"]
    assert results[4]["error"]["code"] == "validation_error"
    assert results[6]["error"]["details"]["existing_job_state"] == "available"
    for result in results:
        if "error" in result:
            assert result["error"]["details"]["index"] == result["index"]
            assert result["error"]["message"].startswith(f"jobs[{result['index']}]: ")
            assert result["error"]["request_id"] == answer["X-Request-Id"]
    assert Job.objects.get(pk=replaced["id"]).state == "cancelled"
    assert Job.objects.count() == 4
    assert SuppressedEnqueue.objects.count() == 3
