"""Whole stories of the binding: what each action does in each state, a job that fails, the order of a queue."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL, JobState
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db

JOBS = "/ojs/v1/jobs"
DEAD = {"retry": {"max_attempts": 5, "on_exhaustion": "dead_letter", "jitter": False}}


def bring(ojs: Any, state: JobState) -> str:
    """Enqueue a job and bring it into a state, over HTTP alone; return its id."""
    options: dict[str, Any] = {"retry": {**DEAD["retry"], **IN_AN_HOUR}}
    if state == JobState.SCHEDULED:
        options["delay_until"] = "+PT1H"
    elif state == JobState.PENDING:
        options["pending"] = True
    id: str = ojs.enqueue(options=options)["id"]
    if state in (JobState.ACTIVE, JobState.RETRYABLE, JobState.COMPLETED, JobState.DISCARDED):
        assert [job["id"] for job in ojs.fetch()] == [id]
    if state == JobState.COMPLETED:
        ojs.post("/ojs/v1/workers/ack", {"job_id": id})
    elif state in (JobState.RETRYABLE, JobState.DISCARDED):
        ojs.post("/ojs/v1/workers/nack", {"job_id": id, "error": {"retryable": state == JobState.RETRYABLE}})
    elif state == JobState.CANCELLED:
        ojs.delete(f"{JOBS}/{id}")
    return id


ACTIONS: dict[str, tuple[set[JobState], JobState | None, int]] = {
    "ack": ({JobState.ACTIVE}, JobState.COMPLETED, 409),
    "nack": ({JobState.ACTIVE}, JobState.RETRYABLE, 409),
    "requeue": ({JobState.ACTIVE}, JobState.AVAILABLE, 409),
    "cancel": (set(JobState) - TERMINAL, JobState.CANCELLED, 409),
    "activate": ({JobState.PENDING}, JobState.AVAILABLE, 409),
    "retry the dead letter": ({JobState.DISCARDED}, JobState.AVAILABLE, 404),
    "delete the dead letter": ({JobState.DISCARDED}, None, 404),
}
"""From which states each goes, where to, and how it is refused otherwise (section 3)."""


def act(ojs: Any, action: str, id: str) -> Any:
    match action:
        case "ack" | "nack":
            return ojs.post(f"/ojs/v1/workers/{action}", {"job_id": id})
        case "requeue":
            return ojs.post("/ojs/v1/workers/nack", {"job_id": id, "requeue": True})
        case "cancel":
            return ojs.delete(f"{JOBS}/{id}")
        case "activate":
            return ojs.post(f"{JOBS}/{id}/activate")
        case "retry the dead letter":
            return ojs.post(f"/ojs/v1/dead-letter/{id}/retry")
    return ojs.delete(f"/ojs/v1/dead-letter/{id}")


@pytest.mark.slow
@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("state", JobState)
def test_each_action_moves_a_job_from_the_states_that_admit_it_and_changes_nothing_else(ojs, action, state):
    sources, target, refusal = ACTIONS[action]
    id = bring(ojs, state)
    before = ojs.get(f"{JOBS}/{id}")
    assert before.json()["job"]["state"] == state
    answer = act(ojs, action, id)
    after = ojs.get(f"{JOBS}/{id}")
    if state not in sources:
        assert answer.status_code == refusal
        assert answer.json()["error"]["code"] == {409: "conflict", 404: "not_found"}[refusal]
        assert after.content == before.content
    else:
        assert answer.status_code == 200, answer.content
        assert after.status_code == (404 if target is None else 200)
        assert target is None or after.json()["job"]["state"] == target


@pytest.mark.parametrize("action", ACTIONS)
def test_no_action_finds_a_job_that_there_is_not(ojs, refused, action):
    for id in ("01890a5d-ac96-774b-bcce-b302099a8057", "nonsense"):
        refused(act(ojs, action, id), 404, "not_found")


@pytest.mark.slow
def test_a_job_fails_twice_and_is_done_with_its_history(ojs):
    """Sections 2.2, 7.2 and 7.4."""
    id = ojs.enqueue(options={"retry": {"max_attempts": 3, "initial_interval": "PT10S", "jitter": False}})["id"]
    for attempt, delay in ((1, 10_000), (2, 20_000)):
        (job,) = ojs.fetch(worker_id=f"w{attempt}")
        assert (job["attempt"], job["state"], job["worker_id"]) == (attempt, "active", f"w{attempt}")
        assert job.get("retry_delay_ms") == (None if attempt == 1 else 10_000)
        error = {"code": f"c{attempt}", "message": "no", "type": "Flaky", "details": {"try": attempt}}
        answer = ojs.post("/ojs/v1/workers/nack", {"job_id": id, "error": error}).json()
        assert (answer["state"], answer["attempt"], answer["retry_delay_ms"]) == ("retryable", attempt, delay)
        assert ojs.fetch() == []
        shown = ojs.get(f"{JOBS}/{id}").json()["job"]
        assert (shown["error"]["code"], shown["error"]["attempt"]) == (f"c{attempt}", attempt)
        assert shown["retry_delay_ms"] == delay
        assert "completed_at" not in shown
        Job._base_manager.update(run_at=timezone.now())
    (job,) = ojs.fetch()
    assert (job["attempt"], job["error"]["attempt"]) == (3, 2)
    done = ojs.post("/ojs/v1/workers/ack", {"job_id": id, "result": None}).json()
    shown = ojs.get(f"{JOBS}/{id}").json()["job"]
    assert (shown["state"], shown["attempt"], shown["completed_at"]) == ("completed", 3, done["completed_at"])
    assert "error" not in shown
    assert [(error["type"], error["code"], error["attempt"]) for error in shown["errors"]] == [
        ("Flaky", "c1", 1),
        ("Flaky", "c2", 2),
    ]


def test_an_expired_job_is_discarded_but_was_not_completed(ojs):
    """Section 8: it never started, so nothing was completed; one that is running is left alone."""
    first, second = (ojs.enqueue(args=[number], options={"expires_at": "+PT1H"})["id"] for number in (1, 2))
    assert [job["id"] for job in ojs.fetch()] == [first]
    Job.objects.update(expires_at=timezone.now() - timedelta(seconds=1))
    assert ojs.fetch() == []
    shown = ojs.get(f"{JOBS}/{second}").json()["job"]
    assert shown["state"] == "discarded"
    assert "discarded_at" in shown
    assert not shown.keys() & {"completed_at", "started_at", "error"}
    assert ojs.get("/ojs/v1/dead-letter").json()["jobs"] == []
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": first}).status_code == 200


@pytest.mark.slow
def test_a_queue_is_worked_off_by_priority_and_then_in_the_order_of_the_requests(ojs):
    """Section 6.1; the ids that clients choose say nothing about the order, nor does what a batch has in common."""
    ids = [f"01890a5d-ac96-774b-bcce-{9 - number:012x}" for number in range(4)]
    answer = ojs.post(f"{JOBS}/batch", {"jobs": [{"id": id, "type": "t", "args": []} for id in ids]})
    assert [job["id"] for job in answer.json()["jobs"]] == ids
    low, high, negative = (ojs.enqueue(options={"priority": priority})["id"] for priority in (-100, 100, -1))
    last = ojs.enqueue()["id"]
    order = [ojs.fetch()[0]["id"] for _ in range(3)] + [job["id"] for job in ojs.fetch(count=100)]
    assert order == [high, *ids, last, negative, low]
    assert ojs.fetch() == []


def test_what_became_due_unobserved_is_handed_out_in_the_order_in_which_it_became_due(ojs):
    """Section 3: each became available at its time, whenever somebody looks; before what was enqueued since."""
    now = timezone.now()
    late, early = (ojs.enqueue(options={"delay_until": f"+PT{hours}H"})["id"] for hours in (2, 1))
    new = ojs.enqueue()["id"]
    for id, age in ((late, 1), (early, 2)):
        Job._base_manager.filter(pk=id).update(run_at=now - timedelta(seconds=age))
    assert [job["id"] for job in ojs.fetch(count=3)] == [early, late, new]
    assert Job.objects.get(pk=early).enqueued_at == now - timedelta(seconds=2)
