"""A rate counts a start from a moment at which its claim had its locks, however long it waited for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from threading import Event, Thread
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_ojs_unique import Limit
from django_ojs_unique.db.clock import database_now
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.execution.leases import Lease
from django_ojs_unique.maintenance.on_demand import maintained
from django_ojs_unique.models import Job, LimitPartition, Queue, Slot
from django_ojs_unique.worker import remote
from tests.support.limits import LEASE, enqueue, take
from tests.support.processes import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.every_database]

RATE = Limit(key=["args.n"], per_hour=10)
LOCKS = {"postgresql": "LOCK TABLE {} IN EXCLUSIVE MODE", "mysql": "LOCK TABLES {} READ"}
"""What keeps a claim waiting, but no look before it; on SQLite, each write does."""


@contextmanager
def rival(table: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], datetime]]:
    """Let another connection lock a table until the claim in the block has begun; yield what returns that moment."""
    has_lock, may_let_go, let_go_at = Event(), Event(), list[datetime]()

    class Begun(claim_limited.AvailableJobs):
        def __init__(self, *given: Any) -> None:
            may_let_go.set()
            super().__init__(*given)

    def hold() -> None:
        try:
            with transaction.atomic(), connection.cursor() as cursor:
                if connection.vendor in LOCKS:
                    cursor.execute(LOCKS[connection.vendor].format(table))
                else:
                    dialect_of(Job.objects.all()).take_write_lock()
                has_lock.set()
                may_let_go.wait(PATIENCE)
                let_go_at.append(database_now("default"))
        finally:
            connections.close_all()

    thread = Thread(target=hold)
    thread.start()
    assert has_lock.wait(PATIENCE)
    monkeypatch.setattr(claim_limited, "AvailableJobs", Begun)
    try:
        yield lambda: let_go_at[0]
    finally:
        may_let_go.set()
        thread.join(PATIENCE)


def test_the_rate_of_a_limit(monkeypatch):
    enqueue(1, RATE)
    take()  # stores the partition
    Slot.objects.all().delete()
    enqueue(1, RATE)
    with rival(LimitPartition._meta.db_table, monkeypatch) as let_go_at:
        assert len(take(now=database_now("default"))) == 1
        slot = Slot.objects.get()
        assert slot.taken_at > let_go_at()
    assert (slot.kept_until - slot.taken_at).total_seconds() == 3600


@pytest.mark.parametrize("limit", [None, RATE])
def test_the_rate_of_a_queue(limit, monkeypatch):
    if limit is not None:
        enqueue(1, limit)
        take()
    Queue.objects.rate_limit("default", 10)
    enqueue(1, limit)
    with rival(Queue._meta.db_table, monkeypatch) as let_go_at:
        assert len(take(now=database_now("default"))) == 1
        assert Queue.objects.get().window_started_at > let_go_at()


def test_a_fetch_counts_from_the_end_of_the_maintenance_before_it(monkeypatch):
    ended_at: list[datetime] = []

    def maintain(*args: Any) -> Any:
        states = maintained(*args)
        ended_at.append(database_now("default"))
        return states

    monkeypatch.setattr(remote, "maintained", maintain)
    enqueue(1, RATE)
    wanted: dict[str, Any] = {"count": 1, "worker_id": "w", "lease": Lease(LEASE), "now": database_now("default")}
    assert len(remote.fetch(Job.objects.all(), {"default": None}, **wanted)) == 1
    assert Slot.objects.get().taken_at > ended_at[0]
