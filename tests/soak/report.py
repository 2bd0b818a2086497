"""Fill the judge's tables from the logs, ask the judge, and print what happened."""

from __future__ import annotations

import argparse
import signal
from collections import Counter
from collections.abc import Iterator
from io import StringIO
from pathlib import Path
from typing import Any

from django.core.management import CommandError, call_command
from django.db import connection

from . import history, logs
from .judge import QUESTIONS, judge, story
from .saboteur import Saboteur, rows

NAMES = {
    "lost": "jobs lost",
    "beside": "runs beside a live lease",
    "twice": "runs finalized twice",
    "duplicates": "duplicates",
    "late": "time limits that were not kept",
}
WORKERS_END_WITH = {0, -signal.SIGTERM, 128 + signal.SIGTERM, -signal.SIGKILL}
"""SIGTERM ends a process that has not begun to work, and at its second arrival one that has."""
STORIES = 2
"""Of each finding, how many jobs are told in full."""


def judged(options: argparse.Namespace, folder: Path, saboteur: Saboteur, codes: Counter[str]) -> int:
    """Print the table and the verdict; return the exit code."""
    answers = list(logs.read(folder, "answers"))
    runs = list(runs_of(logs.read(folder, "runs")))
    load(answers, runs)
    history.fill("soak_faults", rows(saboteur.faults))
    verdict, verified = judge(options.lease), _verify()
    outcomes = Counter(line["answer"] for line in answers)
    _section("Producers were answered", outcomes)
    _section("Handlers ran", {"runs": len(runs), "runs cut short": sum(run["ended"] is None for run in runs)})
    _section("The database saw", _moves())
    _section("The saboteur did", saboteur.done)
    _section("Programs ended by themselves or were killed", codes)
    for line in verdict.lines():
        print(line)
    around = [(line["at"], line["said"]) for line in logs.read(folder, "faults")]
    for findings in verdict.found.values():
        for wrong, jobs in findings.items():
            for job in jobs[:STORIES]:
                print(f"\n{wrong}: {job}", *story(job, around), sep="\n  ")
    print(f"\njobs verify: {verified or 'nothing to fix'}")
    for question in QUESTIONS:
        print(f"{verdict.count(question):>6} {NAMES[question]}")
    wrong = _misbehaved(codes) if options.siege else []
    for each in wrong:
        print(f"{codes[each]:>6} {each}")
    print(f"seed {options.seed}")
    return 0 if verdict and not verified and not wrong else 1


def _misbehaved(codes: Counter[str]) -> list[str]:
    """Return what workers may not do."""
    fine = {f"worker ended with {int(code)}" for code in WORKERS_END_WITH}
    return sorted(said for said in codes if said.startswith("worker") and said not in fine)


def load(answers: list[dict[str, Any]], runs: list[dict[str, Any]]) -> None:
    """Put what the logs say beside the history."""
    history.fill(
        "soak_answers",
        (
            {"answer": line["answer"], "job": history.stored(line.get("job")), "job_key": line.get("key")}
            for line in answers
        ),
    )
    history.fill("soak_runs", runs)


def runs_of(lines: Iterator[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    """Join the start of each run and its end, if it has one."""
    running: dict[Any, dict[str, Any]] = {}
    for line in lines:
        key = line["job"], line["token"], line["pid"]
        if line["event"] == "began":
            if key in running:
                yield running[key]
            running[key] = {
                "job": history.stored(line["job"]),
                "token": history.stored(line["token"]),
                "attempt": line["attempt"],
                "pid": line["pid"],
                "began": line["at"],
                "ended": None,
            }
        elif key in running:
            yield {**running.pop(key), "ended": line["at"]}
    yield from running.values()


def _moves() -> dict[str, int]:
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT source, target, COUNT(*) FROM soak_history"
            " WHERE source IS NULL OR target IS NULL OR source <> target GROUP BY source, target ORDER BY 3 DESC"
        )
        return {f"{source or 'nothing'} -> {target or 'pruned'}": count for source, target, count in cursor.fetchall()}


def _verify() -> str:
    """Return what `jobs verify` complains about."""
    said = StringIO()
    try:
        call_command("jobs", "verify", stdout=said, stderr=said)
    except (CommandError, SystemExit) as error:
        return f"{said.getvalue()}{error}"
    return ""


def _section(title: str, counts: Any) -> None:
    print(f"\n{title}")
    for name, count in sorted(counts.items(), key=lambda item: -item[1]):
        print(f"{count:>8,} {name}")
