"""A worker whose server takes no writes any more: after a failover, what it is connected to may be a standby."""

from __future__ import annotations

from threading import get_ident

import pytest
from django.db import connection
from django.db.backends.signals import connection_created

from django_ojs_unique import job
from django_ojs_unique.models import Job
from tests.support.background import working
from tests.support.processes import until

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has no standby"),
]
DEMOTED = {
    "postgresql": "SET SESSION CHARACTERISTICS AS TRANSACTION READ ONLY",
    "mysql": "SET SESSION TRANSACTION READ ONLY",
}


@pytest.fixture
def demoted():
    """Let the first connection of each thread but this one be to a server that only reads; return those threads."""
    threads: set[int] = {get_ident()}

    def demote(connection, **kwargs):
        if get_ident() not in threads:
            threads.add(get_ident())
            with connection.cursor() as cursor:
                cursor.execute(DEMOTED[connection.vendor])

    connection_created.connect(demote)
    yield threads
    connection_created.disconnect(demote)


@pytest.mark.slow
def test_a_worker_leaves_a_server_that_only_reads(demoted, handlers, caplog):
    job("writes", retry={"max_attempts": 1})(lambda: None)
    row = Job.objects.enqueue("writes").job
    with working(concurrency=1):
        until(lambda: Job.objects.filter(pk=row.pk, state="completed", attempt=1).exists(), "the job is completed")
    assert len(demoted) > 2
    assert "trying again" in caplog.text, "the thread that claims"
    assert "finalizing again" in caplog.text, "the thread that finalizes"


@pytest.mark.slow
def test_a_handler_that_met_such_a_server_writes_on_a_new_connection_next_time(demoted, handlers):
    soon = {"initial_interval": "PT0.05S", "backoff_strategy": "constant", "jitter": False, "max_attempts": 2}
    job("writes", retry=soon)(lambda: Job.objects.enqueue("beside"))
    row = Job.objects.enqueue("writes").job
    with working(concurrency=1):
        until(lambda: Job.objects.filter(pk=row.pk, state="completed", attempt=2).exists(), "the job is completed")
    assert Job.objects.filter(type="beside").count() == 1
