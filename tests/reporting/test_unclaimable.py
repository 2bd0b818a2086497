"""What nobody takes: types without a handler here, queues without a worker, names that are misspelt."""

from contextlib import contextmanager

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import job as declare
from django_ojs_unique.db.time_limit import time_limit
from django_ojs_unique.models import Job
from django_ojs_unique.reporting import queues as queues_module
from django_ojs_unique.reporting import unclaimed as module
from django_ojs_unique.reporting import workers as workers_module
from django_ojs_unique.reporting.overview import overview
from django_ojs_unique.reporting.unclaimed import Unknown, every_unknown_type, nobody, unknown_types
from django_ojs_unique.reporting.workers import misspelt, taken_by_running, untaken, workers
from tests.db.test_time_limit import ENDLESS
from tests.reporting.test_queues import HOUR
from tests.support.past import NOW, ago, job, worker

pytestmark = pytest.mark.django_db


def of_type(type, **fields):
    row = job(fields.pop("at", NOW), **fields)
    Job.objects.filter(pk=row.pk).update(type=type)
    return row


def test_types_without_a_handler_here_are_found_by_one_statement(handlers, django_assert_num_queries):
    declare("a.known")(lambda: None)
    for queue in ("one", "two"):
        for type in ("a.known", f"b.{queue}", "c.both"):
            of_type(type, queue=queue)
    of_type("d.elsewhere", queue="three")
    for state in ("active", "scheduled", "retryable", "pending", "completed"):
        of_type("e.other_state", queue="one", state=state)
    with django_assert_num_queries(1):
        assert unknown_types(Job.objects.all(), ["one", "two"]) == Unknown(["b.one", "b.two", "c.both"], False)
    with django_assert_num_queries(0):
        assert unknown_types(Job.objects.all(), []) == Unknown([], False)
    assert every_unknown_type(Job.objects.all(), []) == Unknown(["b.one", "b.two", "c.both", "d.elsewhere"], False)


def test_only_the_head_of_each_queue_and_only_some_queues_are_looked_at(monkeypatch):
    monkeypatch.setattr(module, "MOST_IN_HEADS", 2)
    of_type("z.last", at=ago(minutes=1))
    of_type("y.first", at=ago(minutes=3))
    of_type("x.urgent", at=ago(minutes=0), priority=5)
    assert unknown_types(Job.objects.all(), ["default"]) == Unknown(["x.urgent", "y.first"], True)
    assert unknown_types(Job.objects.all(), ["default", "other"]) == Unknown(["x.urgent"], True)
    monkeypatch.setattr(module, "MOST_HEADS", 1)
    assert unknown_types(Job.objects.all(), ["other", "default"]) == Unknown([], True)
    assert every_unknown_type(Job.objects.all(), ["default"]) == Unknown(["x.urgent", "y.first", "z.last"], False)


@pytest.mark.every_database
@pytest.mark.django_db(transaction=True)
def test_what_takes_too_long_is_looked_for_at_the_heads_only(monkeypatch, handlers):
    of_type("y.first")

    @contextmanager
    def over(using, seconds):
        with time_limit(using, 0.01), connection.cursor() as cursor:
            cursor.execute(ENDLESS)
            yield

    monkeypatch.setattr(module, "time_limit", over)
    assert every_unknown_type(Job.objects.all(), ["default"]) == Unknown(["y.first"], True)


def test_the_overview_says_if_there_may_be_others(monkeypatch):
    of_type("y.first"), of_type("y.first")
    assert overview("default", HOUR, NOW).unknown == Unknown(["y.first"], False)
    monkeypatch.setattr(queues_module, "MOST_QUEUES", 1)
    assert overview("default", HOUR, NOW).unknown.is_cut


@pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL says how it would read")
def test_the_heads_are_read_by_the_index_of_the_claim():
    with CaptureQueriesContext(connection) as captured:
        unknown_types(Job.objects.all(), ["one", "two"])
    with connection.cursor() as cursor:
        cursor.execute("SET LOCAL enable_seqscan = off")
        cursor.execute(f"EXPLAIN {captured[0]['sql']}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
    assert plan.count("ojs_job_live") == 2
    assert "Sort Key: django_ojs_unique_job.priority" not in plan


def test_strangers_are_named_with_the_type_that_was_meant_and_not_without_end(handlers):
    declare("letter.count")(lambda: None)
    assert Unknown(["letter.cuont"], False).named == "letter.cuont (did you mean 'letter.count'?)"
    assert Unknown(["other"], True).named == "other, and perhaps others"
    many = Unknown([f"x{number}" for number in range(1_012)], False)
    assert many.named.startswith("x0, x1, ")
    assert many.named.endswith("x9, and 1,002 more")
    assert many._replace(is_cut=True).named.endswith("x9, and at least 1,002 more")


@pytest.mark.parametrize(
    ("present", "said"),
    [
        ([], "No worker runs: `manage.py runworker` starts one."),
        ([{"queues": ["*"], "state": "quiet"}], "No worker runs: `manage.py runworker` starts one."),
        ([{"queues": ["email"]}], "No running worker says that it takes emails."),
        ([{"queues": ["*", "!emails"]}], "No running worker says that it takes emails."),
        ([{"queues": ["email"]}, {"queues": ["em*"]}], ""),
    ],
)
def test_a_queue_is_untaken_unless_a_worker_that_lives_takes_it(present, said):
    for number, facts in enumerate(present):
        worker(f"w{number}", **facts)
    assert untaken("emails", taken_by_running("default", NOW, workers("default", NOW))) == said
    assert untaken("emails", taken_by_running("default", NOW)) == said


def test_a_worker_takes_a_queue_that_is_not_among_those_that_are_shown(monkeypatch):
    monkeypatch.setattr(workers_module, "MOST_WORKERS", 1)
    worker("a", queues=["emails"], heard=ago(seconds=5))
    worker("b", queues=["reports"])
    assert untaken("emails", taken_by_running("default", NOW, workers("default", NOW))) == ""


@pytest.mark.parametrize(
    ("facts", "used", "said"),
    [
        ({"queues": ["email"]}, set(), "One takes 'email', in which there is no job: was 'emails' meant?"),
        ({"queues": ["email"]}, {"email"}, ""),
        ({"queues": ["email"], "state": "stopping"}, set(), ""),
        ({"queues": ["reports"]}, set(), ""),
    ],
)
def test_a_name_like_it_that_nothing_uses_is_taken_for_misspelt(facts, used, said):
    worker(**facts)
    assert misspelt("emails", workers("default", NOW), used) == said


@pytest.mark.parametrize("state", ["available", "scheduled", "retryable", "pending"])
def test_of_a_job_that_waits_it_is_said_that_nobody_takes_it(state, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.unclaimed.database_now", lambda using: NOW)
    worker(queues=["email"])
    waiting = job(NOW, queue="emails", state=state)
    assert nobody(waiting, "default") == (
        "No running worker says that it takes emails. One takes 'email', in which there is no job: was 'emails' meant?"
    )
    worker("another", queues=["*"])
    assert nobody(waiting, "default") == ""


@pytest.mark.parametrize("state", ["active", "completed", "discarded"])
def test_of_a_job_that_does_not_wait_nothing_is_said(state, django_assert_num_queries):
    started = job(NOW, state=state)
    with django_assert_num_queries(0):
        assert nobody(started, "default") == ""


def test_the_overview_names_strangers_and_misspelt_queues(handlers):
    declare("email.sent")(lambda: None)
    worker(queues=["email"])
    job(NOW, queue="emails")
    seen = overview("default", HOUR, NOW)
    assert seen.unknown == Unknown(["email.send"], False)
    assert seen.misspelt == ["One takes 'email', in which there is no job: was 'emails' meant?"]
    assert overview("default", HOUR, NOW, with_workers=False).misspelt == []
