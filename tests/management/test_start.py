"""A command starts without what it does not use: each module costs its share of every start, and memory."""

import os
import subprocess
import sys

import pytest

from benchmarks.start import ADMIN, OURS
from benchmarks.start import PROJECT as MEASURED

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
HEAVY = {"tqdm", "opentelemetry", "prometheus_client", "drf_spectacular", "rest_framework.views", "docutils"}
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


LATER = {"api", "contrib", "execution", "limits", "maintenance", "management", "testing", "worker"}
"""Packages of which a setup needs nothing."""

WORK = """
import sys
from pathlib import Path
from django.conf import settings
sqlite = {"ENGINE": "django.db.backends.sqlite3", "NAME": sys.argv[1], "OPTIONS": {"transaction_mode": "IMMEDIATE"}}
apps = ["django.contrib.contenttypes", "django.contrib.auth", "django_ojs_unique"]
settings.configure(INSTALLED_APPS=apps, DATABASES={"default": sqlite}, USE_TZ=True)
import django
django.setup()
from django.core.management import call_command
from django_ojs_unique import chain, job
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
def ours():
    return {name for name in sys.modules if name.startswith("django_ojs_unique.")}
@job("fails", retry={"max_attempts": 1})
def fail():
    raise ValueError
@job("works", takes_context=True)
def work(context):
    before.append(ours())
    kept = Job.objects.enqueue("later", key="k", delay=60).job
    kept.cancel()
    kept.retry()
    Job.objects.enqueue_many([{"type": "fails"}] * 2)
    chain({"type": "fails"}, {"type": "later"}).enqueue()
    context.progress(0.5)
before = []
job("later")(lambda: None)
call_command("migrate", verbosity=0)
Job.objects.enqueue("works")
Worker().run(drain=True)
print(Job.objects.filter(state="completed").count(), Job.objects.filter(state="discarded").count(), ours() - before[0])
"""


def run(program, *arguments):
    return subprocess.check_output([sys.executable, "-c", program, *arguments], text=True).splitlines()[-1]


@pytest.mark.parametrize(("apps", "most"), [([], 66), (ADMIN, 93)], ids=["plain", "with the admin"])
def test_a_setup_imports_the_models_and_little_else(apps, most):
    listed = "print(*sorted(name for name in sys.modules if name.startswith('django_ojs_unique.')))"
    names = [name.split(".", 1)[1] for name in run(f"{MEASURED}\n{listed}", *apps, *OURS).split()]
    assert {name.split(".")[0] for name in names} & LATER == set()
    assert [name for name in names if name.startswith("enqueue.")] == ["enqueue.results"]
    assert [name for name in names if name.startswith("checks.")] == []
    assert len(names) <= most, names


def test_a_worker_imports_nothing_of_the_package_once_a_job_runs(tmp_path):
    assert run(WORK, str(tmp_path / "db.sqlite3")) == "1 3 set()"
