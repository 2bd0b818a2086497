"""One application, three backends: only the settings differ."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from .framework import IMMEDIATE, OURS

BACKENDS = {
    "immediate": [IMMEDIATE, "-"],
    "django-tasks-db": ["django_tasks_db.DatabaseBackend", "django_tasks_db", "db_worker", "--batch", "--queue-name=*"],
    "django-ojs-unique": [OURS, "django_ojs_unique", "runworker", "--drain", "--verbosity=0"],
}
SAME = [
    ["total", "SUCCESSFUL", [1, 2], {"start": 3}, {"total": 6, "of": [1, 2]}, 1, [], True],
    ["greet", "SUCCESSFUL", [], {"name": "Ada"}, "Hello Ada, attempt 1", 1, [], True],
    ["fail", "FAILED", ["nothing there"], {}, None, 1, [["LookupError", "LookupError: nothing there"]], True],
]


@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_project_does_the_same_on_every_backend(backend, tmp_path):
    if backend == "django-tasks-db" and not find_spec("django_tasks_db"):
        pytest.skip("django-tasks-db is not installed")
    project = subprocess.run(
        [sys.executable, "-m", "tests.tasks.portable.project", str(tmp_path / "database"), *BACKENDS[backend]],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
    )
    assert project.returncode == 0, project.stderr
    said = [json.loads(line) for line in project.stdout.splitlines() if line.startswith(("[", "{"))]
    assert said == [{"discovered": backend == "django-ojs-unique"}, *SAME]
