"""Under every isolation level, a claim counts what the claims before it have taken."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import OperationalError

from django_ojs_unique.limits import slots
from django_ojs_unique.models import Job, Queue
from tests.concurrency.test_isolation_levels import LEVELS, is_serialization_failure, isolate
from tests.support.limits import enqueue, take
from tests.support.processes import Parent

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level"),
]


def slow(parent: Parent, level: str) -> None:
    """Claim from the queue "a", and let the parent claim in the moment before the keys are locked."""
    isolate(level)
    lock = slots.skipping_locked

    def wait(dialect: Any) -> Any:
        slots.skipping_locked = lock
        parent.tell()
        parent.hear()
        return lock(dialect)

    slots.skipping_locked = wait
    try:
        take(queues=["a"])
    except OperationalError as error:
        if not is_serialization_failure(error):
            raise


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("is_limited", [False, True])
def test_two_claims_never_take_the_same_slot(start, level, is_limited):
    if is_limited:
        Queue.objects.limit("a", 5)
    enqueue(1, queue="a"), enqueue(1, queue="b")
    child = start(slow, level)
    child.hear()
    assert len(take(queues=["b"])) == 1
    child.tell()
    child.result()
    assert Job.objects.filter(state="active").count() == 1
