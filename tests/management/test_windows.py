"""What Python does not have on Windows: the package is imported and works without it.

The tests run on other systems, so they take these names away first. Nobody runs them on Windows yet.
"""

import subprocess
import sys

import pytest

from tests.support.commands import ROOT

MISSING = {
    "os": ["fork", "register_at_fork", "set_blocking", "killpg"],
    "signal": ["SIGCHLD", "SIGPIPE", "SIGHUP", "SIGKILL", "SIGUSR1", "pthread_sigmask", "SIG_BLOCK", "alarm"],
}
WITHOUT = f"""
import os, select, signal, socket, sys
import asyncio, logging, multiprocessing, random, socketserver, subprocess  # which use these names elsewhere
for module, names in {MISSING!r}.items():
    for name in names:
        vars(sys.modules[module]).pop(name, None)
# There, these take sockets only.
listening, waking = select.select, signal.set_wakeup_fd
def is_socket(number):
    if number >= 0:
        socket.socket(fileno=os.dup(number)).close()
def set_wakeup_fd(number, **options):
    is_socket(number)
    return waking(number, **options)
signal.set_wakeup_fd = set_wakeup_fd
import django
from django.core.management import execute_from_command_line
"""


def run(code):
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", WITHOUT + code],
        cwd=ROOT,
        env={"DJANGO_SETTINGS_MODULE": "tests.settings", "PATH": "", "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_every_module_of_the_package_is_imported():
    code = """
django.setup()
import importlib, pkgutil, django_ojs_unique
for module in pkgutil.walk_packages(django_ojs_unique.__path__, "django_ojs_unique."):
    if module.name != "django_ojs_unique.contrib.tenants":  # django-tenants has an environment of its own
        importlib.import_module(module.name)
print("imported")
"""
    assert run(code) == "imported\n"


@pytest.mark.slow
def test_a_worker_runs_a_job_and_is_stopped_by_a_signal():
    code = """
import threading
django.setup()
from django.core.management import call_command
from django.test.utils import setup_test_environment
from django.db import connection
from django_ojs_unique import job
connection.creation.create_test_db(verbosity=0)
@job("windows.stop")
def stop():
    signal.raise_signal(signal.SIGINT)
stop.enqueue()
call_command("runworker", concurrency=1)
from django_ojs_unique.models import Job
print(Job.objects.get().state)
"""
    output = run(code)
    assert "Ctrl-C stops it" in output
    assert output.endswith("completed\n")


@pytest.mark.slow
def test_several_processes_are_refused_with_the_hint():
    code = """
django.setup()
from django.core.management import CommandError, call_command
try:
    call_command("runworker", processes=2)
except CommandError as error:
    print(error)
"""
    assert run(code) == "--processes needs a system that can fork. Start several workers instead.\n"
