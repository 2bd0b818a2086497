"""What each test and each fixture costs: CPU seconds of this process and of the processes that it started.

Where ``OJS_TEST_COSTS`` names a file, each run appends one JSON line per test and per fixture to it;
``python -m tests.costs FILE`` prints the dearest. CPU seconds of a database server are not in them.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

PHASES = ("setup", "call", "teardown")


def cpu_seconds() -> float:
    """Return the CPU seconds of this process and of its ended children."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


class Costs:
    """Measures in each process of xdist, and writes in the one that controls them."""

    def __init__(self, file: str, database: str) -> None:
        self._file = Path(file)
        self._database = database
        self._fixtures: list[tuple[str, float]] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Generator[None, Any, Any]:
        before = cpu_seconds()
        try:
            return (yield)
        finally:
            self._fixtures.append((f"{fixturedef.baseid}::{fixturedef.argname}", cpu_seconds() - before))

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._cpu, self._wall = cpu_seconds(), time.monotonic()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, Any, Any]:
        report = yield
        cpu, wall = cpu_seconds(), time.monotonic()
        report.costs = [cpu - self._cpu, wall - self._wall, self._fixtures]
        self._cpu, self._wall, self._fixtures = cpu, wall, []
        return report

    def pytest_runtest_logreport(self, report: Any) -> None:
        if os.environ.get("PYTEST_XDIST_WORKER"):
            return
        cpu, wall, fixtures = report.costs
        rows = [("test", report.nodeid, cpu, wall), *(("fixture", name, cost, 0) for name, cost in fixtures)]
        with self._file.open("a") as file:
            for row in rows:
                file.write(json.dumps([self._database, *row]) + "\n")


def table(file: Path, most: int) -> str:
    """Return the dearest tests and fixtures, and what each folder costs, as lines of text."""
    tests: Counter[str] = Counter()
    fixtures: Counter[str] = Counter()
    folders: Counter[str] = Counter()
    walls: Counter[str] = Counter()
    for line in file.read_text().splitlines():
        database, kind, name, cpu, wall = json.loads(line)
        if kind == "fixture":
            fixtures[f"{name} ({database})"] += cpu
            continue
        tests[f"{name} ({database})"] += cpu
        walls[f"{name} ({database})"] += wall
        path = name.partition("::")[0]
        folder = "/".join(path.split("/")[:2])
        folders[f"{folder} ({database})"] += cpu
        folders[f"all ({database})"] += cpu
        walls[f"{folder} ({database})"] += wall
        walls[f"all ({database})"] += wall
    lines = []
    for title, counted in (("folders", folders), ("tests", tests), ("fixtures", fixtures)):
        lines += ["", f"{'CPU s':>8} {'wall s':>8}  the dearest {title}"]
        lines += [f"{cpu:8.2f} {walls[name]:8.2f}  {name}" for name, cpu in counted.most_common(most)]
    return "\n".join(lines)


if __name__ == "__main__":
    parser = argparse.ArgumentParser("python -m tests.costs", description=__doc__.partition("\n\n")[0])
    parser.add_argument("file", type=Path, help="what OJS_TEST_COSTS named")
    parser.add_argument("--most", type=int, default=50, help="rows of each kind (default: %(default)s)")
    options = parser.parse_args()
    print(table(options.file, options.most))
