"""What happens to jobs between the look of a claim behind the blocks and its locks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest

from django_ojs_unique import Limit
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.limits import slots
from django_ojs_unique.limits.slots import ensure_partitions
from django_ojs_unique.models import Job
from tests.support.limits import done, enqueue, ids, take

pytestmark = pytest.mark.django_db(transaction=True)

Meanwhile = Callable[[Callable[[], Any]], None]


@pytest.fixture
def overlap(monkeypatch: Any) -> Meanwhile:
    """Return a function that lets the next claim do something between its look behind the blocks and its locks."""

    monkeypatch.setattr(slots, "_known", defaultdict(set))

    def between(act: Callable[[], Any]) -> None:
        def once(*given: Any) -> None:
            monkeypatch.setattr(claim_limited, "ensure_partitions", ensure_partitions)
            act()
            ensure_partitions(*given)

        monkeypatch.setattr(claim_limited, "ensure_partitions", once)

    return between


def test_a_job_that_is_rewritten_while_a_claim_begins_runs_under_its_new_limits(overlap):
    running = enqueue(2)
    assert ids(take()) == [running]
    rewritten = enqueue(1, key="x")
    overlap(lambda: enqueue(2, key="x"))
    assert take() == []
    assert take() == []
    assert Job.objects.get(pk=rewritten).args == {"n": 2}


def test_a_job_that_must_wait_and_is_rewritten_waits_for_its_new_slot_only(overlap):
    running = take() if enqueue(1) else []
    rewritten = enqueue(1, key="x")
    overlap(lambda: enqueue(2, key="x"))
    take()
    found = ids(take())
    assert len(running) == 1
    assert Job.objects.get(pk=rewritten).state == "active", found


def test_a_job_that_was_read_and_not_taken_is_not_passed_by_a_claim_that_looked_before(overlap):
    two = Limit(key=["args.n"], running=2)
    holders = [enqueue(n, two) for n in (0, 0, 1, 1)]
    running = take()
    assert ids(running) == holders
    other, waits = enqueue(0, two), enqueue(1, two)
    assert take() == []
    enqueue(1, two)
    taken: list[Any] = []

    def free_and_claim() -> None:
        done(*running)
        taken.extend(ids(take(1)))

    overlap(free_and_claim)
    assert ids(take(1)) == [waits]
    assert taken == [other]


def test_a_start_that_did_not_happen_closes_no_rate(overlap):
    limit = Limit(key=["args.n"], per_hour=1)
    first, second = enqueue(1, limit), enqueue(1, limit)
    overlap(Job.objects.filter(pk=first).cancel)
    take()
    assert ids(take()) == [second]
