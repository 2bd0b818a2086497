"""What an enqueue has computed for one type, queue and options never outlives what it was computed from."""

from __future__ import annotations

import pytest

from django_ojs_unique import RetryPolicy
from django_ojs_unique import job as declare
from django_ojs_unique.exceptions import InvalidRequest, PayloadTooLarge
from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db


def queue():
    return Job.objects.enqueue("t").job.queue


def test_changed_settings_hold_from_the_next_enqueue(settings):
    assert queue() == "default"
    settings.OJS_UNIQUE = {"DEFAULT_QUEUE": "second"}
    assert queue() == "second"
    settings.OJS_UNIQUE["DEFAULT_QUEUE"] = "third"
    assert queue() == "third"


def test_a_project_has_a_retry_policy_of_its_own_for_jobs_that_give_none(settings, handlers):
    def attempts(**options):
        job = Job.objects.enqueue("t", **options).job
        return Job.objects.get(pk=job.pk).retry_policy.max_attempts

    assert attempts() == 3
    settings.OJS_UNIQUE = {"RETRY": {"max_attempts": 17}}
    assert (attempts(), attempts(retry=None), attempts(retry={"max_attempts": 2})) == (17, 17, 2)
    declare("t", retry={"max_attempts": 5})(lambda: None)
    assert attempts() == 5
    settings.OJS_UNIQUE = {"RETRY": RetryPolicy(max_attempts=9)}
    assert attempts(retry=None) == 9


def test_a_handler_that_is_declared_anew_holds_from_the_next_enqueue(handlers):
    assert queue() == "default"
    for name in ("second", "third"):
        declare("t", queue=name)(lambda: None)
        assert queue() == name
        handlers.unregister("t")
    assert queue() == "default"


@pytest.mark.parametrize("option", ["priority", "timeout"])
def test_an_option_that_only_equals_a_valid_one_is_refused_after_it(option):
    assert Job.objects.enqueue("t", **{option: 1}).created
    with pytest.raises(InvalidRequest):
        Job.objects.enqueue("t", **{option: True})


def test_a_change_of_one_job_changes_no_other():
    first, second = (Job.objects.enqueue("t", [n], unique={"keys": ["args"]}, retry={}).job for n in range(2))
    for options in (first.unique, first.retry_options):
        options["mine"] = True
    third = Job.objects.enqueue("t", [3], unique={"keys": ["args"]}, retry={}).job
    for job in (second, third):
        stored = Job.objects.get(pk=job.pk)
        assert "mine" not in {*job.unique, *job.retry_options, *stored.unique, *stored.retry_options}


DECOMPOSED = "\u03b1\u0313\u0300\u0345"
"""Eight bytes, which are one character in NFC."""


@pytest.mark.parametrize(
    "unique",
    [None, {}, {"keys": ["type"]}, {"keys": ["args"]}, {"keys": ["args"], "args_keys": ["a"]}],
    ids=["none", "default", "type", "args", "some args"],
)
@pytest.mark.parametrize("text", ["x" * 1000, DECOMPOSED * 125], ids=["ASCII", "decomposed"])
def test_args_of_one_byte_too_many_are_refused_whatever_identifies_the_job(settings, unique, text):
    settings.OJS_UNIQUE = {"MAX_ARGS_BYTES": 1014}
    assert Job.objects.enqueue("t", {"a": 1, "b": text}, unique=unique).created
    with pytest.raises(PayloadTooLarge):
        Job.objects.enqueue("t", {"a": 1, "b": text + "x"}, unique=unique)
