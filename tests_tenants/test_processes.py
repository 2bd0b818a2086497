"""Workers in processes of their own, which wait for jobs until they are stopped."""

import os
import signal
import subprocess
import sys
import time

import pytest
from django.conf import settings
from django.db import connection
from django_tenants.utils import tenant_context

from tests_tenants.shop.jobs import awork, fail_once, work

PATIENCE = 60


@pytest.fixture
def runworker(tenants):
    """Start the workers that all tenants need; return their processes."""
    address = {**connection.settings_dict}
    url = "postgresql://{USER}:{PASSWORD}@{HOST}:{PORT}/{NAME}".format(**address)
    environment = {**os.environ, "OJS_TEST_DATABASE_URL": url, "DJANGO_SETTINGS_MODULE": settings.SETTINGS_MODULE}
    started = []

    def runworker(*options):
        commands = [["runworker"]]
        if settings.LAYOUT == "own":
            commands = [["tenant_command", "runworker", f"--schema={tenant.schema_name}"] for tenant in tenants]
        for command in commands:
            started.append(subprocess.Popen([sys.executable, "-m", "django", *command, *options], env=environment))
        return started

    yield runworker
    for process in started:
        process.kill()
        process.wait()


def wait_for(look, expected):
    until = time.monotonic() + PATIENCE
    while (seen := look()) != expected and time.monotonic() < until:
        time.sleep(0.05)
    assert seen == expected


@pytest.mark.parametrize("options", [(), ("--processes", "2")])
def test_a_running_worker_finds_jobs_of_all_tenants_runs_their_retries_and_stops_when_asked(
    tenants, done, runworker, options
):
    workers = runworker(*options)
    expected = [(0, "failed"), (0, "succeeded")]
    for tenant in tenants:
        with tenant_context(tenant):
            fail_once.enqueue(number=0)
    for tenant in tenants:
        wait_for(lambda tenant=tenant: done(tenant), expected)
    for tenant in tenants:  # now the workers run, and wait
        with tenant_context(tenant):
            for number in range(1, 11):
                (work if number % 2 else awork).enqueue(number=number)
    for tenant in tenants:
        ran = [(number, tenant.schema_name if number % 2 else "async") for number in range(1, 11)]
        wait_for(lambda tenant=tenant: done(tenant), expected + ran)
    for worker in workers:
        worker.send_signal(signal.SIGTERM)
    assert {worker.wait(PATIENCE) for worker in workers} == {0}
