"""PostgreSQL: an enqueue wakes the idle workers of its queue when it commits."""

from collections import Counter
from datetime import timedelta
from threading import Event

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.db.inserts import CHANNEL
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, claimer, poller
from django_ojs_unique.worker import loop as loop_module
from django_ojs_unique.worker.listen import Listener
from django_ojs_unique.worker.poller import Poller
from tests.support.background import working
from tests.support.processes import PATIENCE, many_files, until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL can notify"),
]


@pytest.fixture
def heard():
    """Return a function that says what was heard since it was last asked: how often each queue was named.

    Notifications come in the order of the commits, so one of our own says that there are no more.
    """
    listener, speaker = connection.copy(), connection.copy()
    with listener.cursor() as cursor:
        cursor.execute(f"LISTEN {CHANNEL}")

    def heard():
        with speaker.cursor() as cursor:
            cursor.execute(f"NOTIFY {CHANNEL}, 'the end'")
        names = []
        for notification in listener.connection.notifies(timeout=PATIENCE):
            if notification.payload == "the end":
                break
            names.append(notification.payload)
        return Counter(names)

    yield heard
    listener.close()
    speaker.close()


def test_nothing_is_heard_before_the_commit_and_one_word_per_queue_after_it(heard):
    with transaction.atomic():
        for queue in ("a", "a", "b", "a"):
            Job.objects.enqueue("t", queue=queue)
        assert heard() == {}
    assert heard() == {"a": 1, "b": 1}


def test_nothing_is_heard_of_what_was_rolled_back(heard):
    with transaction.atomic():
        Job.objects.enqueue("t")
        transaction.set_rollback(True)
    with transaction.atomic():
        with transaction.atomic():
            Job.objects.enqueue("t", queue="inner")
            transaction.set_rollback(True)
        Job.objects.enqueue("t", queue="outer")
    assert heard() == {"outer": 1}


def test_each_commit_is_heard(heard):
    for _ in range(3):
        Job.objects.enqueue("t", queue="a")
    assert heard() == {"a": 3}


def test_jobs_that_are_made_available_manually_are_heard(heard):
    later = timezone.now() + timedelta(hours=1)
    for queue in ("waiting", "finished"):
        Job.objects.enqueue("t", queue=queue, scheduled_at=later)
    ended = {"state": "discarded", "enqueued_at": timezone.now(), "finished_at": later}
    Job._base_manager.filter(queue="finished").update(**ended, scheduled_at=None, run_at=None)
    assert heard() == {}
    for queue in ("waiting", "finished"):
        Job.objects.filter(queue=queue).retry()
        assert heard() == {queue: 1}


def test_a_job_that_waits_for_its_time_is_not_called_out(heard):
    Job.objects.enqueue("t", scheduled_at=timezone.now() + timedelta(hours=1))
    assert heard() == {}


def test_a_suppressed_enqueue_is_not_called_out_and_a_replacing_one_is(heard):
    Job.objects.enqueue("t", unique={}, queue="first")
    Job.objects.enqueue("t", unique={"on_conflict": "ignore"}, queue="ignored")
    Job.objects.enqueue("t", unique={"on_conflict": "replace"}, queue="replacing")
    assert heard() == {"first": 1, "replacing": 1}


def test_the_setting_switches_it_off_for_enqueues_and_workers(heard, settings):
    settings.OJS_UNIQUE = {"NOTIFY": False}
    Job.objects.enqueue("t")
    Job.objects.enqueue("t", unique={})
    assert heard() == {}
    with working(queues=["a"]) as worker:
        until(lambda: worker.is_idle, "the worker looked for jobs")
        assert not worker.listening


# Workers


@pytest.fixture
def _never_polls(monkeypatch):
    monkeypatch.setattr(poller, "LISTENING_POLL", 1e6)


def fall_asleep(worker):
    until(lambda: worker.listening and worker.is_idle, "the worker fell asleep")


@pytest.mark.usefixtures("_never_polls")
@pytest.mark.parametrize("queues", [None, ["default"], ["def*"]])
def test_an_idle_worker_that_never_polls_starts_a_job_when_it_is_called(handlers, queues):
    job("t")(lambda: None)
    with working(queues=queues) as worker:
        for number in range(1, 4):
            fall_asleep(worker)
            Job.objects.enqueue("t")
            until(lambda number=number: worker.summary.completed == number, "the job completed")


@pytest.mark.usefixtures("_never_polls")
def test_calls_from_other_queues_do_not_wake_it(handlers, monkeypatch):
    asked, real = [], claimer.claim

    def claim(*args, queues, **options):
        asked.append(queues)
        return real(*args, queues=queues, **options)

    job("t")(lambda: None)
    with working(queues=["ours"]) as worker:
        fall_asleep(worker)
        monkeypatch.setattr(claimer, "claim", claim)
        for queue in ("theirs", "theirs", "ours"):
            Job.objects.enqueue("t", queue=queue)
        until(lambda: worker.summary.completed == 1, "our job completed")
    assert asked[0] == ["ours"]
    assert not Job.objects.filter(queue="theirs", attempt__gt=0).exists()


@pytest.mark.usefixtures("_never_polls")
def test_a_call_that_comes_while_the_worker_empties_another_queue_is_not_forgotten(handlers, monkeypatch):
    """The claim that fills the pool exactly leaves no reason to look at the queues again, but for the call."""
    for module in (loop_module, poller):  # nor does the promotion give one
        monkeypatch.setattr(module, "LONGEST_POLL", 1e6)
    called, real = Event(), Poller.call

    def call(self, queue=""):
        real(self, queue)
        if queue == "b":
            called.set()

    @job("t")
    def handler():
        Job.objects.enqueue("u", queue="b")
        assert called.wait(PATIENCE)

    job("u")(lambda: None)
    with working(concurrency=1) as worker:
        fall_asleep(worker)
        monkeypatch.setattr(Poller, "call", call)
        Job.objects.enqueue("t", queue="a")
        until(lambda: worker.summary.completed == 2, "both jobs completed")


@pytest.mark.slow
@pytest.mark.usefixtures("_never_polls")
def test_a_listener_whose_connection_is_killed_comes_back_and_hears_what_came_meanwhile(handlers, caplog):
    job("t")(lambda: None)
    with working() as worker:
        fall_asleep(worker)
        with connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity"
                " WHERE datname = current_database() AND query LIKE 'LISTEN%%'"
            )
        until(lambda: not worker.listening, "the listener noticed")
        Job.objects.enqueue("t")
        until(lambda: worker.summary.completed == 1, "the job completed")
        fall_asleep(worker)
        Job.objects.enqueue("t")
        until(lambda: worker.summary.completed == 2, "the next job completed")
    assert "Lost the connection that listens" in caplog.text


@pytest.mark.slow
def test_jobs_that_become_due_need_no_call(handlers):
    job("t", retry={"initial_interval": "PT0.05S", "jitter": False}, takes_context=True)(
        lambda context: 1 / (context.attempt - 1)
    )
    with working() as worker:
        fall_asleep(worker)
        Job.objects.enqueue("t", scheduled_at=timezone.now() + timedelta(seconds=0.05))
        until(lambda: worker.summary.completed == 1, "the job ran, failed, and ran again")


def test_a_worker_that_drains_does_not_listen(handlers, monkeypatch):
    monkeypatch.setattr(Listener, "start", lambda self: pytest.fail("It listens."))
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1


def test_a_worker_with_many_open_files_is_woken(handlers):
    job("t")(lambda: None)
    with many_files(), working() as worker:
        until(lambda: worker.listening and worker.is_idle, "the worker fell asleep")
        Job.objects.enqueue("t")
        until(Job.objects.filter(state="completed").exists, "the job completed")
