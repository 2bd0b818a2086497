"""A delay says how long from now what ``scheduled_at`` says as a moment, wherever that is taken."""

from datetime import UTC, datetime, timedelta
from unittest.mock import patch

import pytest
from asgiref.sync import async_to_sync
from django.core.management import call_command
from django.db import transaction
from django.utils import timezone

from django_ojs_unique import InvalidPolicy, InvalidRequest, UniquePolicy, job, presets
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job
from django_ojs_unique.testing import assert_enqueued, assert_not_enqueued, capture_jobs, travel
from tests.enqueue.test_bad_input import Hostile
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SPANS = [(60, MINUTE), (0.5, timedelta(milliseconds=500)), (MINUTE, MINUTE), ("PT1M", MINUTE), ("P1M", timedelta(28))]


@pytest.fixture
def clock():
    """Stop the application's clock; ``clock.return_value`` moves it."""
    with patch.object(timezone, "now", return_value=NOW) as clock:
        yield clock


def awaited(call):
    async def whole():
        return await call()

    return async_to_sync(whole)()


def stored():
    return Job.objects.get()


@pytest.mark.parametrize(("delay", "later"), SPANS, ids=str)
def test_a_delay_is_counted_from_the_enqueue_months_on_the_calendar(delay, later, clock):
    job = Job.objects.enqueue("t", delay=delay).job
    assert (job.state, job.created_at, job.scheduled_at, job.run_at) == ("scheduled", NOW, NOW + later, NOW + later)
    assert stored().scheduled_at == NOW + later


@pytest.mark.parametrize("delay", [0, 0.0, timedelta(), "PT0S"], ids=str)
def test_a_delay_of_zero_is_at_once(delay, clock):
    assert Job.objects.enqueue("t", delay=delay).job.state == "available"


def declared():
    @job("later")
    def later():
        """Do nothing."""

    return later


WAYS = {
    "enqueue": lambda: Job.objects.enqueue("later", delay="PT1M"),
    "aenqueue": lambda: awaited(lambda: Job.objects.aenqueue("later", delay="PT1M")),
    "enqueue_many": lambda: Job.objects.enqueue_many([{"type": "later", "delay": "PT1M"}]),
    "aenqueue_many": lambda: awaited(lambda: Job.objects.aenqueue_many([{"type": "later", "delay": "PT1M"}])),
    "enqueue_on_commit": lambda: Job.objects.enqueue_on_commit("later", delay="PT1M"),
    "handler": lambda: declared().using(delay="PT1M").enqueue(),
    "handler, async": lambda: awaited(declared().using(delay="PT1M").aenqueue),
    "handler, on commit": lambda: declared().using(delay="PT1M").enqueue_on_commit(),
    "handler, item": lambda: Job.objects.enqueue_many([declared().using(delay="PT1M").item()], mode="atomic"),
    "key": lambda: Job.objects.enqueue("later", key="k", delay="PT1M"),
    "policy": lambda: Job.objects.enqueue("later", unique=UniquePolicy(delay="PT1M")),
    "policy as an object": lambda: Job.objects.enqueue("later", unique={"delay": 60}),
}


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("way", WAYS)
def test_a_delay_is_taken_wherever_a_moment_is(way, clock, handlers):
    WAYS[way]()
    assert stored().scheduled_at == NOW + MINUTE


@pytest.mark.django_db(transaction=True)
def test_an_enqueue_on_commit_counts_from_the_enqueue_after_the_commit(clock):
    with transaction.atomic():
        Job.objects.enqueue_on_commit("t", delay=60)
        clock.return_value = NOW + 10 * MINUTE
    assert (stored().created_at, stored().scheduled_at) == (NOW + 10 * MINUTE, NOW + 11 * MINUTE)


def test_the_items_of_a_batch_count_from_when_they_are_read(clock):
    def items():
        yield {"type": "t", "delay": 60}
        clock.return_value = NOW + 10 * MINUTE

    Job.objects.enqueue_many(items())
    assert stored().scheduled_at == NOW + 11 * MINUTE


def test_an_explanation_takes_a_delay(clock):
    hourly = presets.once_per_window("PT1H")
    Job.objects.enqueue("t", unique=hourly)
    assert Job.objects.explain("t", unique=hourly, delay="PT59M59S").action == "ignore"
    assert Job.objects.explain("t", unique=hourly, delay="PT1H").action == "create"
    assert awaited(lambda: Job.objects.aexplain("t", unique=hourly, delay=3600)).action == "create"


def test_the_command_that_explains_takes_a_delay(clock, capsys):
    hourly = '{"period": "PT1H", "window": "fixed"}'
    call_command("jobs", "explain", "t", "--unique", hourly, "--delay", "PT2H")
    assert "2026-01-31T14:00:00Z/PT1H" in capsys.readouterr().out


# The policy's


def test_a_policy_delays_what_says_nothing_of_its_time(clock):
    delayed = UniquePolicy(delay=MINUTE, on_conflict="replace")
    for options, due in (
        ({}, NOW + MINUTE),
        ({"delay": "PT1H"}, NOW + 60 * MINUTE),
        ({"delay": 0}, NOW),
        ({"scheduled_at": NOW + 5 * MINUTE}, NOW + 5 * MINUTE),
    ):
        assert Job.objects.enqueue("t", unique=delayed, **options).job.scheduled_at == due
    assert stored_policy()["delay"] == "PT1M"


def stored_policy():
    return Job.objects.order_by("-id").first().unique


def test_without_a_delay_a_policy_does_not_mention_it():
    assert "delay" not in UniquePolicy().to_dict()


def test_a_policy_does_not_delay_a_pending_job():
    request = Request("t", unique={"delay": 60}, pending=True)
    job = Job.objects.enqueue_request(request).job
    assert (job.state, job.scheduled_at) == ("pending", None)


def test_a_debounce_cannot_be_declared_without_its_delay():
    with pytest.raises(TypeError, match="delay"):
        presets.debounce()


def test_a_debounced_handler_moves_with_each_enqueue(clock, handlers):
    @job("index", unique=presets.debounce("PT1M", args=["id"]))
    def index(id):
        """Do nothing."""

    first = index.enqueue(1).job
    clock.return_value = NOW + timedelta(seconds=30)
    second = index.enqueue(1)
    assert [replaced.pk for replaced in second.replaced] == [first.pk]
    assert (second.job.state, second.job.scheduled_at) == ("scheduled", NOW + timedelta(seconds=90))
    assert index.using(delay=0).enqueue(1).job.state == "available"


def test_what_replaces_all_but_the_time_takes_that_of_the_first(clock):
    at_most_a_minute = UniquePolicy(states=["scheduled"], on_conflict="replace_except_schedule", delay=60)
    Job.objects.enqueue("t", unique=at_most_a_minute)
    clock.return_value = NOW + timedelta(seconds=30)
    assert Job.objects.enqueue("t", unique=at_most_a_minute).job.scheduled_at == NOW + MINUTE


# Refusals

SPAN = "must be a length of time from 0 to 1,000 years"


@pytest.mark.parametrize(
    ("delay", "said"),
    [
        (-1, SPAN),
        (-0.001, SPAN),
        (timedelta(microseconds=-1), SPAN),
        (True, SPAN),
        (False, SPAN),
        (float("nan"), SPAN),
        (float("inf"), SPAN),
        (10**400, SPAN),
        (timedelta.max, SPAN),
        ([60], SPAN),
        (b"PT1M", SPAN),
        (Hostile(), SPAN),
        ("", "is not an ISO 8601 duration"),
        ("60", "is not an ISO 8601 duration"),
        ("-PT1M", "is not an ISO 8601 duration"),
        ("P1001Y", "is longer than 1000 years"),
        (NOW, "A moment is scheduled_at=…"),
    ],
    ids=lambda value: type(value).__name__ if not isinstance(value, (str, float)) else str(value)[:20],
)
@pytest.mark.parametrize("field", ["delay", "unique.delay"])
def test_what_is_no_length_of_time_is_refused(field, delay, said):
    options = {"delay": delay} if field == "delay" else {"unique": {"delay": delay}}
    with pytest.raises(InvalidRequest) as refusal:
        Job.objects.enqueue("t", **options)
    assert refusal.value.details["field"] == field
    assert said in refusal.value.message
    assert not Job.objects.exists()


@pytest.mark.parametrize("delay", [0, timedelta(), "PT0S", 1e-9], ids=str)
def test_a_policy_that_delays_by_nothing_is_refused(delay):
    for field, declare in (
        ("unique.delay", lambda: UniquePolicy(delay=delay)),
        ("delay", lambda: presets.debounce(delay)),
    ):
        with refused(InvalidPolicy, field, names="zero"):
            declare()


def test_a_delay_that_leaves_the_calendar_is_refused():
    with travel(datetime(9900, 1, 1, tzinfo=UTC)):
        for field, options in (("delay", {"delay": "P100Y"}), ("unique.delay", {"unique": {"delay": "P900Y"}})):
            with refused(InvalidRequest, field, names="calendar"):
                Job.objects.enqueue("t", **options)


def test_a_delay_beside_a_moment_is_refused():
    with refused(InvalidRequest, "delay", names="scheduled_at"):
        Job.objects.enqueue("t", delay=60, scheduled_at=timezone.now())


@pytest.mark.parametrize(
    ("span", "hint"),
    [
        (MINUTE, "Write delay=datetime.timedelta(seconds=60)."),
        (60, "Write delay=60."),
        (0.5, "Write delay=0.5."),
        ("PT1M", "Write delay='PT1M'."),
        (True, "timezone.now()"),
        ("tomorrow", "timezone.now()"),
        (-1, "timezone.now()"),
    ],
    ids=str,
)
def test_a_length_of_time_in_the_place_of_a_moment_is_told_its_name(span, hint):
    with pytest.raises(InvalidRequest) as refusal:
        Job.objects.enqueue("t", scheduled_at=span)
    assert refusal.value.details["field"] == "scheduled_at"
    assert hint in refusal.value.message


def test_the_answer_about_an_item_names_its_delay():
    (answer,) = Job.objects.enqueue_many([{"type": "t", "delay": "soon"}])
    assert answer.error.message.startswith("items[0].delay: is not an ISO 8601 duration")


# In tests


def test_a_test_asks_for_the_delay():
    with capture_jobs() as captured:
        Job.objects.enqueue("t", delay="PT2H")
    for assertion, refusal in (
        (assert_enqueued, assert_not_enqueued),
        (captured.assert_enqueued, captured.assert_not_enqueued),
    ):
        assertion("t", delay="PT2H")
        assertion("t", delay=timedelta(hours=2))
        refusal("t", delay="PT3H")
        refusal("t", delay=None)
        with pytest.raises(AssertionError, match=r"2:00:00.*'PT3H'"):
            assertion("t", delay="PT3H")


def test_a_test_asks_for_no_delay():
    Job.objects.enqueue("t")
    assert_enqueued("t", delay=None)
    assert_enqueued("t", delay=0)
    with pytest.raises(AssertionError, match=r"0:00:00.*60"):
        assert_enqueued("t", delay=60)
