"""Run Django's own tests of its tasks against `OJSBackend`: ``python -m tests.tasks.django_suite``.

They come from the source distribution of the Django that is installed. Each place that names a backend of Django's
names a subclass of ours instead: for the immediate one, in eager mode; for the dummy one, which keeps what is enqueued
in a list, with the rows as that list. Names of queues are such as OJS allows. Each test may use the database.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import django

ROOT = Path(__file__).parents[2]
DUMMY, IMMEDIATE = "test_dummy_backend.py::DummyBackend", "test_immediate_backend.py::ImmediateBackend"
OTHERWISE = {
    f"{IMMEDIATE}TestCase::test_cannot_get_result": "ours can: results are stored",
    f"{IMMEDIATE}TestCase::test_cannot_refresh_result": "ours can",
    f"{IMMEDIATE}TestCase::test_cannot_pass_run_after": "ours can",
    f"{IMMEDIATE}TestCase::test_using_correct_backend": "asks for Django's class",
    f"{IMMEDIATE}TransactionTestCase::test_doesnt_wait_until_transaction_commit_by_default": "ours waits",
    f"{DUMMY}TestCase::test_refresh_result": "changes the list, which is the rows here",
    f"{DUMMY}TestCase::test_refresh_result_async": "changes the list",
    f"{DUMMY}TestCase::test_using_correct_backend": "asks for Django's class",
    "test_tasks.py::TaskTestCase::test_get_backend": "asks for Django's class",
    "test_tasks.py::TaskTestCase::test_using_correct_backend": "asks for Django's class",
}
"""The tests that cannot hold, with the reason."""
REPLACED = {
    "django.tasks.backends.immediate.ImmediateBackend": "ours.EagerBackend",
    "django.tasks.backends.dummy.DummyBackend": "ours.ListingBackend",
    '"queue_1"': '"queue-1"',
    '"unknown_queue"': '"unknown-queue"',
    "'unknown_queue'": "'unknown-queue'",
    "SimpleTestCase": "TransactionTestCase",
}
SETTINGS = """
SECRET_KEY = "of no use"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_ojs_unique", "tasks"]
USE_TZ = True
"""
OURS = '''
from django.test import override_settings

from django_ojs_unique.tasks import OJSBackend


class EagerBackend(OJSBackend):
    def enqueue(self, *args, **kwargs):
        with override_settings(OJS_UNIQUE={"EAGER": True}):
            return super().enqueue(*args, **kwargs)


class ListingBackend(OJSBackend):
    """With what the tests ask of the list of Django's dummy backend."""

    @property
    def results(self):
        return [self.get_result(job.pk) for job in self._jobs().order_by("pk")]

    def clear(self):
        self._jobs().all().delete()
'''
CONFTEST = """
import os

from django_ojs_unique.tasks import OJSBackend

enqueue, enqueuing = OJSBackend.enqueue, set()


def noted(self, *args, **kwargs):
    enqueuing.add(os.environ["PYTEST_CURRENT_TEST"].rpartition(" ")[0])
    return enqueue(self, *args, **kwargs)


def pytest_sessionstart(session):
    OJSBackend.enqueue = noted


def pytest_terminal_summary(terminalreporter):
    passed = {report.nodeid for report in terminalreporter.stats.get("passed", []) if report.when == "call"}
    terminalreporter.write_line(f"{len(passed)} tests passed; {len(passed & enqueuing)} of them enqueue on OJSBackend")
"""


def main() -> int:
    if django.VERSION < (6, 0):
        sys.exit(f"Django {django.__version__} has no tasks; run this with Django 6.0 or newer.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
        wanted = ["--no-deps", "--no-binary", ":all:", "--dest", folder, f"django=={django.__version__}"]
        subprocess.run([*pip, *wanted], check=True)
        (source,) = folder.glob("*.tar.gz")
        with tarfile.open(source) as archive:
            archive.extractall(folder, filter="data")
        tests = next(folder.glob("*/tests/tasks")).rename(folder / "tasks")
        for file in tests.glob("*.py"):
            text = file.read_text()
            for theirs, ours in REPLACED.items():
                text = text.replace(theirs, ours)
            file.write_text(text)
        files = {"django_suite_settings": SETTINGS, "ours": OURS, "conftest": CONFTEST}
        for name, text in files.items():
            (folder / f"{name}.py").write_text(text)
        (folder / "pytest.ini").write_text("[pytest]\n")
        for name, reason in OTHERWISE.items():
            print(f"left out: {name}: {reason}", flush=True)
        left_out = [f"--deselect=tasks/{name}" for name in OTHERWISE]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "django_suite_settings",
            "DJANGO_ALLOW_ASYNC_UNSAFE": "yes",  # the list of the dummy backend needs no database
        }
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, "tasks"]
        return subprocess.run(pytest, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
