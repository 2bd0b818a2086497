"""A worker that starts while its database is away, and one that nobody listens to."""

import os
import signal
import subprocess
import sys
from contextlib import contextmanager, suppress

import django
import pytest
from django.db import connection

from tests.support.commands import ROOT, enqueue
from tests.support.outage import Proxy
from tests.support.processes import PATIENCE

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

has_a_server = pytest.mark.skipif(connection.vendor == "sqlite", reason="there is no server")
WAITS = "Database 'default' does not answer; waiting up to"


@pytest.fixture
def outage(transactional_db):
    """An outage that has begun."""
    proxy = Proxy()
    proxy.begin()
    yield proxy
    proxy.end()
    proxy.close()


@pytest.mark.every_database
@has_a_server
@pytest.mark.parametrize("processes", ["1", "2"])
def test_a_worker_that_starts_during_an_outage_says_so_waits_and_works(place, outage, processes):
    worker = place.runworker("--processes", processes, outage=outage)
    place.wait(lambda: f"{WAITS} 60 seconds" in worker.output, "it says what it waits for")
    assert not worker.is_ready
    job = enqueue("quick")
    outage.end()
    place.wait_for_state(job, state="completed")
    assert "Database 'default' answers." in worker.output
    assert worker.output.count(WAITS) == 1
    assert worker.stop() == 0


@pytest.mark.every_database
@has_a_server
@pytest.mark.parametrize("options", [["--drain"], ["--wait-for-database", "0"], ["--wait-for-database", "0.6"]])
def test_the_wait_has_an_end_and_the_exit_code_is_one(place, outage, options):
    worker = place.runworker(*options, outage=outage)
    assert worker.wait() == 1
    assert "CommandError: Database 'default' does not answer: " in worker.output
    assert (WAITS in worker.output) == (options[-1] == "0.6")


@pytest.mark.every_database
@has_a_server
def test_what_cannot_work_is_refused_before_the_wait(place, outage):
    worker = place.runworker("--reload", "--drain", "--wait-for-database", "1000", outage=outage)
    assert worker.wait() == 1
    assert "CommandError: --reload runs one process" in worker.output
    assert WAITS not in worker.output


@pytest.mark.every_database
@has_a_server
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_worker_that_waits_for_its_database_stops_when_asked(place, outage, number):
    worker = place.runworker(outage=outage)
    place.wait(lambda: WAITS in worker.output, "it waits")
    worker.signal(number)
    assert worker.wait() == 0
    assert "Traceback" not in worker.output


@pytest.mark.every_database
@has_a_server
def test_a_wrong_password_or_role_is_said_at_once_and_ends_it_after_the_wait(place):
    class Nobody:
        detour = {"USER": "nobody_at_all", "PASSWORD": "wrong"}

    worker = place.runworker("--wait-for-database", "0.6", outage=Nobody())
    assert worker.wait() == 1
    assert "nobody_at_all" in worker.output.split("CommandError")[0]


@pytest.mark.skipif(connection.vendor != "sqlite", reason="it is about databases without a server")
def test_without_a_server_there_is_nothing_to_wait_for(place, tmp_path):
    class Nowhere:
        detour = {"NAME": str(tmp_path / "no" / "such" / "directory")}

    worker = place.runworker(outage=Nowhere())
    assert worker.wait() == 1
    # Since 6.1 Django's own checks open the file before the command does.
    said_by = "OperationalError: " if django.VERSION >= (6, 1) else "does not answer: "
    assert f"{said_by}unable to open database file" in worker.output
    assert "waiting" not in worker.output


@contextmanager
def unread(place, *options, redirected="", **variables):
    """Run a worker whose output goes into pipes; yield its process."""
    environment = {**place.environment(), "PYTHONUNBUFFERED": "", **variables}
    command = ["sh", "-c", f'exec "$@" {redirected}', "sh", sys.executable, "-m", "django", "runworker", *options]
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        process.stderr.close()


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("options", [[], ["--processes", "2"], ["--shutdown-timeout", "0.1"]])
def test_a_worker_whose_readers_have_gone_stops_with_zero(place, options, unbuffered):
    with unread(place, *options, PYTHONUNBUFFERED=unbuffered) as process:
        job = enqueue("hold")
        place.wait_for("began")
        process.stdout.close()
        process.stderr.close()
        if "--shutdown-timeout" not in options:
            place.open("gate")
            place.wait_for_state(job, state="completed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_worker_whose_readers_go_before_its_first_line_works_and_stops_with_zero(place, options):
    with unread(place, *options, PYTHONUNBUFFERED="1") as process:
        process.stdout.close()
        process.stderr.close()
        place.wait_for_state(enqueue("quick"), state="completed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0


@pytest.mark.parametrize("options", [[], ["--processes", "2"]])
def test_a_worker_that_starts_with_its_output_closed_works_and_stops_with_zero(place, options):
    with unread(place, *options, redirected=">&- 2>&-") as process:
        place.wait_for_state(enqueue("quick"), state="completed")
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
