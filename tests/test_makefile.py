"""The Makefile: what `make help` says, and what each target installs first."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PHONY = re.search(r"^\.PHONY: (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)[1].split()

pytestmark = pytest.mark.skipif(shutil.which("make") is None, reason="needs make")


def make(folder, *arguments):
    # `make test` may have called us: then the inner one would say which folder it enters.
    alone = {name: value for name, value in os.environ.items() if name not in ("MAKEFLAGS", "MAKELEVEL", "MFLAGS")}
    done = subprocess.run(["make", *arguments], cwd=folder, env=alone, capture_output=True, text=True, check=True)
    return done.stdout


@pytest.fixture
def clone(tmp_path):
    """A folder like a fresh clone: with nothing installed."""
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path)
    return tmp_path


@pytest.mark.parametrize("arguments", [[], ["help"]], ids=["make", "make help"])
def test_help_names_each_target_in_one_line(arguments):
    lines = make(ROOT, *arguments).splitlines()
    assert [re.fullmatch(r"  make ([a-z-]+) +\S.*", line)[1] for line in lines] == PHONY


@pytest.mark.parametrize("target", ["demo", "serve"])
def test_the_example_installs_what_it_needs_and_no_more(clone, target):
    planned = make(clone, "--dry-run", target)
    assert ".[demo]" in planned
    assert "--group" not in planned


def test_the_suite_installs_what_developers_need(clone):
    assert ". --group dev" in make(clone, "--dry-run", "test")


def test_what_is_installed_is_not_installed_again(clone):
    (clone / ".venv").mkdir()
    (clone / ".venv/demo").touch()
    assert "install" not in make(clone, "--dry-run", "demo")


def test_a_python_without_pip_gives_the_environment_its_own(clone):
    (clone / "python").write_text('#!/bin/sh\necho "$@" >> calls\n[ "$2" != pip ]\n')
    (clone / "python").chmod(0o755)
    (clone / ".venv/bin").mkdir(parents=True)
    (clone / ".venv/bin/pip").write_text('#!/bin/sh\necho "own pip $@" >> calls\n')
    (clone / ".venv/bin/pip").chmod(0o755)
    make(clone, ".venv/demo", "PYTHON=./python")
    *_, theirs, own, last = (clone / "calls").read_text().splitlines()
    assert theirs.startswith("-m pip --python .venv/bin/python install")
    assert own == "-m venv .venv"
    assert last.startswith("own pip install")
