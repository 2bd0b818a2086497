"""An enqueue of a type without a handler here is accepted, and said once: it may be misspelt."""

import logging
from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.enqueue import resolved_options
from django_ojs_unique.exceptions import UnknownJobType
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job
from tests.api.conftest import OJSClient
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def said(monkeypatch, caplog, handlers):
    """What has been logged of types without a handler; so far none was met in this process."""
    monkeypatch.setattr(resolved_options, "_warned_of", set())
    job("email.send")(lambda **args: None)

    def messages():
        return [record.getMessage() for record in caplog.records if record.name == "django_ojs_unique.enqueue"]

    with caplog.at_level(logging.WARNING, logger="django_ojs_unique.enqueue"):
        yield messages


MISSPELT = (
    "Job type 'email.sned' has no handler here: its jobs wait for a worker that has one. Did you mean 'email.send'?"
)


def test_a_type_without_a_handler_is_said_once(said):
    for _ in range(2):
        assert Job.objects.enqueue("email.sned").created
    assert said() == [MISSPELT]
    Job.objects.enqueue("something.else")
    assert said() == [
        MISSPELT,
        "Job type 'something.else' has no handler here: its jobs wait for a worker that has one.",
    ]


def test_a_batch_and_an_enqueue_on_commit_say_it_too(said):
    Job.objects.enqueue_many([{"type": "a.batch"}, {"type": "a.batch", "queue": "other"}, {"type": "email.send"}])
    Job.objects.enqueue_on_commit("b.later")
    assert [message.split("'")[1] for message in said()] == ["a.batch", "b.later"]


def test_nothing_is_said_of_a_type_with_a_handler_or_of_a_question(said):
    Job.objects.enqueue("email.send")
    Job.objects.explain("email.sned")
    assert said() == []
    assert resolved_options._warned_of == set()


def test_nothing_is_said_of_what_comes_over_http(said, admin_client):
    client = OJSClient(admin_client)
    client.enqueue("email.sned", [1])
    batch = client.post("/ojs/v1/jobs/batch", {"jobs": [{"type": "email.sned", "args": [2]}]})
    assert batch.status_code == 201
    assert Job.objects.filter(type="email.sned").count() == 2
    assert said() == []


def test_nothing_is_said_of_periodic_jobs_whose_handler_may_be_elsewhere(said):
    CronJob.objects.define("nightly", "@every PT1S", "email.sned")
    cron.tick("default", timezone.now() + timedelta(minutes=1))
    assert Job.objects.filter(type="email.sned").exists()
    assert said() == []


def test_types_that_are_made_up_do_not_fill_the_memory(said, monkeypatch):
    monkeypatch.setattr(resolved_options, "_MOST_WARNED_OF", 2)
    for number in range(4):
        Job.objects.enqueue(f"made.up{number}")
    assert len(said()) == len(resolved_options._warned_of) == 2


def test_where_a_handler_is_required_the_type_is_refused(said, settings):
    settings.OJS_UNIQUE = {"REQUIRE_HANDLER": True}
    with refused(UnknownJobType, "type", names="'email.send'?"):
        Job.objects.enqueue("email.sned")
    assert said() == []
