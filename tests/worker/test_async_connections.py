"""Connections of the threads in which async handlers use the ORM: a broken one fails once, a dead one not at all."""

import asyncio
from functools import partial

import pytest
from asgiref.sync import sync_to_async
from django.contrib.auth.models import Group
from django.db import connection, transaction

from django_ojs_unique import job
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, pools
from tests.support.background import working
from tests.support.processes import until

pytestmark = pytest.mark.django_db(transaction=True)

ONCE = {"max_attempts": 1}
WAYS = {
    "to_thread": lambda function: partial(asyncio.to_thread, function),
    "any thread": lambda function: sync_to_async(function, thread_sensitive=False),
    "one thread": sync_to_async,
}


@pytest.fixture(params=WAYS)
def declare(handlers, request):
    """Declare an async handler that calls a function in a thread."""

    def declare(type, function):
        through = WAYS[request.param](function)

        @job(type, retry=ONCE)
        async def handler():
            return await through()

    return declare


def run(*types):
    """Run jobs one after the other; return the state of each."""
    with working(async_concurrency=1):
        for type in types:
            row = Job.objects.enqueue(type).job
            until(Job.objects.filter(pk=row.pk, finished_at__isnull=False).exists, f"{type} ended")
    return list(Job.objects.order_by("created_at", "pk").values_list("state", flat=True))


def break_it():
    connection.ensure_connection()
    connection.connection.close()
    Job.objects.count()


def test_a_broken_connection_fails_one_job(declare):
    declare("breaks", break_it)
    declare("works", Job.objects.count)
    assert run("breaks", "works", "works", "works") == ["discarded", "completed", "completed", "completed"]


@pytest.mark.skipif(connection.vendor == "sqlite", reason="a file cuts no connection")
def test_a_connection_that_was_cut_while_it_was_idle_fails_no_job(declare, monkeypatch):
    monkeypatch.setattr(pools, "IDLE_SECONDS", 0)
    sessions = []
    here, kill = {
        "postgresql": ("SELECT pg_backend_pid()", "SELECT pg_terminate_backend(%s)"),
        "mysql": ("SELECT CONNECTION_ID()", "KILL %s"),
    }[connection.vendor]

    def note():
        with connection.cursor() as cursor:
            cursor.execute(here)
            sessions.append(cursor.fetchone()[0])

    declare("notes", note)
    with working(async_concurrency=1):
        for number in range(1, 4):
            Job.objects.enqueue("notes")
            until(lambda number=number: Job.objects.filter(state="completed").count() == number, "all completed")
            with connection.cursor() as cursor:
                cursor.execute(kill, [sessions[-1]])
    assert len(set(sessions)) == 3


def test_a_thread_that_is_left_in_a_transaction_fails_the_job_and_not_the_next(declare):
    declare("opens", lambda: transaction.set_autocommit(False) or (Group.objects.create(name="lost") and None))
    declare("works", Job.objects.count)
    assert run("opens", "works") == ["discarded", "completed"]
    error = Job.objects.get(type="opens").errors[0]
    assert error["type"] == "django_ojs_unique.exceptions.TransactionLeftOpen"
    assert not Group.objects.exists()


def test_threads_of_a_drain_are_watched_too(declare):
    declare("breaks", break_it)
    declare("works", Job.objects.count)
    Job.objects.enqueue("breaks", priority=1)
    for _ in range(3):
        Job.objects.enqueue("works")
    assert Worker(async_concurrency=1).run(drain=True).completed == 3
