"""Play the conformance cases of the Open Job Spec against the example project: ``make conformance``.

Under gunicorn, on a throw-away database on PostgreSQL and on SQLite. The runner and its cases are no part of this
repository: ``CONFORMANCE`` names their folder. With ``QUICK`` set, the cases that wait more than ten seconds are left
out. What comes after ``python -m tests.conformance`` goes to the runner.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from tests.__main__ import postgres
from tests.api.gunicorns import gunicorn

LEVELS = (0, 1, 2, 3, 4)
NAME = f"ojs_conformance_{os.getpid()}"


def main() -> int:
    folder = Path(os.environ.get("CONFORMANCE") or "conformance")
    runner, suites = folder / "run.py", folder / "suites"
    if not (runner.is_file() and suites.is_dir()):
        print(
            f"Nothing was played: {folder}/ has no run.py and suites/. They are no part of this repository. If you have"
            " them, say where: make conformance CONFORMANCE=path/to/the/folder"
        )
        return 0
    options = [option for level in LEVELS for option in ("--level", str(level))]
    if os.environ.get("QUICK"):
        options += ["--max-wait", "10"]
    failed = []
    for name, database, workers in (("PostgreSQL", postgres_database, 2), ("SQLite", sqlite_database, 1)):
        print(f"\n=== conformance on {name}, {workers} server process(es) ===", flush=True)
        with database() as url, gunicorn(url, workers=workers) as base:
            command = [sys.executable, str(runner), "--url", base, "--reset-url", f"{base}/test/reset"]
            command += ["--suites", str(suites), *options, *sys.argv[1:]]
            if subprocess.run(command).returncode:
                failed.append(name)
    if failed:
        print(f"\nNot conforming on {' and '.join(failed)}.")
    return bool(failed)


@contextmanager
def postgres_database() -> Iterator[str]:
    """Yield the URL of a new database on the server of the test suite."""
    import psycopg

    with postgres() as server, psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE IF EXISTS {NAME} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {NAME}")
        try:
            yield urlsplit(server)._replace(path=f"/{NAME}").geturl()
        finally:
            connection.execute(f"DROP DATABASE {NAME} WITH (FORCE)")


@contextmanager
def sqlite_database() -> Iterator[str]:
    """Yield the URL of a SQLite file."""
    with tempfile.TemporaryDirectory() as folder:
        yield f"sqlite:///{folder}/conformance.sqlite3"


if __name__ == "__main__":
    sys.exit(main())
