"""Pausing and limiting queues: exact, however many say it at once."""

from functools import partial

import pytest
from django.db import transaction

from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.models import Queue
from tests.support.processes import together
from tests.support.refusals import refused


@pytest.mark.django_db
def test_pausing_says_since_when_and_a_second_time_changes_nothing():
    assert Queue.objects.pause("emails")
    since = Queue.objects.get(name="emails").paused_at
    assert not Queue.objects.pause("emails")
    assert Queue.objects.get(name="emails").paused_at == since


@pytest.mark.django_db
def test_resuming_a_queue_keeps_its_limit():
    Queue.objects.limit("emails", 3)
    Queue.objects.pause("emails")
    assert Queue.objects.resume("emails")
    assert not Queue.objects.resume("emails")
    queue = Queue.objects.get(name="emails")
    assert (queue.paused_at, queue.concurrency_limit) == (None, 3)


@pytest.mark.django_db
def test_resuming_a_queue_that_nobody_paused_leaves_no_row():
    assert not Queue.objects.resume("emails")
    assert not Queue.objects.limit("emails", None)
    assert not Queue.objects.exists()


@pytest.mark.django_db
def test_a_limit_can_be_set_changed_and_taken_away():
    assert Queue.objects.limit("emails", 3)
    assert not Queue.objects.limit("emails", 3)
    assert Queue.objects.limit("emails", 2**31 - 1)
    assert Queue.objects.limit("emails", None)
    assert not Queue.objects.limit("emails", None)
    assert Queue.objects.get(name="emails").concurrency_limit is None


@pytest.mark.django_db
@pytest.mark.parametrize("limit", [0, -1, 1.5, "3", True, 2**31])
def test_a_limit_that_is_no_whole_number_from_one_up_is_refused(limit):
    with refused(InvalidRequest, "limit"):
        Queue.objects.limit("emails", limit)
    assert not Queue.objects.exists()


@pytest.mark.django_db
@pytest.mark.parametrize("name", ["", "Emails", "*", "a b", "x" * 129, None, 3])
@pytest.mark.parametrize(
    "call",
    [Queue.objects.pause, Queue.objects.resume, partial(Queue.objects.limit, limit=1)],
    ids=["pause", "resume", "limit"],
)
def test_a_name_that_no_queue_can_have_is_refused(call, name):
    with refused(InvalidRequest, "queue"):
        call(name)


@pytest.mark.django_db(databases=["default", "other"])
def test_a_queue_is_paused_on_the_database_that_was_named():
    Queue.objects.using("other").pause("emails")
    assert not Queue.objects.exists()
    assert Queue.objects.using("other").get().paused_at


@pytest.mark.django_db
def test_a_filter_does_not_limit_which_queue_is_paused():
    assert Queue.objects.filter(name="others").pause("emails")
    assert Queue.objects.get().name == "emails"


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_many_who_pause_at_once_one_does_and_none_fails():
    for round_ in together([lambda number: Queue.objects.pause(f"q{number}")] * 6, rounds=8):
        assert sorted(round_) == [False] * 5 + [True]
    assert Queue.objects.exclude(paused_at=None).count() == 8


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_pausing_and_limiting_at_once_lose_nothing_of_each_other():
    calls = [lambda n: Queue.objects.pause(f"q{n}"), lambda n: Queue.objects.limit(f"q{n}", 2)]
    together(calls * 3, rounds=8)
    assert Queue.objects.exclude(paused_at=None).filter(concurrency_limit=2).count() == 8


@pytest.mark.django_db(transaction=True)
def test_a_pause_that_is_rolled_back_leaves_nothing():
    with transaction.atomic():
        Queue.objects.pause("emails")
        transaction.set_rollback(True)
    assert not Queue.objects.exists()
