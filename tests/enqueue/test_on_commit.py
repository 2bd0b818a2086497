"""`enqueue_on_commit`: the job is enqueued once the caller's transaction is committed."""

import asyncio
import logging
from contextlib import contextmanager
from datetime import timedelta

import pytest
from django.core.exceptions import SynchronousOnlyOperation
from django.db import connections, transaction
from django.test import TestCase, override_settings
from django.utils import timezone

from django_ojs_unique import InvalidPolicy, InvalidRequest, job
from django_ojs_unique.exceptions import JobIdTaken, PayloadTooLarge, UnknownJobType
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.models.managers import JobQuerySet
from django_ojs_unique.testing import assert_enqueued, assert_not_enqueued, capture_jobs
from tests.app.jobs import add, once
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db(databases=["default", "other"])

LOGGER = "django_ojs_unique"


@contextmanager
def rollback():
    """Roll back what the block does, or the savepoint that it is inside of a transaction."""
    with transaction.atomic():
        yield
        transaction.set_rollback(True)


@pytest.fixture
def commits(django_capture_on_commit_callbacks):
    """Commit what the block does, as far as a test's transaction can: run what waits for it."""
    return lambda using="default": django_capture_on_commit_callbacks(using=using, execute=True)


def test_the_job_is_there_after_the_commit_and_not_before(commits):
    with commits():
        assert Job.objects.enqueue_on_commit("t", {"a": 1}, queue="mail", priority=3) is None
        assert not Job.objects.exists()
    stored = Job.objects.get()
    assert (stored.type, stored.args, stored.queue, stored.priority) == ("t", {"a": 1}, "mail", 3)


def test_nothing_is_locked_before_the_commit(commits, django_assert_num_queries):
    with commits(), django_assert_num_queries(0):
        once.enqueue_on_commit("a")


def test_a_rollback_enqueues_nothing(commits):
    with commits():
        with rollback():
            Job.objects.enqueue_on_commit("t")
        Job.objects.enqueue_on_commit("u")
    assert [stored.type for stored in Job.objects.all()] == ["u"]


@pytest.mark.django_db(transaction=True)
def test_real_transactions_savepoints_and_none_at_all():
    with transaction.atomic():
        Job.objects.enqueue_on_commit("outer")
        with rollback():
            Job.objects.enqueue_on_commit("inner")
        assert not Job.objects.exists()
    assert [stored.type for stored in Job.objects.all()] == ["outer"]
    with rollback():
        Job.objects.enqueue_on_commit("rolled.back")
    Job.objects.enqueue_on_commit("at.once")
    assert [stored.type for stored in Job.objects.order_by("pk")] == ["outer", "at.once"]


@pytest.mark.django_db(transaction=True)
def test_outside_of_a_transaction_errors_are_raised_but_for_a_duplicate():
    Job.objects.enqueue("t", unique={})
    Job.objects.enqueue_on_commit("t", unique={})
    taken = Job.objects.get().pk
    with pytest.raises(JobIdTaken):
        Job.objects.enqueue_on_commit("u", id=taken)
    assert Job.objects.count() == 1


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"type": "No Type"}, InvalidRequest),
        ({"type": "t", "args": 3}, InvalidRequest),
        ({"type": "t", "args": {"a": object()}}, InvalidRequest),
        ({"type": "t", "args": {"a": "x" * 2_000_000}}, PayloadTooLarge),
        ({"type": "t", "unique": {"keys": ["type", "args"], "args_keys": ["gone"]}}, InvalidPolicy),
        ({"type": "t", "scheduled_at": "tomorrow"}, InvalidRequest),
        ({"type": "t", "commit_of": "nowhere"}, InvalidRequest),
        ({"type": "t", "commit_of": ["default"]}, InvalidRequest),
        ({"type": "t", "tag": "a"}, TypeError),
        ({"type": "t", "pending": True}, TypeError),
    ],
)
def test_bad_input_fails_at_the_call(commits, arguments, error):
    with pytest.raises(error), commits() as callbacks:
        Job.objects.enqueue_on_commit(**arguments)
    assert callbacks == []


def test_an_unknown_type_fails_at_the_call_where_it_is_refused():
    with override_settings(OJS_UNIQUE={"REQUIRE_HANDLER": True}), pytest.raises(UnknownJobType):
        Job.objects.enqueue_on_commit("nobody.knows")


def test_a_wrong_alias_is_named_with_its_hint():
    with refused(InvalidRequest, "commit_of", names="'other'?"):
        Job.objects.enqueue_on_commit("t", commit_of="othr")
    with refused(InvalidRequest, "commit_of"):
        Job.objects.enqueue_on_commit("t", commit_of="")


def test_what_the_caller_changes_later_does_not_count(commits):
    args, meta, tags = {"ids": [1]}, {"m": 1}, ["a"]
    with commits():
        Job.objects.enqueue_on_commit("t", args, meta=meta, tags=tags)
        args["ids"].append(object())
        meta["m"] = 2
        tags.clear()
    stored = Job.objects.get()
    assert (stored.args, stored.meta, stored.tags) == ({"ids": [1]}, {"m": 1}, ["a"])


def test_the_job_dates_from_the_commit(commits):
    soon = timezone.now() + timedelta(hours=1)
    with commits():
        Job.objects.enqueue_on_commit("t", scheduled_at=soon)
        called_at = timezone.now()
    stored = Job.objects.get()
    assert stored.created_at > called_at
    assert stored.scheduled_at == soon


@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
def test_a_duplicate_after_the_commit_is_recorded_and_no_error(commits, caplog, strategy):
    first = Job.objects.enqueue("t", unique={}).job
    caplog.set_level(logging.INFO, LOGGER)
    with commits():
        Job.objects.enqueue_on_commit("t", unique={"on_conflict": strategy})
        Job.objects.enqueue_on_commit("next")
    assert Job.objects.filter(type="next").exists()
    assert SuppressedEnqueue.objects.get().existing_job_id == first.pk
    said = [record for record in caplog.records if record.name == LOGGER]
    assert [record.levelname for record in said] == ["INFO"] * (strategy == "reject")
    assert all(str(first.pk) in record.getMessage() for record in said)
    assert all(first.fingerprint not in record.getMessage() for record in said)


def test_a_failure_after_the_commit_is_logged_and_the_next_callback_runs(commits, caplog):
    taken = Job.objects.enqueue("t").job.pk
    with commits():
        Job.objects.enqueue_on_commit("lost", id=taken)
        Job.objects.enqueue_on_commit("next")
    (record,) = [record for record in caplog.records if record.name == LOGGER]
    assert record.levelname == "ERROR"
    assert "lost" in record.getMessage()
    assert record.exc_info
    assert set(Job.objects.values_list("type", flat=True)) == {"t", "next"}


def test_a_statement_that_fails_after_the_commit_does_not_break_a_transaction_around_it(commits, caplog, monkeypatch):
    def fail(self, request):
        with connections[self.db].cursor() as cursor:
            cursor.execute("SELECT 1 FROM no_such_table")

    monkeypatch.setattr(JobQuerySet, "enqueue_request", fail)
    with commits():
        Job.objects.enqueue_on_commit("t")
    assert "A job is lost: the enqueue of t on 'default'" in caplog.text
    assert not Job.objects.exists()


def test_a_handler_takes_its_own_arguments(commits):
    with commits():
        assert add.enqueue_on_commit(1, b=2) is None
        add.using(queue="slow", priority=7).enqueue_on_commit(5)
    first, second = Job.objects.order_by("pk")
    assert (first.type, first.args) == ("tests.add", {"a": 1, "b": 2})
    assert (second.args, second.queue, second.priority) == ({"a": 5}, "slow", 7)
    with refused(InvalidRequest, "args", names="'a'"):
        add.enqueue_on_commit()


def test_a_handlers_job_waits_for_whichever_commit(commits):
    with commits("other"):
        Job.objects.enqueue_on_commit(**add.item(a=1), commit_of="other")
        assert not Job.objects.exists()
    assert Job.objects.exists()


def test_using_says_where_the_job_goes_and_whose_commit_it_waits_for(commits):
    with commits("default") as on_default, commits("other") as on_other:
        Job.objects.using("other").enqueue_on_commit("t")
        assert not Job.objects.using("other").exists()
    assert (len(on_default), len(on_other)) == (0, 1)
    assert Job.objects.using("other").get()._state.db == "other"
    assert not Job.objects.using("default").exists()


def test_jobs_that_a_router_keeps_elsewhere_wait_for_the_business_data(commits):
    with override_settings(DATABASE_ROUTERS=["tests.support.routers.JobsOnOther"]), commits("default"):
        Job.objects.enqueue_on_commit("t")
        add.enqueue_on_commit(1)
        assert not Job.objects.using("other").exists()
    assert Job.objects.using("other").count() == 2
    assert not Job.objects.using("default").exists()


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_job_can_wait_for_the_commit_of_another_database():
    jobs = Job.objects.using("other")
    with transaction.atomic():
        jobs.enqueue_on_commit("confirm", commit_of="default")
        with transaction.atomic(using="other"):
            pass
        assert not jobs.exists()
    assert jobs.get().type == "confirm"
    with rollback():
        jobs.enqueue_on_commit("never", commit_of="default")
    assert jobs.count() == 1


def test_captured_jobs_are_those_that_the_commit_enqueues(commits):
    once.enqueue("a")
    with capture_jobs() as jobs, commits():
        once.enqueue_on_commit("a")
        add.enqueue_on_commit(1)
        assert list(jobs) == []
    jobs.assert_enqueued(add, args={"a": 1}, count=1)
    jobs.assert_deduplicated(once, outcome="deduplicated")
    jobs.assert_not_enqueued(once)


def test_an_assertion_that_fails_tells_of_what_waits_for_the_commit(ojs_jobs):
    add.enqueue_on_commit(1)
    for assertion in (assert_enqueued, ojs_jobs.assert_enqueued):
        with pytest.raises(AssertionError, match=r"1 callback.*captureOnCommitCallbacks"):
            assertion(add)


def test_a_handler_that_enqueues_on_commit_does_so_inline(ojs_jobs, handlers):
    @job("parent")
    def parent():
        with transaction.atomic():
            add.enqueue_on_commit(1)
            assert_not_enqueued(add)

    parent.enqueue()
    assert [ran.job.type for ran in ojs_jobs.run_jobs()] == ["parent", "tests.add"]


class InATestCase(TestCase):
    def test_callbacks_are_captured(self):
        with self.captureOnCommitCallbacks(execute=True) as callbacks:
            add.enqueue_on_commit(1)
            assert_not_enqueued(add)
        assert len(callbacks) == 1
        assert_enqueued(add, args={"a": 1})


def test_asynchronous_code_is_told_at_once():
    async def view():
        Job.objects.enqueue_on_commit("t")

    with pytest.raises(SynchronousOnlyOperation):
        asyncio.run(view())
