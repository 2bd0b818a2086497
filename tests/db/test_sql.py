"""What enqueues, workers and pruning ask of PostgreSQL is what ``docs/distributed-sql.md`` lists, and no more."""

from __future__ import annotations

import re
from collections.abc import Iterator
from datetime import timedelta

import pytest
from django.db import connection, transaction
from django.db.backends.signals import connection_created
from django.utils import timezone

from django_ojs_unique import DuplicateJob, job
from django_ojs_unique.db.clock import QUERIES
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.maintenance import timers
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.reporting.activity import roll_up
from tests.support.background import working
from tests.support.pages import table
from tests.support.processes import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="the page is about PostgreSQL's relatives"),
]

COMMON = """
SELECT FROM WHERE AND OR NOT IN IS NULL AS ON EXISTS BETWEEN ORDER BY ASC DESC LIMIT OFFSET INSERT INTO VALUES UPDATE
SET DELETE CASE WHEN THEN ELSE END JOIN INNER LEFT OUTER GROUP HAVING DISTINCT TRUE FALSE LIKE UNION ALL COUNT MAX MIN
COALESCE
"""
ORDINARY = set(COMMON.split())
"""What every SQL database knows."""


@pytest.fixture
def sent() -> Iterator[list[str]]:
    """Collect what all connections send that are opened from now on."""
    statements: list[str] = []

    def spy(execute, sql, params, many, context):
        statements.append(str(sql))
        return execute(sql, params, many, context)

    def attach(connection, **kwargs):
        connection.execute_wrappers.append(spy)

    connection.close()
    connection_created.connect(attach)
    try:
        yield statements
    finally:
        connection_created.disconnect(attach)
        connection.execute_wrappers.clear()
        connection.close()


def live_a_full_life() -> None:
    """Enqueue in each way, run what succeeds, fails and times out, prune."""
    unique = {"keys": ["type", "args"], "period": "P1D"}
    with transaction.atomic():
        for strategy in ("ignore", "replace", "replace_except_schedule", "reject"):
            try:
                Job.objects.enqueue("works", {"i": 1}, unique={**unique, "on_conflict": strategy})
            except DuplicateJob:
                continue
    items = [{"type": "works", "args": {"i": n % 5}, "unique": {**unique, "on_conflict": "ignore"}} for n in range(20)]
    Job.objects.enqueue_many(items)
    for _ in range(2):
        Job.objects.enqueue("works", {"i": 0}, key="k", scheduled_at=timezone.now() + timedelta(hours=1))
    Job.objects.explain("works", {"i": 1}, unique=unique)
    Queue.objects.create(name="limited", concurrency_limit=1)
    Job.objects.enqueue("works", {"i": 6}, queue="limited")
    Job.objects.enqueue("fails")
    lost = Job.objects.enqueue("works", {"i": 7}, queue="lost").job
    options = {"types": ("works",), "limit": 1, "worker_id": "w", "now": timezone.now()}
    requeue(Job.objects.all(), list(claim(Job.objects.all(), queues=("lost",), lease=timedelta(minutes=1), **options)))
    claim(Job.objects.all(), queues=("lost",), lease=-timedelta(seconds=1), **options)
    timers.rescue(Job.objects.all(), timezone.now())
    with working() as worker:
        until(lambda: worker.listening and Job.objects.filter(pk=lost.pk, state="completed"), "all ran")
        until(lambda: not Job.objects.filter(state__in=["available", "active"]), "all ended")
    roll_up("default", timezone.now())
    prune(Job.objects.all(), timezone.now() + timedelta(days=400))


def test_the_page_lists_every_feature_that_is_used_and_no_other(sent, handlers):
    job("works", takes_context=True)(lambda context, i: context.progress(0.5))
    job("fails", retry={"initial_interval": "PT0.01S", "max_attempts": 2})(lambda: 1 / 0)
    live_a_full_life()
    used: dict[str, str] = {}
    for sql in {*sent, QUERIES.get(connection.vendor, "")}:  # which no wrapper sees
        for word in words_of(sql) - ORDINARY:
            used.setdefault(word, sql)
    known = {word for row in table("docs/distributed-sql.md", "feature") for word in words_of(row[0])} - ORDINARY
    assert {word: sql for word, sql in used.items() if word not in known} == {}
    assert known - used.keys() == set()


def words_of(sql: str) -> set[str]:
    """Return the key words, the functions, the types of casts and the operator on bits, without what is quoted."""
    bare = re.sub(r"\"[^\"]*\"|'[^']*'|%(\(\w+\))?s", " ", sql)
    found = re.findall(r"\b[A-Z][A-Z_]+\b|\b[a-z_]+(?=\()|(?<=::)\w+|&", bare)
    return {word.upper() for word in found}
