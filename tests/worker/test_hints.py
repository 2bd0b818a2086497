"""What a worker says, as soon as it starts, of jobs that nobody may take."""

import logging
from io import StringIO

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.worker import QueueFilter, Worker
from django_ojs_unique.worker.hints import tell_of_queues
from tests.support.jobs import row

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def said(handlers, caplog):
    """Run a worker until no job is due; return what it logs of this, with the levels."""
    job("letter.count", queue="letters")(lambda: None)

    def run(*queues, **options):
        caplog.clear()
        with caplog.at_level(logging.INFO, logger="django_ojs_unique.worker"):
            Worker(queues=queues or None, **options).run(drain=True)
        about = ("handlers that are not here", "Nothing uses")
        return [
            (record.levelname, record.getMessage())
            for record in caplog.records
            if any(part in record.getMessage() for part in about)
        ]

    return run


def test_a_worker_names_the_strangers_when_it_starts_with_the_types_that_were_meant(said):
    Job.objects.enqueue("letter.cuont")
    Job.objects.enqueue("newsletter.mail")
    assert said() == [
        (
            "WARNING",
            "Jobs wait for handlers that are not here: letter.cuont (did you mean 'letter.count'?), newsletter.mail.",
        )
    ]
    assert said("letters") == []


@pytest.mark.parametrize("near", ["emails", "letters"])
def test_a_queue_that_nothing_uses_is_doubted_with_the_near_name_that_has_jobs_or_a_handler(said, near):
    Job.objects.enqueue("letter.count", queue="emails")
    assert said(near[:-1]) == [
        ("WARNING", f"Nothing uses queue {near[:-1]}, which this worker takes; did you mean {near}?")
    ]
    assert Job.objects.get().state == "available"


def test_a_near_name_that_the_worker_takes_anyway_is_not_suggested(said):
    Job.objects.enqueue("letter.count", queue="emails")
    assert said("emails", "email", "letters") == [("INFO", "Nothing uses queue email yet, which this worker takes.")]


@pytest.mark.slow
def test_of_queues_that_are_used_or_of_all_nothing_is_said(said):
    Job.objects.enqueue("letter.count", queue="emails")
    Queue.objects.limit("limited", 1)
    for queues in (["letters"], ["emails"], ["limited"], ["em*"], ["*"], ["*", "email"], ["default"], []):
        assert said(*queues) == []


def test_a_misspelt_queue_that_is_left_out_is_doubted(said):
    assert said(exclude=["lettres"]) == [
        ("WARNING", "Nothing uses queue lettres, which this worker leaves out; did you mean letters?")
    ]
    assert said(exclude=["letters"]) == []


@pytest.mark.parametrize(("queues", "most"), [(["*"], 0), (["letters", "default"], 0), (["lettres", "nosuch"], 1)])
def test_only_names_that_the_code_does_not_have_are_looked_up_all_in_one_statement(said, queues, most):
    said()
    Job.objects.enqueue("letter.count", queue="emails")
    with CaptureQueriesContext(connection) as statements:
        tell_of_queues("default", QueueFilter(queues))
    assert len(statements) == most


@pytest.mark.parametrize("state", ["completed", "available"])
def test_a_queue_of_which_only_jobs_are_known_is_not_doubted(said, state):
    row(Job.objects.enqueue("letter.count", queue="emails").job).update(state=state)
    assert said("emails") == []


def test_a_queue_that_is_no_name_is_refused_as_before():
    with pytest.raises(InvalidRequest):
        Worker(queues=["No Queue"])


def test_the_command_tells_it_and_goes_on(handlers, caplog):
    job("letter.count", queue="letters")(lambda: None)
    Job.objects.enqueue("letter.count")
    call_command("runworker", "--drain", "--queue", "letter", "--queue", "letters", verbosity=0, stdout=StringIO())
    assert Job.objects.get().state == "completed"
    call_command("runworker", "--drain", "--queue", "lettres", verbosity=0, stdout=StringIO())
    assert "Nothing uses queue lettres, which this worker takes; did you mean letters?" in caplog.text
