"""Run Django's own tests of its tasks against `OJSBackend`: ``python -m tests.tasks.django_suite``.

They come from the source distribution of the Django that is installed. Each place that names Django's immediate backend
names ours instead, in eager mode; and each test may use the database, which ours needs.
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
IMMEDIATE = "test_immediate_backend.py::ImmediateBackend"
OTHERWISE = {
    f"{IMMEDIATE}TestCase::test_cannot_get_result": "ours can: results are stored",
    f"{IMMEDIATE}TestCase::test_cannot_refresh_result": "ours can",
    f"{IMMEDIATE}TestCase::test_cannot_pass_run_after": "ours can",
    f"{IMMEDIATE}TestCase::test_using_correct_backend": "asks for Django's class",
    f"{IMMEDIATE}TestCase::test_validate_on_enqueue": "without any installed app",
    f"{IMMEDIATE}TestCase::test_validate_on_aenqueue": "without any installed app",
    f"{IMMEDIATE}TransactionTestCase::test_doesnt_wait_until_transaction_commit_by_default": "ours waits",
    "test_tasks.py::TaskTestCase::test_get_backend": "asks for Django's class",
}
"""The tests that cannot hold, with the reason."""
REPLACED = {
    "django.tasks.backends.immediate.ImmediateBackend": "django_ojs_unique.tasks.OJSBackend",
    "SimpleTestCase": "TransactionTestCase",
}
SETTINGS = """
SECRET_KEY = "of no use"
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
INSTALLED_APPS = ["django_ojs_unique", "tasks"]
USE_TZ = True
OJS_UNIQUE = {"EAGER": True}
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
        (folder / "django_suite_settings.py").write_text(SETTINGS)
        (folder / "pytest.ini").write_text("[pytest]\n")
        for name, reason in OTHERWISE.items():
            print(f"left out: {name}: {reason}")
        left_out = [f"--deselect=tasks/{name}" for name in OTHERWISE]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "django_suite_settings",
        }
        pytest = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, "tasks"]
        return subprocess.run(pytest, cwd=folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
