"""The mutants: read them, apply one to a copy of the repository, and run the tests that must kill it."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import cache_from_source
from pathlib import Path

from tests.tiers import AT_RELEASE

ROOT = Path(__file__).parents[2]
PACKAGE = "django_ojs_unique"
AREAS = ("heart", "db", "execution", "surfaces", "workflows", "limits")
TIERS = {"ci": " and ".join(f"not {mark}" for mark in AT_RELEASE), "release-check": ""}
"""The tests that each tier runs on its databases, as pytest's ``-m`` says it. ``ci`` is `.ci/run`."""
LONGEST = 600
"""Seconds after which tests that do not end are ended."""
_LEFT_OUT = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis")
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S.*?)(?: - .*)?$", re.MULTILINE)


class Moved(Exception):
    """The old text of a mutant is not exactly once in its file."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change that breaks the package. ``name`` says what is broken; ``file`` is a path in the package.

    ``tests`` are files or tests that must fail then, on the ``database``, among those that the ``tier`` runs.
    """

    area: str
    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]
    database: str = "SQLite"
    tier: str = "ci"


@dataclass(frozen=True, slots=True)
class Verdict:
    """What became of a mutant: ``killed`` by a test, or not, and ``why``."""

    killed: bool
    why: str


def read(text: str) -> list[Mutant]:
    """Read mutants from TOML, in which each area has an array of tables."""
    tables = tomllib.loads(text)
    found = [
        Mutant(area, **{**one, "tests": tuple(one["tests"])}) for area, mutants in tables.items() for one in mutants
    ]
    assert set(tables) <= set(AREAS), f"Unknown areas: {set(tables) - set(AREAS)}"
    assert len({mutant.name for mutant in found}) == len(found), "Two mutants have the same name."
    return found


def applied(mutant: Mutant, source: str) -> str:
    """Return the source of its file with the change. Raises Moved."""
    if (count := source.count(mutant.old)) != 1:
        raise Moved(f"the code has moved: renew this mutant ({mutant.file} has its old text {count} times)")
    return source.replace(mutant.old, mutant.new)


class Copy:
    """A copy of the repository, in which mutants are applied and tests run. ``urls``: those of databases, by name."""

    def __init__(self, folder: Path, urls: Mapping[str, str | None], root: Path = ROOT) -> None:
        self.folder = folder / "copy"
        self._urls = urls
        shutil.copytree(root, self.folder, ignore=_LEFT_OUT, symlinks=True)
        found = self._python("SQLite", "-c", f"import {PACKAGE}; print({PACKAGE}.__file__)").stdout.strip()
        assert Path(found).is_relative_to(self.folder), f"The tests would import {found}, not the copy."

    @contextmanager
    def broken(self, mutant: Mutant) -> Iterator[None]:
        """Apply a mutant for the time of the block. Raises Moved."""
        file = self.folder / PACKAGE / mutant.file
        source = file.read_text()
        try:
            self._write(file, applied(mutant, source))
            yield
        finally:
            self._write(file, source)

    def pytest(self, tests: Iterable[str], database: str, tier: str) -> Verdict:
        """Run tests until the first one fails; ``killed`` tells whether one failed."""
        done = self._python(database, "-m", "pytest", "-x", "-q", "-n", "0", "-m", TIERS[tier], *tests)
        if done.returncode == 0:
            return Verdict(False, "SURVIVED")
        failure = _FAILURE.search(done.stdout)
        if done.returncode == 1 and failure is not None:
            return Verdict(True, f"killed by {failure[1]}")
        said = "\n".join((done.stdout + done.stderr).splitlines()[-15:])
        return Verdict(False, f"pytest ended with {done.returncode}, and no test failed:\n{said}")

    def _python(self, database: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = {**os.environ, "PYTHONPATH": str(self.folder), "OJS_TEST_PATIENCE": "30"}
        for name in ("OJS_TEST_DATABASE_URL", "OJS_TEST_DATABASES", "OJS_TEST_COVERAGE", "PYTHONDONTWRITEBYTECODE"):
            environment.pop(name, None)
        if (url := self._urls.get(database)) is not None:
            environment["OJS_TEST_DATABASE_URL"] = url
        command = [sys.executable, *arguments]
        with subprocess.Popen(
            command,
            cwd=self.folder,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        ) as process:
            try:
                out, error = process.communicate(timeout=LONGEST)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                out, error = process.communicate()
        return subprocess.CompletedProcess(command, process.returncode, out, error)

    @staticmethod
    def _write(file: Path, source: str) -> None:
        file.write_text(source)
        # Python compares sizes and whole seconds: it could take what it compiled for the mutant before.
        Path(cache_from_source(str(file))).unlink(missing_ok=True)


def needed(mutants: Collection[Mutant]) -> dict[tuple[str, str], list[str]]:
    """Return all tests of some mutants, by their databases and tiers."""
    found: dict[tuple[str, str], dict[str, None]] = {}
    for mutant in mutants:
        found.setdefault((mutant.database, mutant.tier), {}).update(dict.fromkeys(mutant.tests))
    return {where: list(tests) for where, tests in found.items()}


def judge(copy: Copy, mutant: Mutant) -> Verdict:
    """Apply a mutant, and run its tests."""
    try:
        with copy.broken(mutant):
            return copy.pytest(mutant.tests, mutant.database, mutant.tier)
    except (Moved, OSError) as error:
        return Verdict(False, str(error))
