"""An idle worker looks once, in one statement, for all that it may have to do, and asks for nothing else."""

import time
from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import group, job
from django_ojs_unique.lifecycle import write
from django_ojs_unique.maintenance.due import look
from django_ojs_unique.maintenance.on_demand import run_maintenance
from django_ojs_unique.models import CronJob, InboxRequest, Job, WorkerProcess, Workflow
from django_ojs_unique.worker import fronts, housekeeper, poller, promoter
from django_ojs_unique.worker.housekeeper import Housekeeper
from django_ojs_unique.worker.promoter import Promoter
from django_ojs_unique.worker.queues import QueueFilter
from tests.support import growth
from tests.support.background import working
from tests.support.claiming import Claiming
from tests.support.processes import until

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]

HOUR = timedelta(hours=1)
NOTHING = (None,) * 7


@pytest.fixture
def idle(handlers):
    """Return a claimer of one type, and a promoter that tells its poller what it has seen."""
    job("t")(lambda: None)
    claiming = Claiming()
    claiming.seen = []
    claiming.promote = Promoter(Job.objects.all(), claiming.poller, claiming.seen.append).promote
    return claiming


def statements(act):
    with CaptureQueriesContext(connection) as queries:
        act()
    return len(queries)


def test_after_a_look_that_found_nothing_a_poll_asks_nothing(idle):
    assert statements(idle.promote) == 1
    assert idle.seen[0][:7] == NOTHING
    assert statements(idle.claim) == 0
    idle.poller.call()
    assert statements(idle.claim) > 0


@pytest.mark.parametrize("comes", ["after the look", "during the look"])
def test_a_call_is_for_both_pools(idle, monkeypatch, comes):
    @job("a")
    async def handler():
        pass

    def call():
        Job.objects.enqueue("a")
        idle.poller.call("default")

    def overtaken(*args):
        seen = look(*args)
        call()
        return seen

    if comes == "during the look":
        monkeypatch.setattr(promoter, "look", overtaken)
        idle.promote()
    else:
        idle.promote()
        call()
    assert idle.claim() is True


def test_a_call_before_a_look_ends_with_the_next_poll(idle):
    idle.poller.call()
    idle.promote()
    idle.claim()
    assert idle.poller.due > 0


def test_a_poll_asks_again_after_a_call_or_a_job_or_a_while(idle, monkeypatch):
    idle.promote()
    Job.objects.enqueue("t")
    idle.poller.call("default")
    assert idle.claim() is True
    assert statements(idle.claim) > 0
    idle.promote()
    assert statements(idle.claim) == 0
    monkeypatch.setattr(time, "monotonic", lambda real=time.monotonic: real() + poller.LISTENING_POLL)
    assert statements(idle.claim) > 0


def test_a_look_that_finds_a_job_after_one_that_found_none_ends_the_pause(idle):
    idle.promote()
    idle.claim()
    Job.objects.enqueue("t", queue="elsewhere")
    Job._base_manager.update(queue="default")
    idle.poller.woken = False
    idle.promote()
    assert idle.poller.woken
    assert idle.claim() is True


def keeping_house(found=list, listening=False):
    return Housekeeper(
        Job.objects.all(),
        "w",
        QueueFilter(),
        found=found,
        listening=lambda: listening,
        facts=lambda: {"queues": []},
        obey=lambda directive: False,
    )


@pytest.mark.parametrize("listening", [False, True])
def test_a_decided_request_calls_the_loop_unless_its_enqueue_does(listening):
    calls = []
    InboxRequest.objects.create(type="email.send", args=[])
    keeping_house(lambda: calls.append("found"), listening).keep_house()
    assert Job.objects.count() == 1
    assert calls == ([] if listening else ["found"])


def test_a_worker_without_work_does_no_task_again_for_a_while():
    if connection.vendor != "sqlite":
        pytest.skip("elsewhere a thread does the tasks")
    upkeep = keeping_house()
    upkeep.keep_house()
    assert statements(upkeep.keep_house) == 0
    assert upkeep.due >= time.monotonic() + housekeeper.SCAN_SECONDS / 2
    upkeep.see(look(Job.objects.all(), timezone.now()))
    assert statements(upkeep.keep_house) == 0


def lose():
    held = Job.objects.enqueue("t", queue="elsewhere").job
    write(Job.objects.filter(pk=held.pk), state="active", attempt=1, started_at=timezone.now(), lease_token=held.pk)
    write(Job.objects.filter(pk=held.pk), lease_expires_at=timezone.now() - HOUR)
    return Job.objects.filter(state="available").exists


def expire():
    late = Job.objects.enqueue("t", queue="elsewhere", expires_at=timezone.now() + HOUR).job
    write(Job.objects.filter(pk=late.pk), expires_at=timezone.now() - HOUR)
    return Job.objects.filter(state="discarded").exists


def end():
    group([{"type": "t", "queue": "elsewhere"}]).enqueue()
    done = {"state": "completed", "finished_at": timezone.now(), "unique_states": frozenset()}
    assert write(Job.objects.filter(awaited=True), **done) == 1
    return Workflow.objects.filter(state="completed").exists


def fire():
    CronJob.objects.create(name="c", type="t", expression="0 0 1 1 *", options={"queue": "elsewhere"})
    CronJob.objects.update(next_run_at=timezone.now() - HOUR)
    return CronJob.objects.filter(next_run_at__gt=timezone.now()).exists


def fall_due():
    later = Job.objects.enqueue("t", queue="elsewhere", scheduled_at=timezone.now() + HOUR).job
    write(Job.objects.filter(pk=later.pk), run_at=timezone.now() - HOUR)
    return Job.objects.filter(state="available").exists


def ask():
    InboxRequest.objects.create(type="t", options={"queue": "elsewhere"})
    return Job.objects.filter(state="available").exists


@pytest.mark.parametrize("happens", [lose, expire, end, fire, fall_due, ask])
def test_each_of_these_alone_is_done_by_who_asks_while_no_worker_runs(happens):
    run_maintenance(Job.objects.all(), timezone.now(), crons=True)
    is_done = happens()
    run_maintenance(Job.objects.all(), timezone.now(), crons=True)
    assert is_done()


def test_a_look_is_about_its_own_time_and_about_the_handlers_of_its_time(handlers):
    late = Job.objects.enqueue("t", expires_at=timezone.now() + HOUR).job
    found = [look(Job.objects.all(), timezone.now() + ahead).late for ahead in (-HOUR, 2 * HOUR, -HOUR)]
    assert found == [None, late.pk, None]
    CronJob.objects.create(name="c", type="c", expression="0 0 1 1 *", declared=True)
    CronJob.objects.update(next_run_at=timezone.now() - HOUR)
    assert look(Job.objects.all(), timezone.now()).cron is None  # another program declares it
    job("c", cron="0 0 1 1 *")(lambda: None)
    assert look(Job.objects.all(), timezone.now()).cron == "c"


@pytest.mark.parametrize("happens", [lose, expire, end, fire, ask])
def test_a_worker_soon_does_what_a_look_finds(handlers, monkeypatch, happens):
    for name in ("LONGEST_POLL", "LISTENING_POLL"):
        monkeypatch.setattr(poller, name, 0.02)
    job("t")(lambda: None)
    with working(queues=["default"]) as worker:
        until(lambda: worker.is_idle and WorkerProcess.objects.exists(), "the worker is idle")
        until(happens(), "it was done")


def test_a_dear_look_is_repeated_later(idle, monkeypatch):
    if connection.vendor != "postgresql":
        pytest.skip("other databases do not tell what a look has read")
    monkeypatch.setattr(promoter, "BLOCKS_PER_SECOND", 100)
    assert idle.promote() == poller.LISTENING_POLL
    with growth.open_transaction(2_000):
        assert idle.promote() == fronts.LONGEST_SECONDS
    assert idle.seen[-1][:7] == NOTHING
