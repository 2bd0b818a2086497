"""A command starts without what it does not use: each module costs its share of every start, and memory."""

import os
import subprocess
import sys

import pytest

PROJECT = """\
import sys, django
from contextlib import suppress
from django.conf import settings
from django.core.management import execute_from_command_line

contrib = ["admin", "auth", "contenttypes", "messages", "sessions"]
settings.configure(
    INSTALLED_APPS=[f"django.contrib.{name}" for name in contrib] + ["rest_framework", "django_ojs_unique"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    ROOT_URLCONF="django_ojs_unique.api.urls",
)
django.setup()
if arguments := sys.argv[1:]:
    with suppress(SystemExit):
        execute_from_command_line(["manage.py", *arguments])
print("\\n".join(sys.modules))
"""
HEAVY = {"tqdm", "opentelemetry", "prometheus_client", "pygal", "drf_spectacular", "rest_framework.views", "docutils"}
PAGES = {
    f"django_ojs_unique.{name}" for name in ("admin.dashboard", "admin.job_panels", "reporting.preview", "api.urls")
}
WORKER = {"django_ojs_unique.worker"}


def imported(*arguments):
    """Return what a project has imported after a command, or after its start if there is none."""
    done = subprocess.run(
        [sys.executable, "-c", PROJECT, *arguments],
        env={name: value for name, value in os.environ.items() if name != "DJANGO_SETTINGS_MODULE"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    ["", "jobs --help", "jobs queues", "prunejobs --dry-run"],  # the last two end after the checks: there are no tables
)
def test_nothing_is_imported_that_is_not_used(arguments):
    modules = imported(*arguments.split())
    assert "django_ojs_unique.admin.jobs" in modules
    assert modules & (HEAVY | PAGES | WORKER) == set()


@pytest.mark.slow
def test_the_help_of_a_worker_imports_no_page():
    modules = imported("runworker", "--help")
    assert modules & (HEAVY | PAGES) == set()
    assert modules >= WORKER


@pytest.mark.slow
def test_a_look_at_the_modules_sees_those_that_are_used():
    assert {"rest_framework.views", "django_ojs_unique.api.urls"} <= imported("check")
