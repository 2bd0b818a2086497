"""The helpers in suites of both kinds: unittest's, and pytest's with the plugin; nothing leaks from test to test."""

import os
import re
import subprocess
import sys
import tomllib
from contextlib import suppress
from importlib import import_module
from inspect import signature

import pytest
from django.contrib.auth.models import Group
from django.test import TestCase, TransactionTestCase
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy, chain, job
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import Job
from django_ojs_unique.testing import JobFixture, JobTestMixin, run_jobs, temporary_handlers
from django_ojs_unique.testing.matching import ExpectedJob, ExpectedSuppression
from tests.app.jobs import add, once
from tests.support.pages import ROOT, blocks, table

SETTINGS = """
SECRET_KEY = "tests"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django.contrib.auth", "django_ojs_unique", "shop"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
"""

LEAKS = """
from datetime import datetime

from django.utils import timezone

from django_ojs_unique import job, signals
from django_ojs_unique.models import Job
from django_ojs_unique.handlers.registry import registry
from shop.jobs import print_invoice, welcome


def test_that_fails_in_the_middle(db, ojs_jobs):
    with ojs_jobs.travel("P1D"), ojs_jobs.temporary_handlers():
        job("lost")(lambda: None)
        welcome.enqueue("ada@example.com")
        print_invoice.enqueue(7, copies=6)
        ojs_jobs.run_jobs()


def test_after_it(db, ojs_jobs):
    assert timezone.datetime is datetime
    assert "lost" not in registry
    assert not ojs_jobs and not Job.objects.exists()
    assert len(signals.job_enqueued.receivers) == 1
"""

ELSEWHERE = """
import sys


def test_nobody_notices():
    assert "django" not in sys.modules
"""


class Shared(JobTestMixin):
    """What holds inside the transaction of a test, and outside."""

    databases = {"default", "other"}

    def test_jobs_run_inside_the_test(self):
        add.enqueue(1, b=2)
        (ran,) = self.run_jobs()
        assert (ran.outcome, ran.job.result) == ("completed", 3)
        assert self.run_one() is None

    def test_duplicates_are_seen(self):
        with self.capture_jobs() as jobs:
            first = once.enqueue("a").job
            once.enqueue("a", note="again")
        assert (list(jobs), len(jobs.suppressed)) == ([first], 1)
        self.assert_enqueued(once, args={"key": "a"}, count=1)
        self.assert_not_enqueued(once, args__contains={"key": "b"})
        self.assert_deduplicated(first, args__contains={"note": "again"})

    def test_workflows_are_found(self):
        workflow = chain(add.item(1, b=2), add.item(3)).enqueue()
        assert self.assert_workflow_enqueued("chain", steps=[add, add]) == workflow

    def test_time_passes(self):
        Job.objects.using("other").enqueue("tests.add", [1], scheduled_at=timezone.now() + timezone.timedelta(days=1))
        assert self.run_jobs(using="other") == []
        with self.travel("P1D"):
            assert len(self.run_jobs(using="other")) == 1

    def test_a_refusal_is_seen_and_breaks_no_transaction(self):
        with suppress(DuplicateJob), self.capture_jobs() as jobs:
            for _ in range(2):
                Job.objects.enqueue("unique", unique=UniquePolicy())
        assert jobs.suppressed[0].outcome == "rejected"
        self.assert_deduplicated("unique", outcome="rejected")

    def test_handlers_can_be_declared_for_a_while(self):
        with self.temporary_handlers():
            job("for.a.while", cron="@daily")(lambda: Group.objects.create(name="made"))
            assert self.tick() == []
            with self.travel("P1D"):
                assert [each.type for each in self.tick()] == ["for.a.while"]
                self.run_jobs()
        assert Group.objects.filter(name="made").exists()
        assert "for.a.while" not in registry


class InsideATransaction(Shared, TestCase):
    pass


class OutsideATransaction(Shared, TransactionTestCase):
    pass


def test_temporary_handlers_give_back_what_they_replaced():
    before = {definition.type: definition for definition in registry.definitions()}
    with suppress(ZeroDivisionError), temporary_handlers():
        registry.unregister("tests.add")
        job("tests.add")(lambda: None)
        job("lost")(lambda: None)
        1 / 0  # noqa: B018
    assert {definition.type: definition for definition in registry.definitions()} == before


@pytest.mark.django_db
def test_the_fixture_has_all_of_it(ojs_jobs):
    assert isinstance(ojs_jobs, JobFixture)
    once.enqueue("a")
    once.enqueue("a")
    ojs_jobs.assert_enqueued(once, count=1)
    ojs_jobs.assert_deduplicated(once)
    assert len(ojs_jobs.run_jobs()) == len(ojs_jobs) == 1
    with ojs_jobs.travel("P1D"):
        assert ojs_jobs.tick() == []
    workflow = chain(add.item(1, b=2)).enqueue()
    assert ojs_jobs.assert_workflow_enqueued() == workflow


def test_the_fixture_needs_no_database(ojs_jobs):
    assert not ojs_jobs
    ojs_jobs.assert_not_enqueued()


# Suites of their own


def run(folder, *command, **environment):
    """Run a command in a folder; return its exit code and what it said."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-m", *command],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "PYTHONDONTWRITEBYTECODE": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    return done.returncode, done.stdout


def run_pytest(folder, *plugins, **environment):
    (folder / "pytest.ini").touch()
    return run(
        folder,
        "pytest",
        *("-p", "no:cacheprovider"),
        *(text for plugin in plugins for text in ("-p", plugin)),
        PYTEST_DISABLE_PLUGIN_AUTOLOAD="1",
        **environment,
    )


@pytest.fixture
def shop(tmp_path):
    """A project whose files are those of the documentation."""
    (tmp_path / "shop").mkdir()
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "shop/__init__.py").touch()
    for _, source, _ in blocks(ROOT / "docs/testing.md", "python"):
        if source.startswith("# shop/"):
            path, _, code = source.removeprefix("# ").partition("\n")
            (tmp_path / path).write_text(code)
    return tmp_path


@pytest.mark.slow
def test_the_suite_of_the_documentation_passes_under_pytest_and_nothing_leaks(shop):
    (shop / "shop/test_leaks.py").write_text(LEAKS)
    code, said = run_pytest(
        shop, "pytest_django.plugin", "django_ojs_unique.pytest_plugin", DJANGO_SETTINGS_MODULE="settings"
    )
    assert "FAILED shop/test_leaks.py::test_that_fails_in_the_middle" in said, said
    assert "1 failed, 10 passed" in said, said
    assert code == 1


@pytest.mark.slow
def test_the_suite_of_the_documentation_passes_under_unittest(shop):
    code, said = run(shop, "django", "test", "--settings", "settings")
    assert "Ran 5 tests" in said, said
    assert code == 0, said


@pytest.mark.slow
def test_the_plugin_is_silent_in_other_projects(tmp_path):
    (tmp_path / "test_elsewhere.py").write_text(ELSEWHERE)
    code, said = run_pytest(tmp_path, "django_ojs_unique.pytest_plugin")
    assert (code, "1 passed" in said) == (0, True), said


def test_the_documentation_names_what_there_is():
    assert [row[0] for row in table("docs/testing.md", "argument")] == list(signature(run_jobs).parameters)
    named = {name for row in table("docs/testing.md", "argument | the job") for name in re.findall(r"\w+", row[0])}
    assert named == ExpectedJob.__annotations__.keys() | ExpectedSuppression.__annotations__.keys()


def test_the_plugin_is_installed_with_the_package():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    (module,) = project["entry-points"]["pytest11"].values()
    assert import_module(module).ojs_jobs
