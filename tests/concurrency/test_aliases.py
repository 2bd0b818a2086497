"""All statements of one enqueue run on one database: that of `using()`, or the router's for writes."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
from django.db import connections, transaction
from django.test import override_settings
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import DuplicateJob
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.audit import Answer, ask, audit
from tests.support.processes import together

pytestmark = pytest.mark.django_db(transaction=True, databases=["default", "other"])

STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]


def silent(using: str, function: Callable[[], Answer]) -> Answer:
    """Run a function and assert that it said nothing to the database."""
    with CaptureQueriesContext(connections[using]) as captured:
        answer = function()
    assert captured.captured_queries == []
    return answer


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(("using", "silent_one"), [("other", "default"), ("default", "other")])
def test_using_decides_where_every_statement_of_an_enqueue_runs(strategy, using, silent_one):
    enqueue = partial(ask, "t", unique={"on_conflict": strategy}, using=using)
    first = silent(silent_one, enqueue)
    second = silent(silent_one, enqueue)
    assert first.outcome == "created"
    assert second.outcome in {"duplicate", "deduplicated", "replaced"}
    assert len(audit(using)) == (2 if second.admitted else 1)
    assert SuppressedEnqueue.objects.using(using).count() == 1
    assert audit(silent_one) == []
    assert SuppressedEnqueue.objects.using(silent_one).count() == 0


@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize(
    ("router", "written", "silent_one"),
    [("JobsWrittenToOther", "other", "default"), ("JobsReadFromOther", "default", "other")],
)
def test_a_router_for_writes_decides_where_every_statement_of_an_enqueue_runs(strategy, router, written, silent_one):
    def enqueue() -> Answer:
        try:
            result = Job.objects.enqueue("t", unique={"on_conflict": strategy})
        except DuplicateJob as error:
            return Answer("duplicate", error.existing_job_id)
        assert result.job._state.db == written
        return Answer(str(result.outcome), result.job.pk)

    with override_settings(DATABASE_ROUTERS=[f"tests.support.routers.{router}"]):
        assert silent(silent_one, enqueue).outcome == "created"
        assert silent(silent_one, enqueue).outcome in {"duplicate", "deduplicated", "replaced"}
    audit(written)
    assert audit(silent_one) == []


def test_one_key_on_two_databases_is_two_keys():
    assert ask("t", unique={}, using="default").outcome == "created"
    assert ask("t", unique={}, using="other").outcome == "created"


def test_an_enqueue_follows_the_transaction_of_its_own_database():
    with transaction.atomic(using="other"):
        ask("t", unique={}, using="other")
        ask("t", unique={}, using="default")
        transaction.set_rollback(True, using="other")
    assert (len(audit("other")), len(audit("default"))) == (0, 1)


def contender(number: int) -> Answer:
    return ask(f"race.r{number}", unique={}, using="other")


@pytest.mark.slow
def test_a_race_on_another_database_admits_one():
    answers = together([contender] * 6, rounds=5)
    assert len(audit("other")) == 5
    for round_ in answers:
        assert sorted(answer.outcome for answer in round_) == ["created"] + ["duplicate"] * 5


@pytest.mark.parametrize("change", ["cancel", "retry", "release_unique_key"])
def test_a_change_to_a_job_reads_back_from_the_database_it_wrote_to(change):
    with override_settings(DATABASE_ROUTERS=["tests.support.routers.JobsReadFromOther"]):
        job = Job.objects.enqueue("t", unique={"states": ["scheduled", "retryable", "available"]}).job
        if change == "retry":
            Job._base_manager.using("default").filter(pk=job.pk).update(state="pending")
        getattr(job, change)()
    assert Job.objects.using("default").get().state == {"cancel": "cancelled"}.get(change, "available")
