"""Which tests run where: on which databases, and in which of the three tiers.

`make test` runs what takes less than a fifth of a CPU second, on SQLite and PostgreSQL. `.ci/run` adds what is marked
``slow``, ``browser``, ``interrupts`` and ``torture``, and MariaDB. `make release-check` adds what is marked ``ha`` and
``release``, longer tortures and other environments.
"""

import os
from pathlib import Path

PROCESSES = (
    "tests/worker/test_children.py",
    "tests/worker/test_left_behind.py",
    "tests/worker/test_starting.py",
    "tests/worker/test_stopping.py",
    "tests/worker/test_supervisor.py",
)
"""What is about processes and signals, and starts many. `make release-check` runs it on every database."""
ONE_DATABASE = (
    "tests/admin/",
    "tests/api/",
    "tests/browser/",
    "tests/checks/",
    "tests/contrib/",
    "tests/enqueue/test_bad_input.py",
    "tests/ha/",
    "tests/handlers/",
    "tests/management/",
    "tests/model/",
    "tests/mutants/",
    "tests/ojs/",
    "tests/tasks/",
    "tests/testing/",
    "tests/typing/",
    "tests/unique/",
    "tests/test_deploy.py",
    "tests/test_docs.py",
    "tests/test_habits.py",
    "tests/test_layers.py",
    "tests/test_logs.py",
    "tests/test_makefile.py",
    "tests/test_messages.py",
    "tests/test_packaged.py",
    "tests/test_reference.py",
    "tests/test_stages.py",
    "tests/test_testproject.py",
    *(() if os.environ.get("OJS_TEST_EVERYWHERE") else PROCESSES),
)
"""What is the same on every database, and runs on SQLite only: surfaces ask `reporting`, which each database answers in
tests of its own. A file or a test here that does ask a vendor is marked ``every_database``."""
EVERY = "every_database"
IN_CI = ["slow", "browser", "interrupts"]
"""What `make test` leaves out, beside ``torture``, which runs without neighbours."""
AT_RELEASE = ["ha", "release"]


def files(marker: str) -> list[str]:
    """Return the files that have tests with a marker: to collect all the others takes longer than some of those."""
    return [str(path) for path in sorted(Path("tests").rglob("test_*.py")) if f"mark.{marker}" in path.read_text()]
