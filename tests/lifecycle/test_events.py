"""Events: what is recorded, in which transaction, and that who follows the feed misses none."""

from collections import Counter
from datetime import timedelta
from functools import partial
from pathlib import Path

import pytest
from django.core.management import call_command
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import DuplicateJob, job, lifecycle, signals
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution import leases
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.lifecycle import events
from django_ojs_unique.maintenance import cron, timers
from django_ojs_unique.models import CronJob, Event, Job, Queue
from django_ojs_unique.models import event as feed
from django_ojs_unique.reporting.timeline import requeued as timeline_of_requeued
from django_ojs_unique.reporting.timeline import timeline
from django_ojs_unique.worker import Worker, remote
from django_ojs_unique.worker.remote_worker import RemoteWorker, new_token
from tests.support.processes import together
from tests.support.refusals import refused
from tests.support.retries import IN_AN_HOUR

pytestmark = pytest.mark.django_db(transaction=True)

PAST = timedelta(days=1)
NOW = {"now": timezone.now(), "lease": timedelta(minutes=1)}


class Failing:
    """A dialect whose events cannot be written."""

    def __init__(self, model, connection):
        self.connection = connection

    def insert_rows(self, rows):
        self.connection.cursor().execute("SELECT nothing")


@pytest.fixture(autouse=True)
def on(settings):
    settings.OJS_UNIQUE = {"EVENTS": True}


def told(*types):
    """Return what the feed has: the type and the data of each event of these types, or of all."""
    return [(each.type, each.to_dict()["data"]) for each in Event.objects.follow(limit=1000, types=types).events]


def about(job, **data):
    return {"job_id": str(job.pk), "job_type": job.type, "queue": job.queue, **data}


def run(handlers, type="t", does=lambda **kwargs: None, **options):
    """Run a new job of a new type; return it."""
    job(type, **options)(does)
    enqueued = Job.objects.enqueue(type).job
    Worker().run(drain=True)
    enqueued.refresh_from_db()
    return enqueued


# What is recorded


def test_an_enqueue_is_told():
    enqueued = Job.objects.enqueue("t", priority=7).job
    assert told() == [("job.enqueued", about(enqueued, priority=7))]


def test_an_enqueue_for_later_is_told_with_its_time():
    later = timezone.now().replace(microsecond=5000) + PAST
    scheduled = Job.objects.enqueue("t", scheduled_at=later).job
    assert told() == [("job.scheduled", about(scheduled, scheduled_at=f"{later:%Y-%m-%dT%H:%M:%S}.005Z"))]


def test_a_pending_job_is_told_once_it_is_activated():
    pending = Job.objects.enqueue_request(Request(type="t", pending=True)).job
    assert told() == []
    pending.activate()
    assert told() == [("job.enqueued", about(pending, priority=0, reason="activated"))]


def test_a_rewrite_by_key_is_told_as_an_update():
    later = timezone.now().replace(microsecond=0) + PAST
    updated = []
    signals.job_updated.connect(receive := lambda job, **more: updated.append(job.pk))
    waiting = Job.objects.enqueue("t", key="k").job
    Job.objects.enqueue("t", key="k", priority=3)
    Job.objects.enqueue("t", key="k", scheduled_at=later)
    signals.job_updated.disconnect(receive)
    assert updated == [waiting.pk, waiting.pk]
    assert told() == [
        ("job.enqueued", about(waiting, priority=0)),
        ("job.enqueued", about(waiting, priority=3, reason="updated")),
        ("job.scheduled", about(waiting, scheduled_at=f"{later:%Y-%m-%dT%H:%M:%S}.000Z", reason="updated")),
    ]


def test_a_run_that_is_requeued_is_told_between_its_two_starts(handlers):
    workers = [Worker(), Worker()]

    def stops_the_first(context):
        workers[0].stop()
        context.checkpoint()

    job("t", takes_context=True)(stops_the_first)
    requeued = Job.objects.enqueue("t", priority=1).job
    for worker in workers:
        worker.run(drain=True)
    first, second = (about(requeued, worker_id=worker.id, attempt=1) for worker in workers)
    assert told()[:-1] == [
        ("job.enqueued", about(requeued, priority=1)),
        ("job.started", first),
        ("job.enqueued", about(requeued, priority=1, reason="requeued")),
        ("job.started", second),
    ]
    assert told()[-1][0] == "job.completed"
    requeued.refresh_from_db()
    assert [event.text for event in timeline(requeued, timeline_of_requeued(requeued, "default"))] == [
        "Created",
        "Became available",
        f"Attempt 1 started by worker {workers[0].id}",
        "Requeued by its worker: the attempt does not count",
        f"Attempt 1 started by worker {workers[1].id}",
        "Completed",
    ]


@pytest.mark.parametrize("unique", [None, {"on_retry": "discard"}], ids=["plain", "looks first"])
def test_a_job_that_its_client_requeues_is_told(unique):
    fetched = Job.objects.enqueue("t", unique=unique).job
    jobs, now, holder = Job.objects.all(), timezone.now(), RemoteWorker("1", worker_id="w")
    options = {"worker_id": "w", "token": new_token(holder.account), "lease": Lease(timedelta(minutes=1))}
    remote.fetch(jobs, {"default": None}, count=1, now=now, **options)
    remote.requeue(jobs, fetched.pk, holder=holder, now=now)
    assert told()[2:] == [("job.enqueued", about(fetched, priority=0, reason="requeued"))]


@pytest.mark.parametrize("begun", [True, False], ids=["begun", "claimed"])
@pytest.mark.parametrize("may_run_again", [True, False], ids=["again", "never again"])
def test_only_what_had_begun_and_waits_again_is_told(begun, may_run_again):
    held = Job.objects.enqueue("t").job
    (claimed,) = claim(Job.objects.all(), queues=["default"], types=None, limit=1, worker_id="w", **NOW)
    if not may_run_again:
        lifecycle.last_attempt(Job.objects.filter(pk=held.pk))
    leases.requeue(Job.objects.all(), [claimed], {held.pk} if begun else ())
    again = ("job.enqueued", about(held, priority=0, reason="requeued"))
    assert told()[1:] == ([again] if begun and may_run_again else [])


def test_to_requeue_a_run_costs_no_statement_more_while_nobody_listens(settings):
    settings.OJS_UNIQUE = {"EVENTS": False}
    counts = set()
    for begun in (True, False):
        Job.objects.enqueue("t")
        (claimed,) = claim(Job.objects.all(), queues=["default"], types=None, limit=1, worker_id="w", **NOW)
        with CaptureQueriesContext(connection) as queries:
            leases.requeue(Job.objects.all(), [claimed], {claimed.pk} if begun else ())
        counts.add(len(queries))
        Job.objects.all().delete()
    assert len(counts) == 1


def test_a_batch_is_told_item_by_item():
    unique = {"type": "a", "unique": {}}
    batch = Job.objects.enqueue_many([unique, {"type": "b"}, {"type": "Invalid"}, unique])
    assert told() == [("job.enqueued", about(one.job, priority=0)) for one in batch.results[:2]]


def test_a_run_is_told_from_start_to_end(handlers):
    done = run(handlers, does=lambda: {"n": 1})
    _, started, completed = told()
    assert started == ("job.started", about(done, worker_id=done.worker_id, attempt=1))
    took = round((done.finished_at - done.started_at) / timedelta(milliseconds=1))
    assert completed == ("job.completed", about(done, attempt=1, duration_ms=took, result={"n": 1}))


def test_a_run_of_a_worker_outside_is_told_alike():
    held = Job.objects.enqueue("t").job
    jobs, now, holder = Job.objects.all(), timezone.now(), RemoteWorker("1", worker_id="w")
    options = {"worker_id": "w", "token": new_token(holder.account), "lease": Lease(timedelta(minutes=1))}
    remote.fetch(jobs, {"default": None}, count=1, now=now, **options)
    remote.ack(jobs, held.pk, result=[1], holder=holder, now=now)
    _, started, (completed, data) = told()
    assert started == ("job.started", about(held, worker_id="w", attempt=1))
    assert (completed, data["result"]) == ("job.completed", [1])


def test_a_large_result_is_left_to_the_job(handlers):
    run(handlers, does=lambda: "x" * events.LARGEST_RESULT)
    ((_, data),) = told("job.completed")
    assert data["result_omitted"] is True
    assert "result" not in data


def test_a_failure_that_is_retried_is_told_with_its_next_time(handlers):
    failed = run(handlers, does=lambda: 1 / 0, retry={"max_attempts": 4, **IN_AN_HOUR})
    (_, _, (failure, told_of), (retry, when)) = told()
    error = {name: value for name, value in failed.errors[0].items() if name != "details"}
    assert (failure, told_of) == ("job.failed", about(failed, attempt=1, error=error))
    at = when.pop("next_retry_at")
    assert (retry, when) == ("job.retrying", about(failed, attempt=1, max_attempts=4, error=error))
    assert at[:19] == f"{failed.run_at:%Y-%m-%dT%H:%M:%S}"


def test_the_last_failure_is_told_as_a_failure_and_a_discard(handlers):
    discarded = run(handlers, does=lambda: 1 / 0, retry={"max_attempts": 1})
    error = {name: value for name, value in discarded.errors[0].items() if name != "details"}
    assert told("job.failed") == [("job.failed", about(discarded, attempt=1, error=error))]
    assert told("job.discarded") == [("job.discarded", about(discarded, total_attempts=1, last_error=error))]


def test_a_long_message_is_cut(handlers):
    enqueued = Job.objects.enqueue("t").job
    signals.job_failed.send_robust(
        Job, job=enqueued, error={"message": "x" * 5000, "backtrace": ["y"]}, using="default"
    )
    ((_, data),) = told("job.failed")
    assert data["error"] == {"message": "x" * events.LONGEST_MESSAGE}


@pytest.mark.slow
def test_a_retry_that_was_superseded_is_no_failed_attempt(handlers):
    policy = {"states": ["available", "active"], "on_retry": "discard"}
    superseded = run(handlers, does=lambda: 1 / 0, unique=policy, queue="q", retry=IN_AN_HOUR)
    Job.objects.enqueue("t", queue="q")
    Job._base_manager.filter(pk=superseded.pk).update(run_at=timezone.now() - PAST)
    timers.promote(Job.objects.all(), timezone.now())
    assert len(told("job.failed")) == 1
    ((_, data),) = told("job.discarded")
    assert (data["job_id"], data["last_error"]["code"]) == (str(superseded.pk), "superseded")


def test_a_cancellation_is_told_with_its_reason():
    Job.objects.enqueue("a").job.cancel()
    old = Job.objects.enqueue("b", unique={"on_conflict": "replace"}).job
    new = Job.objects.enqueue("b", unique={"on_conflict": "replace"}).job
    (_, plain), (_, replaced) = told("job.cancelled")
    assert plain["reason"] == "cancelled"
    assert replaced == about(old, reason="replaced", replaced_by=str(new.pk))


def test_a_retried_job_is_enqueued_again(handlers):
    run(handlers, does=lambda: 1 / 0, retry={"max_attempts": 1}).retry()
    assert [type for type, _ in told()][-2:] == ["job.discarded", "job.enqueued"]


def test_a_rewritten_job_is_enqueued_again():
    Job.objects.enqueue("t", {"n": 1}, key="k")
    Job.objects.enqueue("t", {"n": 2}, key="k", scheduled_at=timezone.now() + PAST)
    assert [type for type, _ in told()] == ["job.enqueued", "job.scheduled"]


def test_a_lost_lease_is_a_failure_without_a_retry(handlers):
    lost = Job.objects.enqueue("t").job
    Job._base_manager.filter(pk=lost.pk).update(
        state="active",
        attempt=1,
        started_at=timezone.now(),
        lease_token=lost.pk,
        lease_expires_at=timezone.now() - PAST,
    )
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    assert [type for type, _ in told()] == ["job.enqueued", "job.failed"]


def test_an_expiry_is_told():
    until = timezone.now().replace(microsecond=0) - PAST
    late = Job.objects.enqueue("t", expires_at=timezone.now() + PAST).job
    Job.objects.filter(pk=late.pk).update(expires_at=until)
    timers.expire(Job.objects.all(), timezone.now())
    timers.expire(Job.objects.all(), timezone.now())
    assert told("job.expired") == [("job.expired", about(late, expired_at=f"{until:%Y-%m-%dT%H:%M:%S}.000Z"))]
    assert told("job.discarded") == []


def test_a_periodic_job_is_told_when_it_is_enqueued_and_when_it_is_not():
    CronJob.objects.define("hourly", "@hourly", "t")
    now = timezone.now() + PAST
    cron.tick("default", now)
    cron.tick("default", now + timedelta(hours=1))
    job = Job.objects.get()
    assert told() == [
        ("job.enqueued", about(job, priority=0)),
        ("cron.triggered", {"cron_name": "hourly", "job_id": str(job.pk), "job_type": "t"}),
        ("cron.skipped", {"cron_name": "hourly", "job_type": "t", "reason": "skipped"}),
    ]


def test_a_queue_is_told_when_it_changes_only():
    for _ in range(2):
        Queue.objects.pause("emails")
    for _ in range(2):
        Queue.objects.resume("emails")
    assert told() == [("queue.paused", {"queue": "emails"}), ("queue.resumed", {"queue": "emails"})]


def test_every_type_that_there_is_was_told_by_a_test_above():
    files = (Path(__file__), Path(__file__).parent.parent / "workflows/test_events.py")
    source = "".join(file.read_text() for file in files)
    assert [type for type in events.TYPES if f'"{type}"' not in source] == []


def test_nothing_is_recorded_and_nobody_listens_while_it_is_off(settings, handlers):
    settings.OJS_UNIQUE = {}
    assert not any(signal.disconnect(receiver) for signal, receiver in events.RECEIVERS)
    run(handlers)
    assert not Event.objects.exists()


# In which transaction


def test_a_rollback_leaves_no_event():
    with transaction.atomic():
        Job.objects.enqueue("t")
        Job.objects.enqueue_many([{"type": "t"}])
        Queue.objects.pause("emails")
        transaction.set_rollback(True)
    assert told() == []


@pytest.mark.skipif(connection.vendor != "sqlite", reason="other databases have no single write lock")
def test_a_change_waits_for_the_write_lock_before_it_reads(handlers):
    discarded = run(handlers, does=lambda: 1 / 0, retry={"max_attempts": 1})
    CronJob.objects.define("hourly", "@hourly", "t")
    for change in (discarded.retry, partial(CronJob.objects.remove, "hourly")):
        with CaptureQueriesContext(connection) as queries:
            change()
        begin, first = (query["sql"] for query in queries.captured_queries[:2])
        assert (begin, first.split()[0]) == ("BEGIN IMMEDIATE", "DELETE")


def test_a_refused_enqueue_leaves_its_record_and_no_event():
    first = Job.objects.enqueue("t", unique={}).job
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue("t", unique={})
    assert told() == [("job.enqueued", about(first, priority=0))]
    assert first.suppressed_enqueues.count() == 1


@pytest.mark.parametrize(
    "change",
    [
        lambda: Job.objects.enqueue("t"),
        lambda: Job.objects.enqueue("t", key="k"),
        lambda: Job.objects.enqueue_many([{"type": "t"}, {"type": "u"}]),
        lambda: Queue.objects.pause("emails"),
    ],
    ids=["enqueue", "by key", "batch", "pause"],
)
def test_a_change_whose_event_cannot_be_written_does_not_happen(change, monkeypatch):
    monkeypatch.setattr(events, "dialect_on", Failing)
    with pytest.raises(Exception, match="nothing"):
        change()
    assert not Job.objects.exists()
    assert not Queue.objects.exclude(paused_at=None).exists()


def test_a_lost_lease_whose_event_cannot_be_written_is_left_for_the_next_time(monkeypatch):
    lost = Job.objects.enqueue("t").job
    options = {"worker_id": "w", "lease": Lease(-PAST), "now": timezone.now()}
    remote.fetch(Job.objects.all(), {"default": None}, count=1, **options)
    with monkeypatch.context() as patch:
        patch.setattr(events, "dialect_on", Failing)
        with pytest.raises(Exception, match="nothing"):
            timers.rescue(Job.objects.all(), timezone.now())
    lost.refresh_from_db()
    assert lost.state == "active"
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    assert told()[-1][0] == "job.failed"


def test_an_ack_whose_event_cannot_be_written_changes_nothing(monkeypatch):
    held, holder = Job.objects.enqueue("t").job, RemoteWorker("1", worker_id="w")
    now, options = timezone.now(), {"worker_id": "w", "lease": Lease(PAST), "token": new_token(holder.account)}
    remote.fetch(Job.objects.all(), {"default": None}, count=1, now=now, **options)
    monkeypatch.setattr(events, "dialect_on", Failing)
    with pytest.raises(Exception, match="nothing"):
        remote.ack(Job.objects.all(), held.pk, holder=holder, now=now)
    held.refresh_from_db()
    assert held.state == "active"


@pytest.mark.slow
def test_a_receiver_whose_query_fails_keeps_no_lost_lease_from_being_taken_back():
    lost = Job.objects.enqueue("t").job
    options = {"worker_id": "w", "lease": Lease(-PAST), "now": timezone.now()}
    remote.fetch(Job.objects.all(), {"default": None}, count=1, **options)

    def fail(**kwargs):
        connection.cursor().execute("SELECT nothing")

    signals.job_failed.connect(fail)
    try:
        assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    finally:
        signals.job_failed.disconnect(fail)
    lost.refresh_from_db()
    assert lost.state == "available"
    assert told()[-1][0] == "job.failed"


def test_an_outcome_stands_though_its_event_cannot_be_written(handlers, monkeypatch, caplog):
    job("t")(lambda: None)
    enqueued = Job.objects.enqueue("t").job
    monkeypatch.setattr(events, "dialect_on", Failing)
    Worker().run(drain=True)
    enqueued.refresh_from_db()
    assert enqueued.state == "completed"
    assert "events are lost, beginning with job.completed" in caplog.text


# The feed


def ids(page):
    return [str(event) for event in page.events]


def note(count, **values):
    Event.objects.bulk_create([Event(**{"type": "job.enqueued", "subject": "s", **values}) for _ in range(count)])


def test_a_cursor_goes_on_behind_what_was_seen():
    note(5)
    first = Event.objects.follow(limit=2)
    second = Event.objects.follow(first.cursor, limit=2)
    third = Event.objects.follow(second.cursor, limit=2)
    assert ids(first) + ids(second) + ids(third) == [str(each) for each in Event.objects.order_by("pk")]
    assert [page.has_more for page in (first, second, third)] == [True, True, False]
    assert (third.cursor, ids(Event.objects.follow(third.cursor))) == (ids(third)[-1], [])
    assert Event.objects.follow(third.cursor).cursor == third.cursor


def test_an_empty_feed_has_no_cursor():
    assert Event.objects.follow() == feed.EventPage([], None, False)


def test_a_selective_look_is_bounded_and_gets_on(monkeypatch):
    monkeypatch.setattr(feed, "LOOKED_THROUGH", 3)
    note(4)
    note(1, type="job.cancelled")
    note(1)
    page = Event.objects.follow(types=["job.cancelled"])
    assert (page.events, page.has_more) == ([], True)
    page = Event.objects.follow(page.cursor, types=["job.cancelled"])
    assert ([each.type for each in page.events], page.has_more) == (["job.cancelled"], True)
    page = Event.objects.follow(page.cursor, types=["job.cancelled"])
    assert (page.events, page.has_more) == ([], False)


def test_what_cannot_be_published_at_once_is_promised(monkeypatch):
    monkeypatch.setattr(feed, "PUBLISHED_AT_ONCE", 2)
    note(3)
    page = Event.objects.follow()
    assert (len(page.events), page.has_more) == (2, True)
    assert len(Event.objects.follow(page.cursor).events) == 1


@pytest.mark.parametrize("after", ["", "x", "evt_", f"evt_{'0' * 36}", 7])
def test_a_cursor_that_is_none_is_refused(after):
    with refused(InvalidRequest, "after", names="cursor"):
        Event.objects.follow(after)


def test_a_cursor_that_was_pruned_is_refused(settings):
    settings.OJS_UNIQUE = {"EVENTS": True, "EVENT_RETENTION": "P2D"}
    note(2, time=timezone.now() - timedelta(days=3))
    first = Event.objects.follow(limit=1)
    note(1)
    Event.objects.follow()
    assert Event.objects.prune(timezone.now()) == 2
    with refused(InvalidRequest, "after", names="EVENT_RETENTION"):
        Event.objects.follow(first.cursor)


def test_the_newest_event_is_kept_for_those_who_wait_for_the_next_one():
    note(3, time=timezone.now() - timedelta(days=30))
    cursor = Event.objects.follow().cursor
    assert [Event.objects.prune(timezone.now()) for _ in range(2)] == [2, 0]
    note(1)
    assert len(Event.objects.follow(cursor).events) == 1


def test_the_worker_and_the_command_prune(handlers):
    Job.objects.enqueue("t", delay=timedelta(days=1))  # else a drain has nothing to do, and ends at once
    Event.objects.all().delete()
    for prune in (lambda: Worker().run(drain=True), lambda: call_command("prunejobs", verbosity=0)):
        note(3, time=timezone.now() - timedelta(days=30))
        Event.objects.follow(limit=1000)
        prune()
        assert Event.objects.count() == 1


WRITERS, ROUNDS = 4, 6


def writes(number, round):
    """Enqueue in transactions of different lengths, every third of which rolls back; cancel half of the jobs."""
    for turn in range(3):
        with transaction.atomic():
            jobs = [Job.objects.enqueue("t", [number, round, turn]).job for _ in range(2 + 4 * number)]
            if turn == round % 3:
                transaction.set_rollback(True)
        if turn != round % 3:
            for job in jobs[::2]:
                job.cancel()


def follows(state, round):
    """Poll a few times; remember what was seen."""
    for _ in range(8):
        page = Event.objects.follow(state["cursor"], limit=7)
        state["cursor"] = page.cursor
        state["seen"] += [(str(each), each.subject, each.type) for each in page.events]
    return state["cursor"], state["seen"] if round == ROUNDS - 1 else None


@pytest.mark.slow
def test_who_follows_misses_nothing_and_sees_nothing_twice_while_many_write():
    followers = [partial(follows, {"cursor": None, "seen": []}) for _ in range(2)]
    last = together([*(partial(writes, number) for number in range(WRITERS)), *followers], rounds=ROUNDS)[-1]
    everything = {str(each) for each in Event.objects.all()}
    assert len(everything) == ROUNDS * 2 * sum(3 + 6 * number for number in range(WRITERS))
    for cursor, seen in last[WRITERS:]:
        while (page := Event.objects.follow(cursor, limit=1000)).events:
            cursor = page.cursor
            seen += [(str(each), each.subject, each.type) for each in page.events]
        assert Counter(id for id, _, _ in seen) == Counter(everything)
        of_jobs = {}
        for _, subject, type in seen:
            of_jobs.setdefault(subject, []).append(type)
        assert {tuple(types) for types in of_jobs.values()} == {("job.enqueued", "job.cancelled"), ("job.enqueued",)}


@pytest.mark.skipif(connection.vendor == "sqlite", reason="there is one writer at a time")
def test_an_event_that_was_written_first_and_committed_last_comes_last(start):
    def late(parent):
        with transaction.atomic():
            Job.objects.enqueue("late")
            parent.tell()
            parent.hear()

    writer = start(late)
    writer.hear()
    Job.objects.enqueue("soon")
    page = Event.objects.follow()
    assert [each.job_type for each in page.events] == ["soon"]
    writer.tell()
    writer.result()
    assert [each.job_type for each in Event.objects.follow(page.cursor).events] == ["late"]
    assert Event.objects.get(job_type="late").pk < Event.objects.get(job_type="soon").pk
