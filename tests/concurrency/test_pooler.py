"""Everything but LISTEN works through a pooler that hands out a server's connection for one transaction at a time."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest
from django.db import connection, connections, transaction
from django.utils import timezone

from django_ojs_unique import job
from django_ojs_unique.maintenance import prune
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, listen, poller
from tests.support.audit import Answer, ask, assert_serial, audit
from tests.support.background import working
from tests.support.ports import reserved_port
from tests.support.processes import PATIENCE, together, until

PGBOUNCER = shutil.which("pgbouncer") or shutil.which("pgbouncer", path="/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="PgBouncer pools connections of PostgreSQL"),
    pytest.mark.skipif(PGBOUNCER is None, reason="there is no pgbouncer: apt-get install pgbouncer"),
]

NOBODY = 65534
ROUNDS = 10
UNIQUE = {"keys": ["type", "args"], "on_conflict": "ignore"}
SERVER_CONNECTIONS = 3
"""Fewer than the clients, so that each transaction may meet another session of the server."""
STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]


@contextmanager
def pgbouncer() -> Iterator[int]:
    """Run PgBouncer before the test's server in transaction mode; yield its port."""
    connection.ensure_connection()
    info = connection.connection.info
    password = f" password='{info.password}'" if info.password else ""
    with reserved_port() as port, tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)
        configuration = Path(folder) / "pgbouncer.ini"
        configuration.write_text(
            f"[databases]\n* = host={info.host} port={info.port} user={info.user}{password}\n"
            f"[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n"
            f"pool_mode = transaction\ndefault_pool_size = {SERVER_CONNECTIONS}\nmax_client_conn = 200\n"
            "ignore_startup_parameters = extra_float_digits, options\n"
        )
        process = subprocess.Popen(
            [PGBOUNCER, "-q", configuration], stderr=subprocess.PIPE, text=True, user=_user_for(info.host)
        )
        try:
            _wait_for_port(process, port)
            yield port
        finally:
            process.terminate()
            process.communicate(timeout=PATIENCE)


def _user_for(host: str) -> int | None:
    """Return the user to run as where the test's own is root, which PgBouncer refuses to be."""
    if os.geteuid():
        return None
    return os.stat(host).st_uid or NOBODY if host.startswith("/") else NOBODY


def _wait_for_port(process: subprocess.Popen[str], port: int) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"PgBouncer has ended: {process.stderr.read()}")
        with suppress(OSError):
            socket.create_connection(("127.0.0.1", port)).close()
            return True
        return False

    until(answers, "PgBouncer answers")


@pytest.fixture(autouse=True)
def _pooled(transactional_db: None) -> Iterator[None]:
    """Let the database be reached through PgBouncer, and as ``direct`` without it."""
    settings = connection.settings_dict
    before = dict(settings)
    with pgbouncer() as port:
        connection.close()
        connections.databases["direct"] = before
        settings.update({"HOST": "127.0.0.1", "PORT": str(port), "DISABLE_SERVER_SIDE_CURSORS": True})
        listen._report_pooler.cache_clear()
        try:
            yield
        finally:
            connection.close()
            settings.update(before)
            del connections.databases["direct"]


def contend(strategy: str, number: int) -> Answer:
    return ask(f"race.r{number}", unique={"on_conflict": strategy})


@pytest.mark.slow
def test_a_race_through_it_is_exact():
    rounds = together([partial(contend, strategy) for strategy in STRATEGIES * 2], rounds=ROUNDS)
    rows = audit()
    for number, answers in enumerate(rounds):
        assert_serial(answers, [row for row in rows if row.type == f"race.r{number}"])


def test_a_batch_in_the_callers_transaction_is_stored_and_a_rollback_undoes_it():
    items = [{"type": "t", "args": {"i": number % 50}, "unique": UNIQUE} for number in range(100)]
    for keep in (False, True):
        with transaction.atomic():
            assert len(Job.objects.enqueue_many(items)) == 100
            transaction.set_rollback(not keep)
        assert Job.objects.count() == (50 if keep else 0)


@pytest.mark.slow
def test_overlapping_batches_outside_a_transaction_create_each_job_once():
    def contend(start, number):
        numbers = [(start + step) % 700 for step in range(700)]
        return Job.objects.enqueue_many({"type": "t", "args": {"i": i}, "unique": UNIQUE} for i in numbers).counts

    (counts,) = together([partial(contend, start) for start in (0, 350, 100, 600)], rounds=1)
    assert sum(one["created"] for one in counts) == Job.objects.count() == 700
    assert sum(one["deduplicated"] for one in counts) == 3 * 700


@pytest.mark.slow
def test_a_worker_behind_it_polls_and_says_how_to_be_woken(handlers, caplog):
    @job("t", takes_context=True, retry={"initial_interval": "PT0.01S", "jitter": False})
    def handler(context, fails):
        Job.objects.get(pk=context.job_id)
        if context.attempt <= fails:
            raise ValueError("on demand")

    with working(concurrency=2 * SERVER_CONNECTIONS) as worker:
        until(lambda: "LISTEN_DATABASES" in caplog.text, "the worker found the pooler")
        for number in range(30):
            Job.objects.enqueue("t", {"fails": number % 3})
        until(lambda: worker.summary.completed == 30, "all jobs completed")
        assert not worker.listening
    assert worker.summary.retried == 30
    audit()


@pytest.mark.slow
def test_a_worker_that_listens_on_a_direct_connection_is_woken(handlers, settings, monkeypatch):
    # Django's tests forbid threads to use a database that they did not know when they began.
    monkeypatch.setattr(
        type(connections["default"]), "ensure_connection", lambda self: self.connection or self.connect()
    )
    monkeypatch.setattr(poller, "LISTENING_POLL", 1e6)
    settings.OJS_UNIQUE = {"LISTEN_DATABASES": {"default": "direct"}}
    job("t")(lambda: None)
    with working() as worker:
        for number in range(1, 4):
            until(lambda: worker.listening and worker.is_idle, "it fell asleep")
            Job.objects.enqueue("t")
            until(lambda number=number: worker.summary.completed == number, "the job completed")


def test_a_preview_of_pruning_needs_no_cursor_on_the_server(handlers):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    Worker().run(drain=True)
    rows = Job.objects.filter(state="completed")
    assert prune.preview(rows, timezone.now()).deleted == 1
