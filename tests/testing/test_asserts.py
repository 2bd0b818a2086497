"""The assertions: what they accept, and what they say when they fail."""

from contextlib import suppress
from datetime import UTC, datetime, timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy, job
from django_ojs_unique.models import Job
from django_ojs_unique.testing import (
    assert_deduplicated,
    assert_enqueued,
    assert_not_enqueued,
    capture_jobs,
    run_jobs,
    travel,
)

pytestmark = pytest.mark.django_db

NOON = datetime(2040, 2, 12, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


@pytest.fixture
def send(handlers):
    @job("email.send", queue="mail", unique=UniquePolicy(keys=["type", "args"], args_keys=["user_id"]))
    def send(user_id, **options):
        """Do nothing."""

    return send


def again(handler, *args, **kwargs):
    with suppress(DuplicateJob):
        handler.enqueue(*args, **kwargs)


def failure(assertion, *args, **wanted):
    with pytest.raises(AssertionError) as failed:
        assertion(*args, **wanted)
    return str(failed.value)


WANTED = [
    ({"args": {"user_id": 1, "tags": ["a", "b"], "options": {"x": 1, "y": 2}}}, True),
    ({"args": {"user_id": 1, "tags": ("a", "b"), "options": {"y": 2, "x": 1}}}, True),
    ({"args": {"user_id": 1}}, False),
    ({"args": {"user_id": 2, "tags": ["a", "b"], "options": {"x": 1, "y": 2}}}, False),
    ({"args__contains": {"user_id": 1}}, True),
    ({"args__contains": {"options": {"x": 1}}}, True),
    ({"args__contains": {"options": {"x": 2}}}, False),
    ({"args__contains": {"tags": ["b"]}}, True),
    ({"args__contains": {"tags": ["c"]}}, False),
    ({"args__contains": {"user_id": True}}, False),
    ({"args__contains": {"nobody": 1}}, False),
    ({"args__contains": {}}, True),
    ({"meta": {"tenant": "acme", "trace": "x"}}, True),
    ({"meta__contains": {"tenant": "acme"}}, True),
    ({"meta__contains": {"tenant": "other"}}, False),
    ({"queue": "mail"}, True),
    ({"queue": "default"}, False),
    ({"priority": 5}, True),
    ({"state": "scheduled"}, True),
    ({"state": "available"}, False),
    ({"key": None}, True),
    ({"scheduled_at": NOON}, True),
    ({"scheduled_at": NOON + HOUR}, False),
    ({"scheduled_at": None}, False),
    ({"scheduled_at": (NOON - HOUR, NOON)}, True),
    ({"scheduled_at": (NOON + HOUR, NOON + 2 * HOUR)}, False),
    ({"queue": "mail", "args__contains": {"user_id": 2}}, False),
]


@pytest.mark.slow
def test_a_job_is_found_by_what_it_says(send):
    row = send.using(meta={"tenant": "acme", "trace": "x"}, priority=5, scheduled_at=NOON).enqueue(
        1, tags=["a", "b"], options={"x": 1, "y": 2}
    )
    for wanted, is_there in WANTED:
        if is_there:
            assert assert_enqueued("email.send", **wanted) == assert_enqueued(send, **wanted) == row.job
            failure(assert_not_enqueued, send, **wanted)
        else:
            failure(assert_enqueued, send, **wanted)
            assert_not_enqueued(send, **wanted)


def test_arrays_are_found_too():
    Job.objects.enqueue("t", [1, {"a": 1, "b": 2}])
    assert_enqueued("t", args=[1, {"a": 1, "b": 2}])
    assert_enqueued("t", args__contains=[{"a": 1}])
    assert_not_enqueued("t", args__contains=[{"a": 2}])
    assert_not_enqueued("t", args={})


def test_a_job_at_once_lies_between_no_moments(send):
    send.enqueue(1)
    assert_enqueued(send, scheduled_at=None)
    assert_not_enqueued(send, scheduled_at=(NOON, NOON + HOUR))


def test_what_has_run_was_enqueued(send):
    send.enqueue(1)
    run_jobs()
    assert_enqueued(send, state="completed")


def test_any_type_can_be_asked_for(send):
    assert_not_enqueued()
    send.enqueue(1)
    assert_enqueued(queue="mail")
    failure(assert_not_enqueued)


def test_jobs_are_counted(send):
    assert_enqueued(send, count=0)
    send.enqueue(1)
    assert_enqueued(send, count=1)
    assert "Wanted 2 enqueued: email.send. Found 1." in failure(assert_enqueued, send, count=2)
    assert "Wanted 0 enqueued: email.send. Found 1." in failure(assert_enqueued, send, count=0)


@pytest.mark.django_db(databases=["default", "other"])
def test_another_database_can_be_asked(send):
    Job.objects.using("other").enqueue("email.send", {"user_id": 1})
    with suppress(DuplicateJob):
        Job.objects.using("other").enqueue("email.send", {"user_id": 1})
    assert_not_enqueued(send)
    assert_enqueued(send, using="other", count=1)
    assert_deduplicated(send, using="other", count=1)
    failure(assert_deduplicated, send)


# What they say


def test_a_failure_lists_what_there_is_the_nearest_first(send):
    far = Job.objects.enqueue("report.daily").job
    near = send.using(scheduled_at=NOON).enqueue(2, locale="de", extra=None).job
    nearer = send.enqueue(1, locale="de").job
    said = failure(assert_enqueued, send, args={"user_id": 1, "locale": "en"})
    assert said == (
        "Wanted at least one enqueued: email.send, args={'locale': 'en', 'user_id': 1}. Found 0.\n"
        "3 enqueued, the nearest first:\n"
        f"  email.send {{'locale': 'de', 'user_id': 1}} in queue mail, available ({nearer.pk})\n"
        "      args.locale is 'de', not 'en'\n"
        "  email.send {'extra': None, 'locale': 'de', 'user_id': 2} in queue mail,"
        f" scheduled at 2040-02-12 12:00:00+00:00 ({near.pk})\n"
        "      args.user_id is 2, not 1\n"
        "      args.locale is 'de', not 'en'\n"
        "      args.extra is None, not missing\n"
        f"  report.daily {{}} in queue default, available ({far.pk})\n"
        "      type is 'report.daily', not 'email.send'\n"
        "      args.user_id is missing, not 1\n"
        "      args.locale is missing, not 'en'"
    )


def test_a_misspelt_type_meets_the_right_one_first(send):
    Job.objects.enqueue("a.report")
    send.enqueue(1)
    assert failure(assert_enqueued, "email.sent").splitlines()[2].startswith("  email.send ")


def test_a_failure_on_a_time_says_both(send):
    send.using(scheduled_at=NOON).enqueue(1)
    between = failure(assert_enqueued, send, scheduled_at=(NOON + HOUR, NOON + 2 * HOUR))
    assert "scheduled_at is 2040-02-12 12:00:00+00:00, not between 2040-02-12 13:00:00+00:00 and" in between
    assert "scheduled_at is 2040-02-12 12:00:00+00:00, not None" in failure(assert_enqueued, send, scheduled_at=None)


def test_nothing_is_said_to_be_nothing(send):
    assert failure(assert_enqueued, send).endswith("Found 0.\nNone was enqueued at all.")
    assert failure(assert_deduplicated, send).endswith("Found 0.\nNone was suppressed at all.")


def test_a_long_list_is_cut(send):
    for number in range(13):
        send.enqueue(number)
    said = failure(assert_enqueued, "nothing.like.it")
    assert (said.count("email.send {"), said.splitlines()[-1]) == (10, "  and 3 more")


def test_the_jobs_that_should_not_be_are_named(send):
    row = send.enqueue(1).job
    send.enqueue(2)
    said = failure(assert_not_enqueued, send, args={"user_id": 1})
    assert said.startswith("Wanted none enqueued: email.send, args={'user_id': 1}.\n1 enqueued, the nearest first:\n")
    assert str(row.pk) in said


def test_a_name_that_cannot_be_asked_for_is_refused(send):
    with pytest.raises(TypeError, match=r"'arg'.*'args'\?"):
        assert_enqueued(send, arg={})
    with pytest.raises(TypeError, match="'scheduled_at'"):
        assert_deduplicated(send, scheduled_at=None)


# Duplicates


@pytest.mark.parametrize(
    ("strategy", "outcome"), [("reject", "rejected"), ("ignore", "deduplicated"), ("replace", "replaced")]
)
def test_every_strategy_leaves_a_trace(send, strategy, outcome):
    policy = UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict=strategy)
    first = send.using(unique=policy).enqueue(1).job
    failure(assert_deduplicated, send)
    again(send.using(unique=policy, meta={"tenant": "acme"}), 1, locale="en")
    for asked in (
        {},
        {"outcome": outcome},
        {"args": {"user_id": 1, "locale": "en"}},
        {"args__contains": {"locale": "en"}},
        {"meta__contains": {"tenant": "acme"}},
        {"queue": "mail", "count": 1},
    ):
        assert assert_deduplicated(send, **asked).existing_job_id == first.pk
        assert_deduplicated(first, **asked)
    other = send.using(unique=policy).enqueue(2).job
    said = failure(assert_deduplicated, other)
    assert f"existing_job_id is UUID('{first.pk}')" in said
    assert f"{outcome}: met job {first.pk}" in said


def test_a_duplicate_under_another_outcome_is_said(send):
    send.enqueue(1)
    again(send, 1)
    assert "outcome is 'rejected', not 'deduplicated'" in failure(assert_deduplicated, send, outcome="deduplicated")


def test_attempts_are_counted_across_time(send):
    hourly = send.using(unique=UniquePolicy(period="PT1H", on_conflict="ignore"))
    for _ in range(3):
        hourly.enqueue(1)
    with travel(HOUR):
        hourly.enqueue(1)
    assert_deduplicated(send, count=2)
    assert_enqueued(send, count=2)
    assert timezone.now() < assert_enqueued(send).created_at + HOUR


DUPLICATES = [
    (UniquePolicy(on_conflict="ignore"), {}, "deduplicated", "type"),
    (UniquePolicy(keys=["queue", "args"], args_keys=["user_id"]), {}, "rejected", "type + queue + args.user_id"),
    (None, {"key": "k", "key_mode": "unsafe_dedupe"}, "deduplicated", "key 'k'"),
]


@pytest.mark.parametrize("captured", [False, True])
@pytest.mark.parametrize(("policy", "options", "outcome", "common"), DUPLICATES)
def test_a_job_that_is_missing_because_it_was_a_duplicate_is_said_to_be_one(
    send, policy, options, outcome, common, captured
):
    with capture_jobs() as jobs:
        chosen = send.using(unique=policy, **options)
        first = chosen.enqueue(1).job
        again(chosen, 1, locale="en")
        again(Job.objects, "other", unique=UniquePolicy(on_conflict="ignore"))
        again(Job.objects, "other", unique=UniquePolicy(on_conflict="ignore"))
    assertion = jobs.assert_enqueued if captured else assert_enqueued
    for wanted in ({"count": 2}, {"args": {"user_id": 1, "locale": "en"}, "state": "available"}):
        assert failure(assertion, send, **wanted).endswith(
            "\n1 met a duplicate, and stored no job:\n"
            f"  email.send {{'locale': 'en', 'user_id': 1}} in queue mail, {outcome}: met job {first.pk}\n"
            f"      which was available and has the same {common}"
        )
    assert "duplicate" not in failure(assertion, send, count=0)
    assert "duplicate" not in failure(assertion, send, args={"user_id": 1, "locale": "de"})


def test_a_duplicate_that_was_replaced_is_no_missing_job(send):
    newest = send.using(unique=UniquePolicy(on_conflict="replace"))
    newest.enqueue(1)
    newest.enqueue(1)
    assert "duplicate" not in failure(assert_enqueued, send, count=3)


def test_the_duplicate_of_a_deleted_job_and_of_one_that_was_rolled_back_are_said(send):
    with capture_jobs() as jobs, suppress(ZeroDivisionError), transaction.atomic():
        send.enqueue(1)
        again(send, 1)
        1 / 0  # noqa: B018
    assert "has the same type + args.user_id" in failure(jobs.assert_enqueued, send, count=2)
    row = send.enqueue(1).job
    again(send, 1)
    row.remove()
    assert "which was available and has the same fingerprint" in failure(assert_enqueued, send)


def test_many_duplicates_are_cut(send):
    send.enqueue(1)
    for _ in range(12):
        again(send, 1)
    said = failure(assert_enqueued, send, count=13)
    assert (said.count("rejected: met job"), said.splitlines()[-1]) == (10, "  and 2 more")
