"""Queues: list, count, pause and resume, and the rate that an enqueue names."""

from datetime import datetime, timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.models import Job, Queue
from django_ojs_unique.ojs.states import TERMINAL, JobState
from tests.support.rows import insert, insert_all

pytestmark = pytest.mark.django_db

ZERO = {str(state): 0 for state in JobState}


def stats(ojs, name="default"):
    answer = ojs.get(f"/ojs/v1/queues/{name}/stats")
    assert answer.status_code == 200, answer.content
    return answer.json()["queue"]


# Listing


def test_queues_with_unfinished_jobs_and_those_that_were_paused_are_listed(ojs):
    for name, state in [("b", "available"), ("a", "scheduled"), ("c", "active"), ("b", "retryable")]:
        insert(type="t", queue=name, state=state)
    insert(type="t", queue="done", state="completed", finished_at=timezone.now())
    Queue.objects.pause("d")
    Queue.objects.pause("a")
    answer = ojs.get("/ojs/v1/queues").json()
    assert answer["queues"] == [
        {"name": "a", "status": "paused", "paused": True},
        {"name": "b", "status": "active", "paused": False},
        {"name": "c", "status": "active", "paused": False},
        {"name": "d", "status": "paused", "paused": True},
    ]
    assert answer["pagination"]["total"] == 4


# Counting


def test_the_jobs_of_a_queue_are_counted_by_state_exactly(ojs):
    later = timezone.now() + timedelta(hours=1)
    expected = dict(ZERO)
    for number, state in enumerate(JobState, start=1):
        finished_at = timezone.now() if state in TERMINAL else None
        insert_all(
            Job(type="t", queue=queue, state=state, finished_at=finished_at, run_at=None if finished_at else later)
            for queue in ["default"] * number + ["other"]
        )
        expected[str(state)] = number
    Job._base_manager.filter(state="completed").update(payload_pruned=True)
    assert stats(ojs) == {"name": "default", **expected, "paused": False}


def test_very_many_jobs_of_a_queue_are_counted_up_to_a_bound_and_the_answer_says_so(ojs, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.queues.MOST_COUNTED", 2)
    now = timezone.now()
    for minute, queue in enumerate(["default", "default", "default", "other"]):
        insert(type="t", queue=queue, state="cancelled", finished_at=now - timedelta(minutes=minute))
    insert(type="t", queue="other", state="available")
    insert(type="t", queue="default", state="available")
    whole = ojs.get("/ojs/v1/queues/default/stats").json()
    assert (whole["stats"]["cancelled"], whole["stats"]["available"], whole["exact"]) == (3, 1, False)
    Job._base_manager.filter(state="cancelled")[:1].get().delete()
    Job._base_manager.filter(queue="other", state="cancelled").delete()
    assert ojs.get("/ojs/v1/queues/default/stats").json()["exact"] is True
    for _ in range(3):
        insert(type="t", queue="default", state="available")
    whole = ojs.get("/ojs/v1/queues/default/stats").json()
    assert (whole["stats"]["available"], whole["exact"]) == (3, False)


def test_a_queue_that_nobody_has_used_has_no_jobs(ojs):
    assert stats(ojs, "empty") == {"name": "empty", **ZERO, "paused": False}
    Queue.objects.pause("empty")
    assert stats(ojs, "empty")["paused"] is True


def test_the_counts_are_those_of_now_without_a_worker(ojs):
    past = timezone.now() - timedelta(seconds=1)
    row = Job.objects.enqueue("t", scheduled_at=timezone.now() + timedelta(hours=1)).job
    Job._base_manager.filter(pk=row.pk).update(run_at=past)
    expired = Job.objects.enqueue("t").job
    Job.objects.filter(pk=expired.pk).update(expires_at=past)
    counted = stats(ojs)
    assert (counted["scheduled"], counted["available"], counted["discarded"]) == (0, 1, 1)


# Pausing


def test_a_paused_queue_takes_jobs_and_gives_none_until_it_is_resumed(ojs):
    paused = ojs.post("/ojs/v1/queues/default/pause", {})
    assert paused.status_code == 200
    queue = paused.json()["queue"]
    assert (queue["name"], queue["paused"]) == ("default", True)
    assert datetime.fromisoformat(queue["paused_at"]) <= timezone.now()
    ids = [ojs.enqueue("t", [number])["id"] for number in range(3)]
    assert ojs.fetch(count=3) == []
    resumed = ojs.post("/ojs/v1/queues/default/resume").json()["queue"]
    assert (resumed["name"], resumed["paused"], "resumed_at" in resumed) == ("default", False, True)
    assert [job["id"] for job in ojs.fetch(count=3)] == ids


def test_pausing_twice_keeps_since_when_and_resuming_twice_is_no_error(ojs):
    first, second = (ojs.post("/ojs/v1/queues/q/pause", {}).json() for _ in range(2))
    assert first == second
    for _ in range(2):
        assert ojs.post("/ojs/v1/queues/q/resume", {}).status_code == 200
    assert stats(ojs, "q")["paused"] is False


@pytest.mark.parametrize("name", ["No", "a_b", "%00", "x" * 129, "*"])
def test_a_name_that_no_queue_can_have_is_refused(ojs, refused, name):
    for answer in (
        ojs.get(f"/ojs/v1/queues/{name}/stats"),
        ojs.post(f"/ojs/v1/queues/{name}/pause", {}),
        ojs.post(f"/ojs/v1/queues/{name}/resume", {}),
    ):
        assert refused(answer, 400, "invalid_request")["details"]["field"] == "queue"
    assert not Queue.objects.exists()


def test_a_body_that_is_no_json_changes_nothing(ojs, refused):
    refused(ojs.post("/ojs/v1/queues/q/pause", b"{"), 400, "invalid_payload")
    assert not Queue.objects.exists()


# The rate


def test_the_rate_that_an_enqueue_names_holds_for_its_queue(ojs):
    for number in range(3):
        ojs.enqueue("t", [number], options={"rate_limit": {"max_per_second": 2}})
    assert [job["args"] for job in ojs.fetch(count=3)] == [[0], [1]]
    assert ojs.fetch() == []
    assert stats(ojs)["available"] == 1
    Queue.objects.update(window_started_at=timezone.now() - timedelta(seconds=1))
    assert [job["args"] for job in ojs.fetch()] == [[2]]
