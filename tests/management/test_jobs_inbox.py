"""`jobs inbox`: what SQL asked for, what was refused and why, once more, and away."""

import json

import pytest
from django.core.management import CommandError, call_command

from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import InboxRequest, Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def jobs(capsys):
    def run(*arguments):
        call_command("jobs", "inbox", *map(str, arguments))
        return capsys.readouterr().out

    return run


@pytest.fixture
def requests():
    """Return a refused request and one that waits, in the order of their ids."""
    refused = InboxRequest.objects.create(type="mail", args={"secret": "hidden"}, options={"delay": "soon"})
    inbox.decide(Job.objects.all())
    return refused, InboxRequest.objects.create(type="later")


def test_the_list_says_why_a_request_was_refused_and_what_waits(jobs, requests):
    heading, refused, waiting = jobs().splitlines()
    assert heading.split()[:3] == ["id", "action", "type"]
    assert "delay" in refused
    assert waiting.split()[:3] == [str(requests[1].pk), "enqueue", "later"]
    assert len(jobs("--refused").splitlines()) == 2
    assert "There are more" in jobs("--limit", 1)
    assert [one["type"] for one in json.loads(jobs("--json"))] == ["mail", "later"]


def test_an_empty_inbox_explains_itself(jobs):
    assert "is empty" in jobs()


def test_one_request_is_shown_without_what_is_redacted(jobs, requests, settings):
    settings.OJS_UNIQUE = {"REDACT": ["secret"]}
    shown = jobs(requests[0].pk)
    assert '{"delay": "soon"}' in shown
    assert "[redacted]" in shown
    assert "hidden" not in shown + jobs(requests[0].pk, "--json") + jobs("--json")
    with pytest.raises(CommandError, match="no such request"):
        jobs(0)


def test_a_refused_request_is_retried_and_decided(jobs, requests):
    InboxRequest.objects.update(options={})
    assert "Retried: 1 request." in jobs("--retry", "--refused")
    with pytest.raises(CommandError, match="No request was retried"):
        jobs("--retry", requests[0].pk)
    inbox.decide(Job.objects.all())
    assert sorted(each.type for each in Job.objects.all()) == ["later", "mail"]


def test_a_request_is_deleted_also_before_it_is_decided(jobs, requests):
    assert json.loads(jobs("--delete", requests[1].pk, "--json")) == {"deleted": 1}
    assert "Deleted: 1 request." in jobs("--delete", "--refused")
    assert not InboxRequest.objects.exists()


@pytest.mark.parametrize("change", ["--retry", "--delete"])
def test_a_change_names_its_requests(jobs, change):
    with pytest.raises(CommandError, match="Which ones"):
        jobs(change)


def test_an_id_is_a_number(jobs):
    with pytest.raises(CommandError, match="not the id of a request"):
        jobs("x")
