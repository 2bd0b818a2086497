"""`Job.objects.explain()` and `duplicates_of()`: what an enqueue would do now, and why."""

from datetime import UTC, datetime, timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import (
    DuplicateJob,
    InvalidPolicy,
    InvalidRequest,
    OnConflict,
    UniquePolicy,
    lifecycle,
)
from django_ojs_unique.enqueue.explain import Explanation
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.jobs import ALL_STATES, DAY, HOUR, attempt, enqueue, put, row, stored

pytestmark = pytest.mark.django_db(databases=["default", "other"])

TICK = timedelta(microseconds=1)


@pytest.fixture
def clock(monkeypatch):
    """Stop the clock; set ``now`` to move it."""

    class Clock:
        now = datetime(2026, 1, 31, 12, tzinfo=UTC)

    clock = Clock()
    monkeypatch.setattr(timezone, "now", lambda: clock.now)
    return clock


def test_a_job_without_a_policy_would_always_be_created(handlers):
    for type in {*handlers} - {"tests.add", "tests.once"}:
        handlers.unregister(type)
    enqueue(unique=None)
    explanation = Job.objects.explain("t")
    reason = (
        "the job carries no unique policy. No handler is registered here for 't'. Valid: 'tests.add', 'tests.once'."
    )
    assert explanation == Explanation("create", reason, "", "", None)
    assert str(explanation) == f"would create: {reason}"


def test_an_explanation_says_the_text_the_key_the_policy_and_the_duplicates():
    job = enqueue("t", {"a": 1}, unique={"keys": ["args"]}).job
    explanation = Job.objects.explain("t", {"a": 1.0}, unique={"keys": ["args"]})
    assert explanation.action == "reject"
    assert explanation.canonical_text == '{"args":{"a":1},"type":"t"}'
    assert explanation.fingerprint == job.fingerprint
    assert explanation.policy == UniquePolicy(keys=["args"])
    assert [(duplicate.job, duplicate.until) for duplicate in explanation.duplicates] == [(job, None)]
    assert str(explanation).splitlines() == [
        f"would reject: job {job.pk} is available, and on_conflict is reject.",
        'canonical text: {"args":{"a":1},"type":"t"}',
        f"fingerprint:    {job.fingerprint}",
        f"duplicate:      {job.pk}, available, counts for as long as it is listed",
    ]


def test_an_explanation_shows_the_end_of_each_window(clock):
    job = enqueue(unique={"period": "PT1H"}).job
    clock.now += HOUR / 2
    explanation = Job.objects.explain("t", unique={"period": "PT2H"})
    assert explanation.duplicates[0].until == job.created_at + 2 * HOUR
    assert "counts until 2026-01-31 14:00:00 UTC" in str(explanation)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", list(map(str, OnConflict)))
@pytest.mark.parametrize(
    ("state", "replace_active"), [("active", False), *((state, True) for state in [None, *ALL_STATES])]
)
@pytest.mark.parametrize("listed", [True, False])
def test_what_an_explanation_says_is_what_an_enqueue_then_does(state, listed, strategy, replace_active, settings):
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": replace_active}
    if state:
        stored(state, unique={"states": ALL_STATES})
    states = ALL_STATES if listed else [other for other in ALL_STATES if other != state][:7]
    unique = {"states": states, "on_conflict": strategy}
    action = Job.objects.explain("t", unique=unique).action
    answer, _ = attempt(unique=unique)
    assert {"create": "created", "replace": "replaced", "reject": "rejected", "ignore": "deduplicated"}[
        action
    ] == answer


def test_an_id_in_use_does_not_matter_to_a_job_that_rewrites_another():
    holder, id = Job.objects.enqueue("t", key="k").job, enqueue(unique=None).job.pk
    assert Job.objects.explain("t", key="k", id=id).action == "replace"
    assert Job.objects.enqueue("t", key="k", id=id).job == holder
    put(holder, "active")  # now a job would be inserted
    assert Job.objects.explain("t", key="k", id=id).action == "reject"
    with pytest.raises(JobIdTaken):
        Job.objects.enqueue("t", key="k", id=id)


@pytest.mark.parametrize("strategy", list(map(str, OnConflict)))
def test_explaining_writes_nothing(strategy):
    stored("available")
    before = list(Job.objects.values())
    Job.objects.explain("t", unique={"on_conflict": strategy})
    assert list(Job.objects.values()) == before
    assert not SuppressedEnqueue.objects.exists()


def test_duplicates_that_would_stay_are_named_in_the_reason():
    stored("completed")
    explanation = Job.objects.explain("t", unique={"states": ALL_STATES, "on_conflict": "replace"})
    assert explanation.action == "create"
    assert explanation.reason == "the duplicates are finished, and a finished job stays as it is."
    assert len(explanation.duplicates) == 1


def test_a_stale_hold_is_no_duplicate(clock):
    enqueue(unique={"period": "PT1H"})
    clock.now += HOUR
    explanation = Job.objects.explain("t", unique={"period": "PT1H"})
    assert (explanation.action, explanation.duplicates) == ("create", ())
    assert explanation.reason == "no stored job is a duplicate now."


@pytest.mark.parametrize(
    ("period", "last_day"),
    [
        ("P1M", "2026-02-28T12:00"),
        ("P1Y", "2027-01-31T12:00"),
        ("P1Y1M", "2027-02-28T12:00"),
        ("P28D", "2026-02-28T12:00"),
    ],
)
def test_explain_duplicates_of_and_enqueue_agree_on_the_end_of_a_calendar_window(period, last_day, clock):
    unique = {"period": period}
    job = enqueue(unique=unique).job
    end = datetime.fromisoformat(last_day).replace(tzinfo=UTC)
    for moment, counts in ((end - TICK, True), (end, False)):
        clock.now = moment
        explanation = Job.objects.explain("t", unique=unique)
        assert [(duplicate.job, duplicate.until) for duplicate in explanation.duplicates] == [(job, end)] * counts
        assert list(Job.objects.duplicates_of(job.fingerprint, unique)) == [job] * counts
        assert attempt(unique=unique)[0] == ("rejected" if counts else "created")


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"unique": {"keys": ["argz"]}}, InvalidPolicy),
        ({"args": {"a": {1}}}, InvalidRequest),
        ({"queue": "Q"}, InvalidRequest),
        ({"no_such_option": 1}, TypeError),
    ],
)
def test_explain_refuses_what_enqueue_would_refuse(options, error):
    with pytest.raises(error):
        Job.objects.explain("t", **options)


def test_explain_takes_the_handlers_policy():
    job = Job.objects.enqueue("tests.once", {"key": "a"}).job
    explanation = Job.objects.explain("tests.once", {"key": "a", "note": "x"})
    assert (explanation.action, explanation.duplicates[0].job) == ("ignore", job)


def test_without_a_type_explain_is_still_djangos_query_plan():
    plan = Job.objects.filter(type="t").order_by("pk").explain()
    assert isinstance(plan, str)
    assert plan
    assert "Job" not in plan


def test_filters_do_not_hide_duplicates():
    job = enqueue().job
    hidden = Job.objects.filter(queue="another")
    assert hidden.explain("t", unique={}).duplicates[0].job == job
    assert list(hidden.duplicates_of(job.fingerprint)) == [job]
    with pytest.raises(DuplicateJob):
        hidden.enqueue("t", unique={})


def test_each_database_has_its_own_duplicates():
    here = enqueue().job
    elsewhere = Job.objects.using("other")
    assert elsewhere.explain("t", unique={}).action == "create"
    assert list(elsewhere.duplicates_of(here.fingerprint)) == []
    there = elsewhere.enqueue("t", unique={}).job
    assert there._state.db == "other"
    assert elsewhere.explain("t", unique={}).duplicates[0].job == there
    assert list(elsewhere.duplicates_of(here)) == [there]
    assert list(Job.objects.duplicates_of(here.fingerprint)) == [here]
    assert {job.pk for job in Job.objects.all()} == {here.pk}
    with pytest.raises(DuplicateJob) as caught:
        elsewhere.enqueue("t", unique={})
    assert caught.value.existing_job == there


def test_the_newest_duplicate_comes_first():
    old, newer, newest = (enqueue(unique={"period": "PT1S"}).job for _ in "123" if backdate())
    assert [duplicate.job for duplicate in Job.objects.explain("t", unique={}).duplicates] == [newest, newer, old]
    assert list(Job.objects.duplicates_of(old.fingerprint)) == [newest, newer, old]


def backdate():
    """Make every stored job an hour older."""
    for job in Job.objects.all():
        row(job).update(created_at=job.created_at - HOUR)
    return True


def test_a_job_is_not_its_own_duplicate():
    job = enqueue().job
    assert list(Job.objects.duplicates_of(job)) == []
    row(job).update(created_at=job.created_at - DAY)
    twin = enqueue(unique={"period": "PT1H"}).job
    assert list(Job.objects.duplicates_of(job)) == [twin]
    assert list(Job.objects.duplicates_of(twin)) == []
    assert list(Job.objects.duplicates_of(twin, {})) == [job]


def test_duplicates_of_takes_the_jobs_own_policy_unless_another_is_given():
    job = stored("completed", unique={"states": ["completed"]})
    twin = enqueue(unique={"states": ["active"]}).job
    put(twin, "completed")
    assert list(Job.objects.duplicates_of(job)) == [twin]
    assert list(Job.objects.duplicates_of(twin)) == []
    assert list(Job.objects.duplicates_of(twin, UniquePolicy(states=["completed"]))) == [job]


def test_for_a_fingerprint_the_default_states_count_without_a_period(clock):
    job = enqueue(unique={"period": "PT1H"}).job
    clock.now += 1000 * DAY
    assert list(Job.objects.duplicates_of(job.fingerprint)) == [job]
    lifecycle.cancel(row(job), clock.now)
    assert list(Job.objects.duplicates_of(job.fingerprint)) == []


def test_a_job_without_a_fingerprint_has_no_duplicates():
    one, _ = enqueue(unique=None).job, enqueue(unique=None).job
    assert list(Job.objects.duplicates_of(one)) == []
    assert list(Job.objects.duplicates_of(one, {})) == []


@pytest.mark.parametrize(
    "nonsense", [None, 7, b"f" * 64, SuppressedEnqueue()], ids=["none", "number", "bytes", "model"]
)
def test_duplicates_of_something_else_is_refused(nonsense):
    with pytest.raises(InvalidRequest) as caught:
        Job.objects.duplicates_of(nonsense)
    assert caught.value.details["field"] == "job_or_fingerprint"


def test_duplicates_of_answers_with_a_queryset():
    job = enqueue().job
    assert Job.objects.duplicates_of(job.fingerprint).filter(state="available").get() == job
