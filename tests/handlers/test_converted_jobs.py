"""``@job(..., convert=True)``: from the enqueue to the run."""

from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from django.contrib.auth import get_user_model
from django.core.checks import run_checks
from django.db import transaction

from django_ojs_unique import InvalidRequest, job
from django_ojs_unique.models import Job
from django_ojs_unique.testing import assert_enqueued, assert_not_enqueued, capture_jobs, run_jobs
from tests.support.refusals import refused

User = get_user_model()
A_UUID = UUID("0191b1a2-0000-7000-8000-000000000001")
pytestmark = pytest.mark.django_db


@pytest.fixture
def ada():
    return User.objects.create(username="ada")


@pytest.fixture
def seen():
    return []


@pytest.fixture
def welcome(handlers, seen):
    @job("mail.welcome", convert=True, unique={"keys": ["type", "args"], "on_conflict": "ignore"})
    def welcome(user: User, price: Decimal = Decimal(0), day: date | None = None):
        seen.append((user, price, day))

    return welcome


def test_a_handler_gets_what_was_sent_and_the_row_has_plain_json(welcome, seen, ada):
    stored = welcome.enqueue(user=ada, price=Decimal("1.50"), day=date(2026, 1, 2)).job
    stored.refresh_from_db()
    assert stored.args == {"user": ada.pk, "price": "1.5", "day": "2026-01-02"}
    run_jobs()
    assert seen == [(ada, Decimal("1.5"), date(2026, 1, 2))]


def test_equal_values_are_duplicates_however_they_are_sent(welcome, ada):
    first = welcome.enqueue(ada, Decimal("1.50"))
    others = [
        welcome.enqueue(ada, Decimal("1.5")),
        Job.objects.enqueue("mail.welcome", {"user": ada.pk, "price": "1.500"}),
        Job.objects.enqueue("mail.welcome", args={"price": Decimal("1.5"), "user": str(ada.pk)}),
        *Job.objects.enqueue_many([welcome.item(ada, Decimal("15E-1"))]),
    ]
    assert {one.job.pk for one in others} == {first.job.pk}


@pytest.mark.django_db(transaction=True)
def test_the_args_are_read_once_at_commit(welcome, ada):
    with transaction.atomic():
        welcome.enqueue_on_commit(ada, Decimal("2.0"))
        ada.pk = None  # too late
    assert Job.objects.get().args == {"user": User.objects.get().pk, "price": "2"}


def test_a_row_that_is_gone_discards_the_job_at_once(welcome, seen, ada):
    stored, key = welcome.enqueue(user=ada).job, ada.pk
    ada.delete()
    run_jobs(raise_errors=False)
    stored.refresh_from_db()
    assert (stored.state, stored.attempt, seen) == ("discarded", 1, [])
    assert stored.errors[-1]["code"] == "invalid_args"
    assert f"args.user: there is no auth.User with the primary key {key} any more" in stored.errors[-1]["message"]


def test_a_job_is_enqueued_again_by_its_stored_args(welcome, seen, ada):
    stored = welcome.enqueue(user=ada, day=date(2026, 1, 2)).job
    run_jobs()
    stored.refresh_from_db()
    stored.enqueue_again()
    run_jobs()
    assert seen == 2 * [(ada, Decimal(0), date(2026, 1, 2))]


def test_a_value_of_another_type_is_refused_before_anything_is_stored(welcome, ada):
    with refused(InvalidRequest, "args.price", names="Decimal"):
        welcome.enqueue(ada, price=1.5)
    assert not Job.objects.exists()


def test_args_in_order_are_converted_too(welcome, seen, ada):
    Job.objects.enqueue("mail.welcome", [ada, Decimal("2.50")])
    assert Job.objects.get().args == [ada.pk, "2.5"]
    run_jobs()
    assert seen == [(ada, Decimal("2.5"), None)]


def test_skip_unless_takes_what_the_handler_takes(handlers, seen, ada):
    @job("mail.later", convert=True, skip_unless=lambda user: user.is_active)
    def later(user: User):
        seen.append(user)

    later.enqueue(ada)
    User.objects.update(is_active=False)
    run_jobs()
    assert (Job.objects.get().state, seen) == ("completed", [])


@pytest.mark.django_db(transaction=True)
def test_an_async_handler_gets_rows_too(handlers, seen, ada):
    @job("mail.async", convert=True)
    async def send(user: User, at: datetime):
        seen.append((user, at))

    moment = datetime(2026, 1, 2, tzinfo=UTC)
    send.enqueue(ada, moment)
    run_jobs()
    assert seen == [(ada, moment)]


def test_the_test_helpers_take_the_same_values(welcome, ada):
    with capture_jobs() as captured:
        welcome.enqueue(ada, Decimal("1.50"))
    for asserting in (captured.assert_enqueued, assert_enqueued):
        asserting(welcome, args={"user": ada, "price": Decimal("1.5")})
        asserting("mail.welcome", args__contains={"user": ada})
    assert_not_enqueued(welcome, args__contains={"price": Decimal(2)})


def test_without_convert_nothing_is_converted(handlers):
    @job("plain")
    def plain(id: UUID):
        pass

    with refused(InvalidRequest, "args.id", names="str(id)"):
        plain.enqueue(A_UUID)


def test_a_check_names_the_hint_that_cannot_be_converted(handlers):
    @job("wrong", convert=True)
    def wrong(a: int, b: complex):
        pass

    @job("right", convert=True)
    def right(a: int):
        pass

    (message,) = [one for one in run_checks(tags=["ojs_unique"]) if one.id == "django_ojs_unique.E004"]
    assert "'b': complex has no conversion" in message.msg
