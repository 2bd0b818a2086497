"""The stages of `.ci/run`: what each costs, and that one that failed, or was killed, fails the whole."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import stages

ROOT = Path(__file__).parent.parent
BURN = "import os\nwhile sum(os.times()[:2]) < 0.5: pass"
"""A program that uses half a second of a CPU, and its start."""


@pytest.fixture
def file(tmp_path):
    return tmp_path / "stages"


def test_a_stage_costs_what_its_processes_cost(file, capfd):
    program = f"import subprocess, sys; sys.exit(subprocess.run([sys.executable, '-c', {BURN!r}]).returncode)"
    assert stages.run(file, "burns", [sys.executable, "-c", program]) == 0
    assert stages.run(file, "rests", ["true"]) == 0
    assert "##### burns" in capfd.readouterr().out
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert [row["name"] for row in rows] == ["burns", "burns", "rests", "rests"]
    assert rows[1]["cpu"] >= 0.5 > rows[3]["cpu"]
    assert stages.table(file) == 0
    assert [line.split()[-1] for line in capfd.readouterr().out.splitlines()[2:4]] == ["burns", "rests"]


@pytest.mark.parametrize("command", [["false"], ["sh", "-c", "kill -9 $$"]])
def test_a_stage_that_failed_fails_the_whole(file, capfd, command):
    assert stages.run(file, "bad", command) != 0
    assert stages.run(file, "good", ["true"]) == 0
    assert stages.table(file) == 1
    assert "bad  FAILED" in capfd.readouterr().out


def test_a_stage_whose_process_was_killed_fails_the_whole(file, capfd):
    command = [sys.executable, "-m", "tests.stages", "run", str(file), "killed", "sh", "-c", "echo runs; read wait"]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        while process.stdout.readline() != "runs\n":
            assert process.poll() is None
        process.send_signal(signal.SIGKILL)
    assert stages.table(file) == 1
    assert "killed  FAILED" in capfd.readouterr().out


@pytest.mark.slow
def test_on_sqlite_torture_beside_other_tests_is_skipped_in_words():
    command = [sys.executable, "-m", "pytest", "-n", "1", "-q", "tests/limits/test_torture.py"]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout
    assert "runs without neighbours: leave out -n, as in `python -m pytest -m torture`" in ran.stdout
