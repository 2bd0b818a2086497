"""With thousands of queues, keys of limits and workers: metrics are exact, and a page that is cut says so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.models import InboxRequest, Job, LimitPartition, Queue, WorkerProcess
from django_ojs_unique.reporting.queues import queues
from django_ojs_unique.reporting.text import MOST_COUNTED
from tests.reporting.everywhere.situation import handlers
from tests.reporting.everywhere.surfaces import Surfaces, since, sql, words
from tests.support.rows import insert_all

pytestmark = [pytest.mark.every_database, pytest.mark.django_db, pytest.mark.slow]

QUEUES, KEYS, WORKERS, ROWS = 2_000, 2_000, 500, 700
MANY = MOST_COUNTED + 100
DECLARED, PAUSED, BLOCKED = "zebra", "zoo", "zulu"
"""Queues behind all others: one that a handler declares, one that is paused, and one whose jobs wait for a key."""


@pytest.fixture(scope="module")
def crowd(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    with django_db_blocker.unblock(), handlers(), transaction.atomic():
        job("declared", queue=DECLARED)(lambda: None)
        fill()
        yield
        transaction.set_rollback(True)


def fill() -> None:
    now = timezone.now()
    old = now - timedelta(hours=3, minutes=20)

    def jobs(count: int, queue: str, enqueued_at: Any, **fields: Any) -> list[Job]:
        times = {"created_at": enqueued_at, "enqueued_at": enqueued_at}
        return [Job(queue=queue, **{"type": "declared", **times, **fields}) for _ in range(count)]

    made = [each for number in range(QUEUES) for each in jobs(1, f"q{number:04}", now - timedelta(minutes=50))]
    made += jobs(50, DECLARED, old) + jobs(1, PAUSED, now)
    for number in range(KEYS):
        limit = {"id": f"k{number:032}", "name": "key", "key": {"args.n": number}, "running": 1}
        waits = MANY if number == KEYS - 1 else 1
        made += jobs(waits, "keys", now, type="by.key", limits=[limit], blocked_by=limit["id"])
        runs = {"state": "active", "attempt": 1, "started_at": now, "lease_expires_at": now + timedelta(days=1)}
        made += jobs(1, "keys", now, type="by.key", limits=[limit], blocked_by=limit["id"], **runs)
        made += jobs(3 if number == 0 else 0, BLOCKED, now, type="by.key", limits=[limit], blocked_by=limit["id"])
    insert_all(made, batch_size=5_000)
    LimitPartition.objects.bulk_create(
        LimitPartition(id=f"k{number:032}", name="key", key={"args.n": number}, used_at=now) for number in range(KEYS)
    )
    Queue.objects.bulk_create(Queue(name=f"r{number:03}", concurrency_limit=1) for number in range(ROWS))
    Queue.objects.pause(PAUSED)
    every = QUEUES // WORKERS
    WorkerProcess.objects.bulk_create(
        WorkerProcess(
            id=f"w{number:03}",
            hostname="host",
            queues=[f"q{number * every + part:04}" for part in range(every)],
            started_at=now,
            heartbeat_at=now + timedelta(hours=1),
        )
        for number in range(WORKERS)
    )
    InboxRequest.objects.bulk_create(InboxRequest(type="declared", requested_at=now) for _ in range(MANY))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:  # as autovacuum would, which cannot see these rows
            cursor.execute("ANALYZE")


@pytest.fixture
def ask(crowd: None) -> Surfaces:
    return Surfaces()


def states(queue: str = "%") -> dict[str, int]:
    found = "SELECT state, COUNT(*) FROM {job} WHERE finished_at IS NULL AND queue LIKE %(queue)s GROUP BY state"
    return dict(sql(found, queue=queue))


# Metrics


def test_the_metrics_count_every_job(ask: Surfaces) -> None:
    found: Counter[str] = Counter()
    samples = ask.metric("ojs_jobs")
    for (_, state), count in samples.items():
        found[state] += int(count)
    assert +found == states()
    assert {state: count for (name, state), count in samples.items() if name == DECLARED and count} == states(DECLARED)


def test_the_metrics_know_how_long_a_declared_queue_waits(ask: Surfaces) -> None:
    waits = ask.metric("ojs_queue_oldest_waiting_seconds")
    ((first,),) = sql("SELECT MIN(enqueued_at) FROM {job} WHERE queue = %(queue)s", queue=DECLARED)
    assert abs(waits[DECLARED,] - (timezone.now() - first).total_seconds()) < 60
    assert max(waits.values()) == waits[DECLARED,]


def test_the_metrics_know_what_nobody_takes_and_what_is_paused(ask: Surfaces) -> None:
    stranded = ask.metric("ojs_queue_stranded")
    assert {name for (name,), value in stranded.items() if value} == {DECLARED, BLOCKED, "keys", "(others)"}
    assert ask.metric("ojs_queue_paused")["(others)",]


def test_the_metrics_count_every_worker(ask: Surfaces) -> None:
    assert ask.metric("ojs_workers")["running",] == WORKERS


@pytest.mark.parametrize(
    ("metric", "statement"),
    [
        ("ojs_limit_running_jobs", "SELECT COUNT(*) FROM {job} WHERE type = 'by.key' AND state = 'active'"),
        ("ojs_limit_waiting_jobs", "SELECT COUNT(*) FROM {job} WHERE type = 'by.key' AND state = 'available'"),
        (
            "ojs_limit_waiting_partitions",
            "SELECT COUNT(DISTINCT blocked_by) FROM {job} WHERE type = 'by.key' AND state = 'available'",
        ),
    ],
)
def test_the_metrics_count_what_every_key_of_a_limit_does(ask: Surfaces, metric: str, statement: str) -> None:
    assert {(value,) for (name,), value in ask.metric(metric).items() if name == "key"} == sql(statement)


def test_the_metrics_count_every_request(ask: Surfaces) -> None:
    assert {(ask.metric("ojs_inbox_requests")["waiting",],)} == sql("SELECT COUNT(*) FROM {inbox}")


# Commands and the API: exact, or it is said


def test_the_command_counts_every_job_of_every_queue(ask: Surfaces) -> None:
    told = {(row["name"], state, row[state]) for row in ask.cli("queues") for state in states() if row[state]}
    assert told == sql("SELECT queue, state, COUNT(*) FROM {job} WHERE finished_at IS NULL GROUP BY queue, state")
    assert {row["name"] for row in ask.cli("queues") if row["is_stranded"]} == {DECLARED, PAUSED, BLOCKED, "keys"}


def test_the_command_lists_every_worker(ask: Surfaces) -> None:
    assert len(ask.cli("workers")) == len(ask.table("workers")) == WORKERS


def test_the_api_knows_every_queue_and_worker(ask: Surfaces) -> None:
    queues = "SELECT COUNT(*) FROM (SELECT queue FROM {job} UNION SELECT name FROM {queue}) q"
    assert {(ask.total("queues"),)} == sql(queues)
    assert ask.total("workers") == WORKERS
    stats = ask.http("queues/keys/stats")
    assert (stats["available"], stats["exact"]) == (MOST_COUNTED + 1, False)


def test_a_job_knows_those_before_it_in_a_queue_behind_the_bound(ask: Surfaces) -> None:
    *_, last = Job.objects.filter(queue=BLOCKED).order_by("pk")
    before = sql(
        "SELECT COUNT(*) FROM {job} WHERE state = 'available' AND blocked_by = %(block)s"
        " AND (enqueued_at < %(since)s OR enqueued_at = %(since)s AND id < %(id)s)",
        block=last.blocked_by,
        since=last.enqueued_at,
        id=Job._meta.pk.get_db_prep_value(last.pk, connection),
    )
    assert ask.cli("show", str(last.pk))["waits_for"][-1] == f"{before.pop()[0]} jobs wait before it."


# Pages: what is cut says so


def test_the_dashboard_says_that_it_does_not_look_at_all(ask: Surfaces) -> None:
    page = ask.page("dashboard")
    for live in (page["live"], ask.page("dashboard_now")["live"]):
        told = {state: words(count) for state, count in live["states"]}
        assert told["available"] == f"{MOST_COUNTED:,}+"
        assert told["active"].endswith("+")
    assert page["seen"].more_text.endswith("+")
    assert len(page["workers"]) < WORKERS
    html = ask.html("dashboard")
    assert f"These are the {len(page['workers'])} that were heard last." in html
    assert "Of very many, the first 1,000 are looked at." in html


def test_the_dashboard_knows_a_declared_queue_behind_all_others(ask: Surfaces) -> None:
    page = ask.page("dashboard")
    (row,) = [row for row in page["queues"] if row["value"] == DECLARED]
    told = dict(zip(page["states"], map(words, row["depth"]), strict=True))
    assert told["available"] == str(states(DECLARED)["available"])
    ((first,),) = sql("SELECT MIN(enqueued_at) FROM {job} WHERE queue = %(queue)s", queue=DECLARED)
    # MariaDB looks at so many keys of all queues together.
    assert words(row["longest_wait"]) == since(first) + "+" * (connection.vendor == "mysql")
    assert row["waits_long"]
    assert DECLARED in page["long_waits"]
    assert set(page["stranded"]) <= {DECLARED, BLOCKED, "keys"}
    assert {DECLARED, "keys"} <= set(page["stranded"])


def test_the_list_of_queues_counts_the_jobs_of_each_row(ask: Surfaces) -> None:
    (row,) = ask.list("queue", paused="yes").result_list
    assert (row.name, row.unfinished) == (PAUSED, 1)


def test_the_pages_of_limits_say_that_they_do_not_look_at_all(ask: Surfaces) -> None:
    (row,) = [row for row in ask.page("limitoverride_changelist")["rows"] if row["name"] == "key"]
    assert all(count.endswith("+") for count in row["counts"][1:])
    (row,) = [row for row in ask.table("limits") if row["limit"] == "key"]
    assert row["waiting"].endswith("+")
    assert row["partitions waited for"].endswith("+")


def test_however_many_queues_have_names_they_are_asked_for_at_once(ask: Surfaces) -> None:
    names = [f"other-{number}" for number in range(20_000)]
    found = {each.name: each.unfinished for each in queues("default", names)}
    assert found.keys() >= set(names)
    assert found[PAUSED] == 1
