"""Run one stage of `.ci/run` or `.ci/release-check`, and tell what each cost: wall and CPU seconds.

    python3 -m tests.stages run FILE NAME COMMAND ...    print the stage's name, run it, append a line to the file
    python3 -m tests.stages table FILE                   print the table; end with 1 if a stage failed

The CPU seconds are those of the command and of all processes that it started; those of database servers are told apart.
Needs Python only.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

SERVERS = {"postgres", "mariadbd", "mysqld"}


def run(file: Path, name: str, command: list[str]) -> int:
    """Run a stage; return its exit code."""
    print(f"\n##### {name}", flush=True)
    servers, children, began = server_seconds(), children_seconds(), time.monotonic()
    row = {"name": name, "code": "none: it did not end", "wall": 0, "cpu": 0, "servers": servers}
    note(file, row)
    code = subprocess.run(command).returncode
    cpu = children_seconds() - children
    note(file, {**row, "code": code, "wall": time.monotonic() - began, "cpu": cpu})
    return code


def note(file: Path, row: dict[str, object]) -> None:
    """Append a stage to the file; what is said of it later takes the place of this."""
    with file.open("a") as stages:
        stages.write(json.dumps(row) + "\n")


def children_seconds() -> float:
    """Return the CPU seconds of all processes that this one started and awaited, and of theirs."""
    spent = os.times()
    return spent.children_user + spent.children_system


def server_seconds() -> float:
    """Return the CPU seconds that database servers on this machine have used so far."""
    ticks = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            stat = (folder / "stat").read_text()
        except OSError:  # it has ended
            continue
        name, _, rest = stat.partition("(")[2].rpartition(")")
        if name in SERVERS:
            user, system, ended_user, ended_system = map(int, rest.split()[11:15])
            ticks += user + system + ended_user + ended_system
    return ticks / os.sysconf("SC_CLK_TCK")


def table(file: Path) -> int:
    """Print what each stage cost; return 1 if one failed."""
    read = map(json.loads, file.read_text().splitlines())
    rows = [*{row["name"]: row for row in read}.values()]
    print(f"\n{'minutes':>8} {'CPU s':>8}  stage")
    for row in rows:
        failed = "" if row["code"] == 0 else f"  FAILED with exit code {row['code']}"
        print(f"{row['wall'] / 60:8.1f} {row['cpu']:8.0f}  {row['name']}{failed}")
    cpu = sum(row["cpu"] for row in rows)
    print(
        f"{'':8} {cpu:8.0f}  all stages, beside {server_seconds() - rows[0]['servers']:.0f} CPU s of database servers"
    )
    return int(any(row["code"] for row in rows))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", file, name, *command]:
            sys.exit(run(Path(file), name, command))
        case ["table", file]:
            sys.exit(table(Path(file)))
        case _:
            sys.exit(__doc__)
