import io
from datetime import timedelta
from typing import Any

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.utils import timezone

from django_ojs_unique import lifecycle
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.ojs.states import KINDS
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db(transaction=True)

DAY = timedelta(days=1)
COUNTS_COMPLETED = {"keys": ["type", "args"], "states": ["available", "completed"], "on_conflict": "ignore"}


def run(*arguments: str, **options: Any) -> list[str]:
    out = io.StringIO()
    call_command("prunejobs", *arguments, stdout=out, **options)
    return out.getvalue().splitlines()


def finished(kind: str = "completed", *, days: int, **options: Any) -> Job:
    job = Job.objects.enqueue("t", **options).job
    state, dead_letter = KINDS[kind]
    then = timezone.now() - days * DAY
    Job._base_manager.filter(pk=job.pk).update(state="active", started_at=then)
    lifecycle.move(Job.objects.filter(pk=job.pk), state, finished_at=then, dead_letter=dead_letter)
    return job


def test_nothing_to_do_is_said_in_one_line():
    assert run() == ["0 deleted, 0 kept for their windows without their payload."]


def test_it_does_all_there_is_to_do_whatever_the_batch_and_says_so():
    for number in range(7):
        finished(days=8, args={"n": number})
    for number in range(3):
        finished(days=8, args={"n": number}, unique=COUNTS_COMPLETED)
    finished(days=6)
    assert run("--batch", "2") == ["7 deleted, 3 kept for their windows without their payload."]
    assert Job.objects.count() == 4
    assert run() == ["0 deleted, 0 kept for their windows without their payload."]


def test_a_dry_run_says_what_and_why_changes_nothing_and_its_numbers_come_true():
    finished(days=8)
    finished("cancelled", days=8, unique=COUNTS_COMPLETED)
    finished("dead_letter", days=181)
    finished("discarded", days=29)
    finished(days=8, args={"n": 1}, unique=COUNTS_COMPLETED)
    ended = finished(days=8, args={"n": 2}, unique={**COUNTS_COMPLETED, "period": "P1D"})
    Job._base_manager.filter(pk=ended.pk).update(payload_pruned=True, window_ends_at=timezone.now() - DAY)
    Job.objects.enqueue("t", {"n": 1}, unique=COUNTS_COMPLETED)
    SuppressedEnqueue.objects.update(created_at=timezone.now() - 31 * DAY)
    before = list(Job.objects.order_by("pk").values())
    assert run("--dry-run") == [
        "completed: 2 finished P7D ago or earlier; 1 to delete, 1 to slim, as their windows are open",
        "cancelled: 1 finished P7D ago or earlier; 1 to delete, 0 to slim, as their windows are open",
        "discarded: 0 finished P30D ago or earlier; 0 to delete, 0 to slim, as their windows are open",
        "dead_letter: 1 finished P180D ago or earlier; 1 to delete, 0 to slim, as their windows are open",
        "kept without their payload: 1 to delete, as their windows have ended",
        "suppressed enqueues: 1 older than P30D",
        "events: 0 older than P7D",
        "4 would be deleted, 1 kept for their windows without their payload. Nothing was changed.",
    ]
    assert list(Job.objects.order_by("pk").values()) == before
    assert SuppressedEnqueue.objects.count() == 1
    assert run() == ["1 suppressed enqueues deleted.", "4 deleted, 1 kept for their windows without their payload."]
    assert not SuppressedEnqueue.objects.exists()


def test_one_state_is_pruned_and_the_others_and_the_suppressed_enqueues_are_not():
    for kind in KINDS:
        finished(kind, days=1000, args={"kind": kind})
    finished(days=8, args={"n": 1}, unique={})
    Job.objects.enqueue("t", {"n": 2}, unique={})
    Job.objects.enqueue("t", {"n": 2}, unique={"on_conflict": "ignore"})
    SuppressedEnqueue.objects.update(created_at=timezone.now() - 31 * DAY)
    run("--state", "discarded", "--state", "cancelled")
    kept = {job.args["kind"] for job in Job.objects.all() if "kind" in job.args}
    assert kept == {"completed", "dead_letter"}
    assert SuppressedEnqueue.objects.count() == 1


def test_an_age_on_the_command_line_goes_before_the_setting(settings):
    settings.OJS_UNIQUE = {"RETENTION": {"discarded": None}}
    finished(days=2)
    finished("discarded", days=2)
    assert run("--older-than", "P3D")[-1].startswith("0 deleted")
    assert run("--dry-run")[2] == "discarded: kept for ever"
    assert run("--older-than", "P1D")[-1].startswith("2 deleted")


@pytest.mark.slow
def test_a_thousand_is_written_with_a_comma():
    then = timezone.now() - 8 * DAY
    insert_all(Job(type="t", queue="q", state="completed", finished_at=then) for _ in range(1200))
    assert run()[-1].startswith("1,200 deleted")


def test_quiet_is_quiet():
    finished(days=8)
    assert run(verbosity=0) == []
    assert not Job.objects.exists()


def test_an_unknown_database_is_refused():
    finished(days=8)
    with pytest.raises(CommandError, match="'nowhere'"):
        run("--database", "nowhere")
    assert Job.objects.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--state", "complete"], "Did you mean 'completed'?"),
        (["--state", "dead-letter"], "Did you mean 'dead_letter'?"),
        (["--state", "xyz"], "Valid: 'completed', 'cancelled', 'discarded', 'dead_letter'."),
        (["--older-than", "7"], "Write P30D or PT12H."),
        (["--older-than", "P1M"], "without years or months"),
        (["--older-than", "P0D"], "is zero"),
        (["--older-than", "-P1D"], "--older-than"),
        (["--older-than", "P9999999D"], "is longer than 1000 years"),
        (["--batch", "0"], "from 1 to 10,000"),
        (["--batch", "x"], "from 1 to 10,000"),
        (["--batch", "10001"], "from 1 to 10,000"),
    ],
)
def test_bad_input_is_refused_with_its_hint(arguments, said):
    with pytest.raises(CommandError) as refusal:
        run(*arguments)
    assert said in str(refusal.value)


def test_a_wrong_setting_is_said(settings):
    settings.OJS_UNIQUE = {"RETENTION": {"completed": "P1M"}}
    with pytest.raises(CommandError, match=r"manage\.py check"):
        run()


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("P7D", "must be a dict"),
        (None, "must be a dict"),
        ({"complete": "P7D"}, "Did you mean 'completed'?"),
        ({"completed": "7d"}, "OJS_UNIQUE['RETENTION']['completed'] is not an ISO 8601 duration (got '7d')."),
        ({"completed": "7d"}, "Write an ISO 8601 duration such as 'P30D'; None keeps for ever."),
        ({"completed": "P1M"}, "without years or months"),
        ({"completed": 7}, "must be a positive duration"),
        ({"completed": timedelta()}, "must be a positive duration"),
        ({"completed": timedelta(days=999_999)}, "is longer than 1000 years"),
    ],
)
@pytest.mark.django_db(databases="__all__")  # a check of Django asks each once
def test_a_wrong_retention_is_said_by_a_check(value, said, settings):
    settings.OJS_UNIQUE = {"RETENTION": value}
    (found,) = [message for message in run_checks() if message.id == "django_ojs_unique.E001"]
    assert said in found.msg


@pytest.mark.django_db(databases="__all__")
@pytest.mark.parametrize("value", [{}, {"completed": None}, {"dead_letter": timedelta(days=1), "cancelled": "PT1H"}])
def test_a_right_retention_passes_the_check(value, settings):
    settings.OJS_UNIQUE = {"RETENTION": value}
    assert [message for message in run_checks() if message.id == "django_ojs_unique.E001"] == []
