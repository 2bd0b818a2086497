"""What workers of other languages do: fetch, ack, nack, heartbeat (HTTP binding, section 6)."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.maintenance import on_demand
from django_ojs_unique.models import CronJob, Job, Queue, WorkerProcess
from django_ojs_unique.ojs.cron import Cron
from django_ojs_unique.ojs.moments import milliseconds, rfc3339
from django_ojs_unique.signals import job_completed, job_discarded, job_failed, job_started

from .leases import lasts, let_lease_end, row

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

HOUR = timedelta(hours=1)
FETCH, ACK, NACK, HEARTBEAT = (f"/ojs/v1/workers/{what}" for what in ("fetch", "ack", "nack", "heartbeat"))


@pytest.fixture
def held(ojs):
    """Enqueue a job and fetch it; return it as it was fetched."""

    def held(worker_id=None, **members):
        ojs.enqueue(**members)
        (job,) = ojs.fetch(**({} if worker_id is None else {"worker_id": worker_id}))
        return job

    return held


@pytest.fixture
def state(ojs):
    """Return the job as its own page shows it."""
    return lambda job: ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]


# Fetch


def test_a_fetch_hands_out_whole_jobs_of_any_type_and_makes_them_active(ojs):
    job = ojs.enqueue("mail.send", ["ada"], tags=["a"], options={"retry": {"max_attempts": 7}}, custom=1)
    before = timezone.now()
    (fetched,) = ojs.fetch(worker_id="w1")
    assert fetched == {
        **job,
        "state": "active",
        "attempt": 1,
        "worker_id": "w1",
        "started_at": fetched["started_at"],
        "lease_token": fetched["lease_token"],
        "lease_expires_at": milliseconds(row(job).lease_expires_at),
    }
    assert lasts(job, timedelta(minutes=30), before)
    assert ojs.fetch() == []


@pytest.mark.slow
def test_the_first_queue_is_exhausted_before_the_second_is_looked_at(ojs):
    for queue, priority in [("b", 50), ("a", 0), ("a", 9), ("b", 0), ("a", 9)]:
        ojs.enqueue(queue=queue, priority=priority, args=[queue, priority])
    assert [job["args"] for job in ojs.fetch("a", "b", "a", count=4)] == [["a", 9], ["a", 9], ["a", 0], ["b", 50]]
    assert [job["args"] for job in ojs.fetch("a", "b")] == [["b", 0]]


@pytest.mark.slow
def test_jobs_of_a_queue_come_in_the_order_of_their_enqueue(ojs):
    ids = [ojs.enqueue(args=[number])["id"] for number in range(6)]
    assert [job["id"] for job in ojs.fetch(count=2)] == ids[:2]
    assert [job["id"] for job in ojs.fetch(count=10**9)] == ids[2:]


def test_a_paused_queue_gives_nothing_until_it_is_resumed(ojs):
    job = ojs.enqueue()
    Queue.objects.pause("default")
    assert ojs.fetch() == []
    Queue.objects.resume("default")
    assert [one["id"] for one in ojs.fetch()] == [job["id"]]


@pytest.mark.slow
def test_a_queue_that_is_limited_or_unknown_or_no_name_at_all_gives_nothing(ojs):
    ojs.enqueue()
    ojs.enqueue()
    Queue.objects.limit("default", 1)
    assert len(ojs.fetch(count=5)) == 1
    assert ojs.fetch("default", "unknown", "NO NAME", "\x00") == []


@pytest.mark.slow
def test_a_fetch_finds_what_has_become_due_and_discards_what_has_expired(ojs, state):
    late, due, lost = (ojs.enqueue(args=[number]) for number in range(3))
    past = timezone.now() - HOUR
    Job.objects.filter(pk=late["id"]).update(expires_at=past)
    Job._base_manager.filter(pk=due["id"]).update(state="scheduled", run_at=past)
    Job._base_manager.filter(pk=lost["id"]).update(
        state="active", lease_token=uuid4(), lease_expires_at=past, attempt=1, started_at=past
    )
    assert {job["id"] for job in ojs.fetch(count=5)} == {due["id"], lost["id"]}
    shown = state(late)
    assert shown["state"] == "discarded"
    assert shown["discarded_at"]
    assert "completed_at" not in shown


def test_a_fetch_enqueues_the_periodic_jobs_that_are_due(ojs):
    past = timezone.now() - timedelta(minutes=2)
    CronJob.objects.create(
        name="nightly", expression="* * * * *", timezone="UTC", type="report", args=[], options={}, next_run_at=past
    )
    assert [job["type"] for job in ojs.fetch()] == ["report"]
    assert CronJob.objects.get().next_run_at > Cron("* * * * *", "UTC").next_after(past)


def test_a_fetch_that_finds_nothing_writes_nothing(ojs):
    ojs.enqueue(options={"delay_until": (timezone.now() + HOUR).isoformat()})
    with CaptureQueriesContext(connection) as queries:
        assert ojs.fetch("a", "b", count=10) == []
    assert not [query["sql"] for query in queries if not query["sql"].startswith("SELECT")]


def test_a_fetch_looks_once_and_what_it_reads_of_a_job_costs_no_further_statement(ojs, monkeypatch):
    ojs.fetch()  # which looks for deleted jobs
    monkeypatch.setattr(on_demand, "SCAN", HOUR)
    sent = {}
    for what in ("empty", "elsewhere", "full"):
        if what != "empty":
            ojs.enqueue(queue="other" if what == "elsewhere" else "default")
        with CaptureQueriesContext(connection) as queries:
            jobs = ojs.fetch("default", "unknown")
        sent[what] = sum("django_ojs_unique" in query["sql"] for query in queries)
    assert len(jobs) == 1
    assert (sent["empty"], sent["elsewhere"]) == (1, 1)
    assert sent["full"] == 2 or not dialect_of(Job.objects.all()).claims_at_once


@pytest.mark.slow
def test_a_lease_is_as_long_as_the_fetch_says_or_the_job_or_the_setting(ojs, settings):
    settings.OJS_UNIQUE = {"API": {"LEASE": "PT5M"}}
    for _ in range(2):
        ojs.enqueue(args=["own"], options={"visibility_timeout_ms": 60_000})
        ojs.enqueue(args=["none"])
    before = timezone.now()
    fetched = ojs.fetch(count=2) + ojs.fetch(count=2, visibility_timeout_ms=7_200_000)
    expected = [timedelta(minutes=1), timedelta(minutes=5), 2 * HOUR, 2 * HOUR]
    assert all(lasts(job, length, before) for job, length in zip(fetched, expected, strict=True))


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, "queues"),
        ({"queues": []}, "queues"),
        ({"queues": "default"}, "queues"),
        ({"queues": [1]}, "queues"),
        ({"queues": ["q"] * 101}, "queues"),
        ({"queues": ["q"], "count": 0}, "count"),
        ({"queues": ["q"], "count": "1"}, "count"),
        ({"queues": ["q"], "count": True}, "count"),
        ({"queues": ["q"], "worker_id": 1}, "worker_id"),
        ({"queues": ["q"], "worker_id": "\x00"}, "worker_id"),
        ({"queues": ["q"], "worker_id": "\ud800"}, "worker_id"),
        ({"queues": ["q"], "worker_id": "w" * 256}, "worker_id"),
        ({"queues": ["q"], "visibility_timeout_ms": 0}, "visibility_timeout_ms"),
        ({"queues": ["q"], "visibility_timeout_ms": 2**53 - 1}, "visibility_timeout_ms"),
        ({"queues": ["q"], "wait": -1}, "wait"),
        ({"queues": ["q"], "wait": "1"}, "wait"),
        ({"queues": ["q"], "wait": True}, "wait"),
    ],
)
def test_a_fetch_that_makes_no_sense_is_refused_and_the_field_named(ojs, refused, members, field):
    ojs.enqueue(queue="q")
    assert refused(ojs.post(FETCH, members), 400, "invalid_request")["details"]["field"] == field
    assert Job.objects.get().state == "available"


# Ack


@pytest.mark.parametrize("result", [{"a": [1, None, 2.5]}, [], 0, False, "", "text", {}])
def test_an_ack_completes_the_job_and_keeps_its_result_as_it_is(ojs, held, state, result):
    job = held()
    answer = ojs.post(ACK, {"job_id": job["id"], "result": result})
    assert answer.status_code == 200
    shown = state(job)
    assert answer.json() == {
        "id": job["id"],
        "job_id": job["id"],
        "state": "completed",
        "acknowledged": True,
        "completed_at": shown["completed_at"],
    }
    assert (shown["state"], shown["result"]) == ("completed", result)
    assert type(shown["result"]) is type(result)


@pytest.mark.skipif("connection.vendor != 'postgresql'", reason="elsewhere no statement completes a job")
def test_an_ack_is_a_read_and_a_write_where_nobody_listens_to_completions(ojs, held, monkeypatch):
    job = held()
    for signal in (job_completed, job_failed, job_discarded):
        monkeypatch.setattr(signal, "receivers", [])
    job_discarded.connect(print)
    with CaptureQueriesContext(connection) as queries:
        assert ojs.post(ACK, {"job_id": job["id"]}).status_code == 200
    authentication = 2
    assert [query["sql"].split()[0] for query in queries][authentication:] == ["SELECT", "UPDATE"]


def test_a_job_may_be_acknowledged_without_a_result(ojs, held, state):
    job = held()
    assert ojs.post(ACK, {"job_id": job["id"]}).status_code == 200
    assert "result" not in state(job)


@pytest.mark.slow
def test_the_error_is_gone_from_a_job_that_is_acknowledged_after_it_failed(ojs, held, state):
    job = held(options={"retry": {"initial_interval": "PT1S"}})
    ojs.post(NACK, {"job_id": job["id"], "error": {"code": "oops", "message": "no"}})
    Job._base_manager.update(run_at=timezone.now())
    ojs.fetch()
    ojs.post(ACK, {"job_id": job["id"]})
    shown = state(job)
    assert "error" not in shown
    assert [error["code"] for error in shown["errors"]] == ["oops"]


@pytest.mark.parametrize("path", [ACK, NACK])
def test_only_an_active_job_can_be_finalized(ojs, refused, state, path):
    future = (timezone.now() + HOUR).isoformat()
    for members in ({}, {"options": {"delay_until": future}}, {"options": {"pending": True}}):
        job = ojs.enqueue(**members)
        error = refused(ojs.post(path, {"job_id": job["id"]}), 409, "conflict")
        assert error["details"] == {
            "job_id": job["id"],
            "current_state": job["state"],
            "expected_state": "active",
        }
        assert state(job) == job


@pytest.mark.slow
@pytest.mark.parametrize("path", [ACK, NACK])
@pytest.mark.parametrize("end", ["completed", "discarded", "cancelled"])
def test_a_finished_job_cannot_be_finalized_again(ojs, held, refused, state, path, end):
    job = held()
    if end == "completed":
        ojs.post(ACK, {"job_id": job["id"]})
    elif end == "discarded":
        ojs.post(NACK, {"job_id": job["id"], "error": {"retryable": False}})
    else:
        row(job).cancel()
    before = state(job)
    assert before["state"] == end
    assert refused(ojs.post(path, {"job_id": job["id"]}), 409, "conflict")["details"]["current_state"] == end
    assert state(job) == before


@pytest.mark.parametrize("path", [ACK, NACK])
def test_who_finalizes_a_job_must_name_one_that_there_is(ojs, refused, path):
    for missing in ({}, {"job_id": 1}, {"job_id": ""}, {"job_id": None}):
        assert refused(ojs.post(path, missing), 400, "invalid_request")["details"]["field"] == "job_id"
    for unknown in (str(uuid4()), "no id", "\x00", "x" * 10_000):
        refused(ojs.post(path, {"job_id": unknown}), 404, "not_found")


@pytest.mark.parametrize("path", [ACK, NACK])
def test_a_job_that_another_worker_holds_is_left_to_it(ojs, held, refused, state, path):
    job = held("w1")
    refused(ojs.post(path, {"job_id": job["id"], "worker_id": "w2"}), 409, "conflict")
    assert state(job)["state"] == "active"
    assert ojs.post(path, {"job_id": job["id"], "worker_id": "w1"}).status_code == 200


@pytest.mark.slow
def test_who_is_not_named_is_not_compared(ojs, held):
    assert ojs.post(ACK, {"job_id": held("w1")["id"]}).status_code == 200
    assert ojs.post(ACK, {"job_id": held()["id"], "worker_id": "w2"}).status_code == 200


@pytest.mark.parametrize("result", ['{"a": "\\u0000"}', "12345678901234567890", '"\\ud800"', "1e300"])
def test_a_result_that_cannot_be_stored_is_refused_and_the_job_stays_active(ojs, held, refused, state, result):
    job = held()
    body = f'{{"job_id": "{job["id"]}", "result": {result}}}'.encode()
    assert refused(ojs.post(ACK, body), 400, "invalid_request")["details"]["field"].startswith("result")
    assert state(job)["state"] == "active"


def test_a_result_that_is_too_large_is_refused_and_the_job_stays_active(ojs, held, refused, state, settings):
    settings.OJS_UNIQUE = {"MAX_RESULT_BYTES": 100}
    job = held()
    refused(ojs.post(ACK, {"job_id": job["id"], "result": "x" * 99}), 413, "payload_too_large")
    assert state(job)["state"] == "active"
    assert ojs.post(ACK, {"job_id": job["id"], "result": "x" * 98}).status_code == 200


# Nack


@pytest.mark.slow
def test_a_failed_attempt_is_retried_after_the_delay_of_its_policy(ojs, held, state):
    retry = {"max_attempts": 3, "initial_interval": "PT10S", "backoff_coefficient": 3, "jitter": False}
    job = held(options={"retry": retry})
    error = {"code": "E1", "message": "no", "type": "net.timeout", "details": {"a": 1}, "backtrace": ["x", "y"]}
    before = timezone.now()
    answer = ojs.post(NACK, {"job_id": job["id"], "error": error}).json()
    after = timezone.now()
    shown = state(job)
    assert answer == {
        "id": job["id"],
        "job_id": job["id"],
        "state": "retryable",
        "attempt": 1,
        "max_attempts": 3,
        "retry_delay_ms": 10_000,
        "next_attempt_at": answer["next_attempt_at"],
    }
    assert before + timedelta(seconds=10) <= row(job).run_at <= after + timedelta(seconds=10)
    assert (shown["state"], shown["retry_delay_ms"]) == ("retryable", 10_000)
    record = {"type": "net.timeout", "code": "E1", "message": "no", "details": {"a": 1}, "backtrace": "x\ny"}
    assert shown["error"] == {
        **record,
        "attempt": 1,
        "started_at": rfc3339(row(job).started_at),
        "retryable": True,
        "retry_delay_ms": 10_000,
        "occurred_at": milliseconds(row(job).run_at - timedelta(seconds=10)),
    }
    Job._base_manager.update(run_at=timezone.now())
    (again,) = ojs.fetch()
    assert (again["attempt"], again["retry_delay_ms"]) == (2, 10_000)
    assert ojs.post(NACK, {"job_id": job["id"], "error": error}).json()["retry_delay_ms"] == 30_000


@pytest.mark.parametrize(("on_exhaustion", "dead_letter"), [("discard", False), ("dead_letter", True)])
def test_the_last_attempt_discards(ojs, held, state, on_exhaustion, dead_letter):
    job = held(options={"retry": {"max_attempts": 1, "on_exhaustion": on_exhaustion}})
    answer = ojs.post(NACK, {"job_id": job["id"], "error": {"code": "E1", "message": "no", "retryable": True}}).json()
    shown = state(job)
    assert answer == {
        "id": job["id"],
        "job_id": job["id"],
        "state": "discarded",
        "attempt": 1,
        "max_attempts": 1,
        "discarded_at": shown["discarded_at"],
        "completed_at": shown["completed_at"],
    }
    assert row(job).dead_letter is dead_letter


@pytest.mark.parametrize(
    ("error", "end"),
    [
        ({"retryable": False}, "discarded"),
        ({"code": "fatal"}, "discarded"),
        ({"type": "fatal"}, "discarded"),
        ({"details": {"error_class": "fatal"}}, "discarded"),
        ({"type": "other", "code": "fatal", "retryable": True}, "discarded"),
        ({"code": "auth.expired"}, "discarded"),
        ({"code": "auth"}, "retryable"),
        ({"code": "Fatal"}, "retryable"),
        ({"message": "fatal"}, "retryable"),
        ({}, "retryable"),
        (None, "retryable"),
    ],
)
def test_an_error_that_is_not_to_be_retried_discards_at_once(ojs, held, error, end):
    job = held(options={"retry": {"non_retryable_errors": ["fatal", "auth.*"]}})
    assert ojs.post(NACK, {"job_id": job["id"], "error": error}).json()["state"] == end


@pytest.mark.parametrize(
    ("error", "type"),
    [
        ({"type": "a", "details": {"error_class": "b"}, "code": "c"}, "a"),
        ({"details": {"error_class": "b"}, "code": "c"}, "b"),
        ({"details": {"error_class": 1}, "code": "c"}, "c"),
        ({"details": "none"}, "handler_error"),
    ],
)
def test_the_type_of_an_error_is_the_most_exact_name_that_it_has(ojs, held, state, error, type):
    job = held()
    ojs.post(NACK, {"job_id": job["id"], "error": error})
    assert state(job)["error"]["type"] == type


@pytest.mark.slow
def test_a_requeued_job_is_available_at_once_and_the_attempt_does_not_count(ojs, held, state):
    job = held(options={"retry": {"max_attempts": 1}})
    body = {"job_id": job["id"], "requeue": True, "error": {"code": "E", "retryable": False}}
    answer = ojs.post(NACK, body).json()
    assert answer == {"id": job["id"], "job_id": job["id"], "state": "available", "attempt": 0, "max_attempts": 1}
    shown = state(job)
    assert not {"started_at", "worker_id", "error", "retry_delay_ms"} & shown.keys()
    assert [one["attempt"] for one in ojs.fetch()] == [1]


def test_the_report_of_a_failure_is_kept_though_parts_of_it_cannot_be(ojs, held, state):
    job = held()
    long = "x" * 100_000
    error = {
        "code": long,
        "type": "a\x00b",
        "message": f"\x00{long}",
        "details": {"a": "\x00", "b": long},
        "backtrace": long,
    }
    assert ojs.post(NACK, {"job_id": job["id"], "error": error}).status_code == 200
    kept = state(job)["error"]
    assert kept["type"] == "a�b"
    assert (len(kept["code"]), len(kept["message"]), len(kept["backtrace"])) == (255, 1000, 8000)
    assert list(kept["details"]) == ["left_out"]


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({"error": "no"}, "error"),
        ({"error": []}, "error"),
        ({"error": {"code": 1}}, "error.code"),
        ({"error": {"type": {}}}, "error.type"),
        ({"error": {"message": []}}, "error.message"),
        ({"error": {"retryable": "no"}}, "error.retryable"),
        ({"requeue": 1}, "requeue"),
    ],
)
def test_a_nack_that_makes_no_sense_is_refused_and_the_job_stays_active(ojs, held, refused, state, members, field):
    job = held()
    error = refused(ojs.post(NACK, {"job_id": job["id"], **members}), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert state(job)["state"] == "active"


@pytest.mark.slow
def test_the_last_ten_errors_are_kept(ojs, held, state):
    job = held(options={"retry": {"max_attempts": 20}})
    for number in range(12):
        ojs.post(NACK, {"job_id": job["id"], "error": {"code": f"e{number}"}})
        Job._base_manager.update(run_at=timezone.now())
        ojs.fetch()
    assert [error["code"] for error in state(job)["errors"]] == [f"e{number}" for number in range(2, 12)]


# Signals


@pytest.mark.slow
def test_what_workers_outside_do_is_announced_and_a_receiver_that_breaks_undoes_nothing(ojs, held):
    heard = []

    def hear(signal, job, **arguments):
        heard.append((signal, job.pk, job.state))
        Job.objects.raw("no sql")[0]  # breaks a transaction of PostgreSQL

    for signal in (job_started, job_completed, job_failed, job_discarded):
        signal.connect(hear)
    try:
        first, second, third = (held()["id"] for _ in range(3))
        ojs.post(ACK, {"job_id": first})
        ojs.post(NACK, {"job_id": second})
        ojs.post(NACK, {"job_id": third, "error": {"retryable": False}})
    finally:
        for signal in (job_started, job_completed, job_failed, job_discarded):
            signal.disconnect(hear)
    finalized = [(job_completed, "completed"), (job_failed, "retryable"), (job_discarded, "discarded")]
    assert [(signal, state) for signal, _, state in heard] == [(job_started, "active")] * 3 + finalized
    assert sorted(Job.objects.values_list("state", flat=True)) == ["completed", "discarded", "retryable"]


@pytest.mark.parametrize("path", [ACK, NACK])
def test_who_listens_to_one_end_only_hears_of_it(ojs, held, monkeypatch, path):
    for signal in (job_completed, job_failed, job_discarded):
        monkeypatch.setattr(signal, "receivers", [])
    heard = []

    def hear(job, **arguments):
        heard.append(job.state)

    (job_completed if path == ACK else job_failed).connect(hear)
    ojs.post(path, {"job_id": held()["id"]})
    assert heard == ["completed" if path == ACK else "retryable"]


# Leases and time limits


@pytest.mark.slow
def test_a_job_whose_lease_ran_out_is_available_again_and_a_late_ack_is_refused(ojs, held, state, refused):
    job = held("w1", options={"timeout_ms": 3_600_000_000, "visibility_timeout_ms": 1000})
    let_lease_end(job)
    refused(ojs.post(ACK, {"job_id": job["id"], "worker_id": "w1"}), 409, "conflict")
    stored = row(job)
    assert (stored.state, stored.attempt) == ("available", 1)
    shown = state(job)
    assert not {"started_at", "worker_id"} & shown.keys()
    assert [(error["type"], error["attempt"]) for error in shown["errors"]] == [("visibility_timeout", 1)]
    assert [one["attempt"] for one in ojs.fetch()] == [2]


@pytest.mark.slow
def test_a_read_shows_that_a_lease_ran_out_and_the_last_attempt_discards(held, state):
    job = held(options={"retry": {"max_attempts": 1}})
    let_lease_end(job)
    shown = state(job)
    assert (shown["state"], shown["error"]["type"]) == ("discarded", "visibility_timeout")
    assert state(job) == shown


@pytest.mark.slow
def test_an_attempt_that_takes_too_long_fails_though_its_worker_is_alive(ojs, held, state, refused):
    job = held("w1", options={"timeout_ms": 60_000, "retry": {"initial_interval": "PT20S", "jitter": False}})
    stored = row(job)
    assert stored.lease_expires_at == stored.started_at + timedelta(minutes=1)
    ojs.post(HEARTBEAT, {"worker_id": "w1", "active_jobs": [job["id"]], "visibility_timeout_ms": 7_200_000})
    assert row(job).lease_expires_at == stored.lease_expires_at
    let_lease_end(job)
    shown = state(job)
    assert (shown["state"], shown["retry_delay_ms"]) == ("retryable", 20_000)
    assert {name: shown["error"][name] for name in ("type", "code", "attempt", "retryable")} == {
        "type": "timeout",
        "code": "timeout",
        "attempt": 1,
        "retryable": True,
    }
    refused(ojs.post(ACK, {"job_id": job["id"]}), 409, "conflict")


@pytest.mark.parametrize("retry", [{"max_attempts": 1}, {"non_retryable_errors": ["timeout"]}])
def test_an_attempt_that_takes_too_long_discards_a_job_that_is_not_to_be_retried(held, state, retry):
    job = held(options={"timeout_ms": 60_000, "retry": retry})
    let_lease_end(job)
    shown = state(job)
    assert (shown["state"], shown["error"]["type"]) == ("discarded", "timeout")
    assert shown["completed_at"] == shown["discarded_at"]


def test_a_lease_that_is_shorter_than_the_time_limit_stays_so(held):
    job = held(options={"timeout_ms": 3_600_000, "visibility_timeout_ms": 60_000})
    stored = row(job)
    assert stored.lease_expires_at < stored.started_at + timedelta(minutes=2)


# Heartbeat


@pytest.mark.slow
def test_a_heartbeat_extends_what_its_worker_holds_and_nothing_else(ojs, held):
    own = held("w1", options={"visibility_timeout_ms": 600_000})["id"]
    common = held("w1")["id"]
    nobodys = held()["id"]
    others = held("w2")["id"]
    done = held("w1")["id"]
    ojs.post(ACK, {"job_id": done})
    lapsed = held("w1")
    let_lease_end(lapsed)
    before = timezone.now()
    soon = before + timedelta(minutes=9)
    Job._base_manager.filter(pk__in=[own, common, nobodys, others]).update(lease_expires_at=soon)
    ids = [own, common, nobodys, others, done, lapsed["id"], str(uuid4()), "no id", "\x00"]
    answer = ojs.post(HEARTBEAT, {"worker_id": "w1", "active_jobs": ids}).json()
    assert answer["state"] == "running"
    assert answer["server_time"]
    assert sorted(answer["jobs_extended"]) == sorted([own, common, nobodys])
    assert row({"id": others}).lease_expires_at == soon
    assert lasts({"id": own}, timedelta(minutes=10), before)
    assert lasts({"id": common}, timedelta(minutes=30), before)
    ojs.post(HEARTBEAT, {"worker_id": "w1", "job_id": own, "visibility_timeout_ms": 86_400_000})
    assert lasts({"id": own}, timedelta(days=1), before)


def test_a_heartbeat_lets_operators_see_the_worker(ojs, held):
    job = held("go-worker:1")
    body = {"worker_id": "go-worker:1", "hostname": "box", "pid": 7, "queues": ["default", "mail"], "concurrency": 3}
    ojs.post(HEARTBEAT, {**body, "active_jobs": [job["id"]], "state": "running", "anything": {}})
    ojs.post(HEARTBEAT, {**body, "active_jobs": [job["id"]], "state": "quiet"})
    (worker,) = ojs.get("/ojs/v1/workers").json()["workers"]
    times = {name: worker[name] for name in ("started_at", "heartbeat_at")}
    assert worker == {
        "id": "go-worker:1",
        "state": "quiet",
        "directive": "running",
        "hostname": "box",
        "pid": 7,
        "queues": ["default", "mail"],
        "concurrency": 3,
        "held": 1,
        "finalized": 0,
        **times,
    }


def test_a_worker_that_missed_three_heartbeats_is_silent(ojs, held):
    ojs.post(HEARTBEAT, {"worker_id": "w", "active_jobs": []})
    WorkerProcess.objects.update(heartbeat_at=timezone.now() - timedelta(hours=4))
    assert [one["state"] for one in ojs.get("/ojs/v1/workers").json()["workers"]] == ["silent"]


@pytest.mark.parametrize(
    "said",
    [
        {"hostname": 1},
        {"hostname": "\x00"},
        {"pid": "1"},
        {"pid": -1},
        {"pid": 2**70},
        {"queues": [1, "X"]},
        {"state": []},
    ],
)
def test_a_heartbeat_that_tells_nonsense_of_its_worker_is_a_heartbeat(ojs, said):
    assert ojs.post(HEARTBEAT, {"worker_id": "w", **said}).status_code == 200
    assert WorkerProcess.objects.get().pk == "w"


@pytest.mark.parametrize(
    ("members", "field"),
    [
        ({}, "worker_id"),
        ({"worker_id": ""}, "worker_id"),
        *(({"worker_id": f"w{one}1"}, "worker_id") for one in "\n\r\t\x1b\x7f\x9b\u2028\u202e"),
        ({"worker_id": "w", "active_jobs": "x"}, "active_jobs"),
        ({"worker_id": "w", "active_jobs": [1]}, "active_jobs"),
        ({"worker_id": "w", "active_jobs": ["x"] * 1001}, "active_jobs"),
        ({"worker_id": "w", "visibility_timeout_ms": -1}, "visibility_timeout_ms"),
    ],
)
def test_a_heartbeat_that_makes_no_sense_is_refused(ojs, refused, members, field):
    assert refused(ojs.post(HEARTBEAT, members), 400, "invalid_request")["details"]["field"] == field
    assert not WorkerProcess.objects.exists()


def test_a_worker_is_told_what_an_operator_wants_until_it_is_resumed(ojs, refused):
    id = "box:7/ä b"
    path = "/ojs/v1/workers/box:7/%C3%A4%20b"
    refused(ojs.post(f"{path}/quiet"), 404, "not_found")
    ojs.post(HEARTBEAT, {"worker_id": id})
    for act, told in (("quiet", "quiet"), ("terminate", "terminate"), ("resume", "running")):
        answer = ojs.post(f"{path}/{act}")
        assert answer.status_code == 200
        assert (answer.json()["worker"]["id"], answer.json()["worker"]["directive"]) == (id, told)
        assert ojs.post(HEARTBEAT, {"worker_id": id}).json()["state"] == told


def test_the_metadata_of_a_job_does_not_direct_its_worker(ojs, held, settings):
    settings.DEBUG = True
    id = held("w", options={"metadata": {"test_directive": "quiet"}})["id"]
    assert ojs.post(HEARTBEAT, {"worker_id": "w", "active_jobs": [id]}).json()["state"] == "running"


@pytest.mark.slow
def test_a_fetch_that_names_types_leaves_the_others(ojs, refused):
    ojs.enqueue("python.only", options={"priority": 9})
    mine = ojs.enqueue("go.only")
    assert [job["id"] for job in ojs.fetch(types=["go.only", "go.other"])] == [mine["id"]]
    assert ojs.fetch(types=["go.only"]) == []
    for types in ([], "go.only", [1], ["NO TYPE"]):
        response = ojs.post("/ojs/v1/workers/fetch", {"queues": ["default"], "types": types})
        refused(response, 400, "invalid_request")


def test_a_traceback_of_a_foreign_worker_is_not_taken_for_one_of_ours(ojs):
    """The class of an exception is imported where somebody asks for it, by the path that stands beside a traceback."""
    id = ojs.enqueue()["id"]
    ojs.fetch()
    error = {"type": "os.system", "details": {"traceback": "made up", "host": "db"}}
    ojs.post("/ojs/v1/workers/nack", {"job_id": id, "error": error})
    stored = Job.objects.get(pk=id).errors[-1]
    assert (stored["details"], stored["backtrace"]) == ({"host": "db"}, "made up")
