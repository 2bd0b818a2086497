"""The soak itself, for a few seconds, so that it is there when somebody wants it for half an hour."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from django.db import connection

from .programs import ROOT
from .report import NAMES

pytestmark = pytest.mark.torture

LONGEST = 400


@pytest.fixture
def database(transactional_db: None) -> Iterator[list[str]]:
    """Return the options that name a database like that of the tests, and an empty one."""
    if connection.vendor != "mysql":
        yield ["--database", connection.vendor]
        return
    name = f"{connection.settings_dict['NAME']}_soak"
    with connection.cursor() as cursor:
        # A run that was killed leaves its database behind.
        cursor.execute(f"DROP DATABASE IF EXISTS {name}")
        cursor.execute(f"CREATE DATABASE {name}")
    yield ["--database", "mariadb", "--url", f"{os.environ['OJS_TEST_DATABASE_URL'].rpartition('/')[0]}/{name}"]
    with connection.cursor() as cursor:
        cursor.execute(f"DROP DATABASE {name}")


def test_a_short_soak_finds_nothing(database, tmp_path):
    # Leases so long that a busy machine does not let them run out.
    options = ["--minutes", "0.2", "--seed", "1", "--lease", "10", *database]
    done = subprocess.run([sys.executable, "-m", "tests.soak", *options], cwd=ROOT, **_CAPTURED)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("seed 1,")
    for name in NAMES.values():
        assert f"     0 {name}\n" in done.stdout


@pytest.mark.release  # on a busy machine, handlers that hold SQLite's only write lock outlast the leases of others
def test_a_short_siege_finds_nothing(database, tmp_path):
    options = ["--siege", "--minutes", "0.2", "--seed", "1", "--lease", "20", *database]
    done = subprocess.run([sys.executable, "-m", "tests.soak", *options], cwd=ROOT, **_CAPTURED)
    assert done.returncode == 0, done.stdout
    for name in NAMES.values():
        assert f"     0 {name}\n" in done.stdout


def test_the_options_are_explained():
    done = subprocess.run([sys.executable, "-m", "tests.soak", "--help"], cwd=ROOT, **_CAPTURED)
    assert done.returncode == 0
    assert "--minutes" in done.stdout


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--minutes", "0"], "--minutes must be positive"),
        (["--lease", "0.1"], "--lease must be 1 second at least"),
        (["--database", "mariadb"], "--url goes with --database mariadb"),
    ],
)
def test_what_cannot_work_is_refused(options, said):
    done = subprocess.run([sys.executable, "-m", "tests.soak", *options], cwd=ROOT, **_CAPTURED)
    assert done.returncode == 2
    assert said in done.stdout


_CAPTURED: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "timeout": LONGEST}
