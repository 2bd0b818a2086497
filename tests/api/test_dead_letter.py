"""Dead letters: list, look, retry, delete."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import transaction
from django.utils import timezone

from django_ojs_unique import lifecycle
from django_ojs_unique.api.views import dead_letter
from django_ojs_unique.models import Job
from tests.support.processes import together

pytestmark = pytest.mark.django_db

PATH = "/ojs/v1/dead-letter"
KEEP = {"max_attempts": 1, "on_exhaustion": "dead_letter"}
ERROR = {"type": "E", "code": "handler_error", "message": "no", "attempt": 1, "occurred_at": "2026-02-12T12:00:00Z"}


def dead(type="t", *, ago=timedelta(0), **options):
    """Enqueue a job, and let it have failed for good."""
    id = Job.objects.enqueue(type, ["x"], retry=KEEP, **options).job.pk
    row, then, token = Job.objects.filter(pk=id), timezone.now() - ago, uuid4()
    assert lifecycle.claim(row, then, worker_id="w", token=token, lease=timedelta(minutes=1))
    assert lifecycle.discard(row, then, token=token, errors=[ERROR], dead_letter=True)
    return str(id)


def listed(ojs, query=""):
    answer = ojs.get(f"{PATH}{query}")
    assert answer.status_code == 200, answer.content
    return [job["id"] for job in answer.json()["jobs"]]


# Looking


def test_the_newest_dead_letter_comes_first_and_carries_its_history(ojs):
    older, newest = dead(ago=timedelta(hours=1)), dead(meta={"a": 1})
    assert listed(ojs) == [newest, older]
    shown = ojs.get(PATH).json()["jobs"][0]
    assert (shown["state"], shown["attempt"], shown["meta"]) == ("discarded", 1, {"a": 1})
    assert shown["errors"] == [ERROR]
    assert ojs.get(f"{PATH}/{newest}").json()["job"] == shown


@pytest.mark.slow
def test_other_jobs_that_were_discarded_are_no_dead_letters(ojs, refused):
    id = dead()
    for change in ({"dead_letter": False}, {"payload_pruned": True}, {"state": "available", "finished_at": None}):
        with transaction.atomic():
            Job._base_manager.filter(pk=id).update(**change)
            assert listed(ojs) == []
            refused(ojs.get(f"{PATH}/{id}"), 404, "not_found")
            refused(ojs.post(f"{PATH}/{id}/retry"), 404, "not_found")
            refused(ojs.delete(f"{PATH}/{id}"), 404, "not_found")
            transaction.set_rollback(True)
    assert listed(ojs) == [id]


def test_the_list_can_be_that_of_one_queue_or_type(ojs):
    a, b = dead("a", queue="x"), dead("b", queue="y")
    assert listed(ojs, "?queue=x") == [a]
    assert listed(ojs, "?type=b") == [b]
    assert listed(ojs, "?queue=x&type=b") == []
    assert ojs.get(f"{PATH}?queue=y").json()["pagination"]["total"] == 1


@pytest.mark.parametrize(("query", "field"), [("queue=No", "queue"), ("type=a%00b", "type"), ("queue=", "queue")])
def test_a_filter_that_is_no_name_is_refused(ojs, refused, query, field):
    assert refused(ojs.get(f"{PATH}?{query}"), 400, "invalid_request")["details"]["field"] == field


def test_a_job_whose_last_lease_has_run_out_is_in_the_list_without_a_worker(ojs):
    row = Job.objects.enqueue("t", retry=KEEP).job
    past = timezone.now() - timedelta(hours=1)
    Job._base_manager.filter(pk=row.pk).update(
        state="active", attempt=1, started_at=past, lease_expires_at=past, worker_id="gone"
    )
    assert listed(ojs) == [str(row.pk)]


@pytest.mark.parametrize("id", ["x", "01890a5d-ac96-774b-bcce-b302099a8057", "%00", "{}", "9" * 300])
def test_what_is_no_dead_letter_is_not_found(ojs, refused, id):
    refused(ojs.get(f"{PATH}/{id}"), 404, "not_found")
    refused(ojs.delete(f"{PATH}/{id}"), 404, "not_found")
    refused(ojs.post(f"{PATH}/{id}/retry", {}), 404, "not_found")


# Retrying


def test_a_retry_gives_all_attempts_again_and_keeps_the_history(ojs):
    id = dead(ago=timedelta(days=1))
    before = Job.objects.get(pk=id)
    answer = ojs.post(f"{PATH}/{id}/retry")
    assert answer.status_code == 200
    shown = answer.json()["job"]
    assert (shown["id"], shown["state"], shown["attempt"], shown["errors"]) == (id, "available", 0, [ERROR])
    assert not {"started_at", "completed_at", "discarded_at", "worker_id"} & shown.keys()
    job = Job.objects.get(pk=id)
    assert (job.created_at, job.dead_letter) == (before.created_at, False)
    assert job.enqueued_at > before.enqueued_at
    assert listed(ojs) == []
    (fetched,) = ojs.fetch()
    assert (fetched["id"], fetched["attempt"]) == (id, 1)


def test_a_second_retry_finds_no_dead_letter(ojs, refused):
    id = dead()
    ojs.post(f"{PATH}/{id}/retry", {})
    refused(ojs.post(f"{PATH}/{id}/retry", {}), 404, "not_found")


def test_a_live_duplicate_refuses_the_retry_and_is_named(ojs, refused):
    id = dead(unique={})
    live = Job.objects.enqueue("t", ["x"], unique={}).job
    error = refused(ojs.post(f"{PATH}/{id}/retry", {}), 409, "duplicate")
    assert error["details"]["existing_job_id"] == str(live.pk)
    assert error["details"]["existing_job_state"] == "available"
    assert listed(ojs) == [id]


@pytest.mark.parametrize(("way", "became"), [("force", "available"), ("replace", "cancelled")])
def test_a_live_duplicate_can_be_let_run_or_be_replaced(ojs, way, became):
    id = dead(unique={})
    live = Job.objects.enqueue("t", ["x"], unique={}).job
    assert ojs.post(f"{PATH}/{id}/retry", {way: True}).json()["job"]["state"] == "available"
    live.refresh_from_db()
    assert live.state == became


@pytest.mark.parametrize(
    ("body", "field"),
    [({"forse": True}, "forse"), ({"force": "yes"}, "force"), ({"force": True, "replace": True}, "replace")],
)
def test_a_retry_in_an_unknown_way_is_refused(ojs, refused, body, field):
    id = dead()
    assert refused(ojs.post(f"{PATH}/{id}/retry", body), 400, "invalid_request")["details"]["field"] == field
    assert listed(ojs) == [id]


def test_a_body_that_is_no_json_is_refused(ojs, refused):
    id = dead()
    refused(ojs.post(f"{PATH}/{id}/retry", b"{"), 400, "invalid_payload")
    assert listed(ojs) == [id]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_many_retries_and_deletions_at_once_one_wins(ojs):
    ids = [dead() for _ in range(5)]
    retry = [lambda number: ojs.post(f"{PATH}/{ids[number]}/retry", {}).status_code] * 2
    delete = [lambda number: ojs.delete(f"{PATH}/{ids[number]}").status_code] * 2
    for number, statuses in enumerate(together(retry + delete, rounds=5)):
        assert statuses.count(200) == 1
        assert set(statuses) <= {200, 404, 409}
        is_there = Job.objects.filter(pk=ids[number], state="available").exists()
        assert is_there == (200 in statuses[:2])


def test_a_dead_letter_that_was_retried_meanwhile_stays_scheduled(ojs, refused, monkeypatch):
    id = dead()
    Job._base_manager.filter(pk=id).update(scheduled_at=timezone.now() + timedelta(days=1))
    found = dead_letter._found

    def find_and_retry(*args):
        job = found(*args)
        Job.objects.get(pk=id).retry()
        return job

    monkeypatch.setattr(dead_letter, "_found", find_and_retry)
    error = refused(ojs.post(f"{PATH}/{id}/retry", {}), 409, "conflict")
    assert error["details"]["current_state"] == "scheduled"
    assert Job.objects.get(pk=id).state == "scheduled"


# Deleting


def test_a_deleted_dead_letter_is_gone_everywhere(ojs, refused):
    id = dead()
    answer = ojs.delete(f"{PATH}/{id}")
    assert (answer.status_code, answer.json()) == (200, {"deleted": True, "job_id": id})
    assert listed(ojs) == []
    refused(ojs.get(f"/ojs/v1/jobs/{id}"), 404, "not_found")
    refused(ojs.delete(f"{PATH}/{id}"), 404, "not_found")


def test_deleting_a_dead_letter_ends_its_window(ojs):
    policy = {"period": "P1D", "states": ["available", "discarded"], "on_conflict": "ignore"}
    id = dead(unique=policy)
    assert ojs.enqueue("t", ["x"], unique=policy)["id"] == id
    ojs.delete(f"{PATH}/{id}")
    assert ojs.enqueue("t", ["x"], unique=policy)["id"] != id
