"""The numbers of workflows, periodic jobs and duplicates."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from tests.reporting.everywhere.questions import (
    Number,
    Rows,
    counted,
)
from tests.reporting.everywhere.surfaces import Surfaces, pairs, since, sql

ROOTS = "SELECT {what}, COUNT(*) FROM {{workflow}} WHERE root_id IS NULL GROUP BY {what}"
OUTCOMES = ("open", "completed", "failed", "cancelled")
WORKFLOW_STATES = ("running", "completed", "failed", "cancelled")
KINDS = ("chain", "group", "batch")


def jobs_of_workflows() -> Rows:
    statement = (
        "SELECT r.name, m.outcome, COUNT(*) FROM {workflowmember} m JOIN {workflow} w ON w.id = m.workflow_id"
        " JOIN {workflow} r ON r.id = COALESCE(w.root_id, w.id)"
        " WHERE m.role = 'member' AND m.child_id IS NULL GROUP BY r.name, m.outcome"
    )
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for name, outcome, count in sql(statement):
        found[name][outcome] = count
    return {(name, each.total(), each["completed"], each["failed"], each["cancelled"]) for name, each in found.items()}


def stopped_by_a_cancellation() -> Rows:
    """Return how many jobs of a workflow wait, and how many are not stored yet."""
    within = "(SELECT w.id FROM {workflow} w LEFT JOIN {workflow} r ON r.id = w.root_id"
    within += " WHERE COALESCE(r.name, w.name) = 'nested, running')"
    waiting = sql(f"SELECT COUNT(*) FROM {{job}} WHERE finished_at IS NULL AND workflow_id IN {within}")
    unborn = "SELECT COUNT(*) FROM {workflowmember} WHERE outcome = 'open' AND enqueued_at IS NULL"
    return {(*waiting.pop(), *sql(f"{unborn} AND child_id IS NULL AND workflow_id IN {within}").pop())}


def foretold(ask: Surfaces) -> Rows:
    (root,) = [row["id"] for row in ask.cli("workflows", "--name", "nested, running")]
    found = ask.cli("cancel-workflow", root, "--dry-run")
    return {(found["jobs"], found["unborn"])}


def met(ask: Surfaces, *columns: str) -> Rows:
    return {tuple(row[column] for column in columns) for row in ask.page("duplicates", span="day")["met"]["rows"]}


OVERALL: dict[str, Number] = {
    "workflows by state": Number(
        counted(ROOTS.format(what="state")),
        {
            "cli": lambda ask: pairs({name: len(ask.cli("workflows", "--state", name)) for name in WORKFLOW_STATES}),
            "http": lambda ask: pairs({name: ask.total("workflows", state=name) for name in WORKFLOW_STATES}),
            "admin": lambda ask: pairs({name: ask.count("workflow", state=name) for name in WORKFLOW_STATES}),
        },
    ),
    "workflows by kind": Number(
        counted(ROOTS.format(what="type")),
        {
            "cli": lambda ask: pairs({name: len(ask.cli("workflows", "--kind", name)) for name in KINDS}),
            "http": lambda ask: pairs({name: ask.total("workflows", type=name) for name in KINDS}),
            "admin": lambda ask: pairs({name: ask.count("workflow", type=name) for name in KINDS}),
        },
    ),
    "jobs of workflows": Number(
        jobs_of_workflows,
        {
            "cli": lambda ask: {
                (row["name"], *(row[f"jobs_{name}"] for name in ("total", *OUTCOMES[1:])))
                for row in ask.cli("workflows")
            },
            "admin": lambda ask: {
                (row.name, *(getattr(row.jobs_done, name) for name in ("total", *OUTCOMES[1:])))
                for row in ask.list("workflow").result_list
            },
        },
    ),
    "jobs of workflows that have completed and failed": Number(
        lambda: {row[:-1] for row in jobs_of_workflows()},
        {
            "http": lambda ask: {
                (row["name"], *(row["metadata"][f"{name}_count"] for name in ("job", "completed", "failed")))
                for row in ask.http("workflows")["workflows"]
            },
            "table": lambda ask: {
                (row["name"], *map(int, reversed(found[:2])), int(found[2]) if found[2:] else 0)
                for row in ask.table("workflows")
                if (found := re.findall(r"\d+", row["jobs done"]))
            },
        },
    ),
    "what the cancellation of a workflow would stop": Number(stopped_by_a_cancellation, {"cli": foretold}),
    "periodic jobs": Number(
        counted("SELECT name, enabled, last_outcome, outcome_count, run_count, 'is there' FROM {cronjob}"),
        {
            "cli": lambda ask: {
                (*(row[name] for name in ("name", "enabled", "last_outcome", "outcome_count", "run_count")), "is there")
                for row in ask.cli("crons")
            }
        },
    ),
    "periodic jobs that are enabled": Number(
        counted("SELECT name FROM {cronjob} WHERE enabled"),
        {
            "admin": lambda ask: {(row.name,) for row in ask.list("cronjob", enabled__exact=1).result_list},
            "http": lambda ask: {(row["name"],) for row in ask.http("cron")["crons"] if row["enabled"]},
            "table": lambda ask: {(row["name"],) for row in ask.table("crons") if row["next"] != "disabled"},
        },
    ),
    "periodic jobs by their last outcome": Number(
        counted("SELECT name, last_outcome FROM {cronjob} WHERE last_outcome != ''"),
        {
            "admin": lambda ask: {
                (row.name, outcome)
                for outcome in ("created", "skipped", "failed", "already")
                for row in ask.list("cronjob", outcome=outcome).result_list
            },
            "table": lambda ask: {
                (row["name"], row["last outcome"].split()[0])
                for row in ask.table("crons")
                if row["last outcome"] != "-"
            },
        },
    ),
    "skips in a row, and since when": Number(
        lambda: {
            (name, f"skipped {since(at)} ago, {count} times in a row")
            for name, count, at in sql(
                "SELECT name, outcome_count, last_outcome_at FROM {cronjob} WHERE last_outcome = 'skipped'"
            )
        },
        {"table": lambda ask: {(row["name"], row["last outcome"]) for row in ask.table("crons") if "row" in str(row)}},
    ),
    "suppressed enqueues": Number(
        counted("SELECT outcome, COUNT(*) FROM {suppressedenqueue} GROUP BY outcome"),
        {
            "admin": lambda ask: pairs(
                {
                    name: ask.count("suppressedenqueue", outcome__exact=name)
                    for name in ("rejected", "deduplicated", "replaced")
                }
            )
        },
    ),
    "suppressed enqueues of the last minute": Number(
        counted("SELECT outcome, COUNT(*) FROM {suppressedenqueue} WHERE created_at >= %(minute)s GROUP BY outcome"),
        {"metrics": lambda ask: pairs(ask.metric("ojs_recently_suppressed_enqueues"))},
    ),
    "suppressed enqueues by fingerprint": Number(
        counted(
            "SELECT MIN(type), SUM(CASE WHEN outcome = 'rejected' THEN 1 ELSE 0 END),"
            " SUM(CASE WHEN outcome = 'deduplicated' THEN 1 ELSE 0 END),"
            " SUM(CASE WHEN outcome = 'replaced' THEN 1 ELSE 0 END), COUNT(*)"
            " FROM {suppressedenqueue} WHERE created_at >= %(day)s GROUP BY fingerprint"
        ),
        {"admin": lambda ask: met(ask, "type", "rejected", "deduplicated", "replaced", "count")},
    ),
    "jobs that an enqueue met": Number(
        counted(
            "SELECT COUNT(*) FROM {job} j WHERE EXISTS (SELECT 1 FROM {suppressedenqueue} s"
            " WHERE s.existing_job_id = j.id AND s.fingerprint = j.fingerprint)"
        ),
        {"admin": lambda ask: {(ask.count("job", duplicates="met"),)}},
    ),
    "live duplicates": Number(
        counted(
            "SELECT COUNT(*) FROM {job} j WHERE finished_at IS NULL AND EXISTS (SELECT 1 FROM {job} o"
            " WHERE o.fingerprint = j.fingerprint AND o.id <> j.id AND o.finished_at IS NULL)"
        ),
        {
            "admin": lambda ask: {(ask.count("job", duplicates="live"),)},
            "their page": lambda ask: {(sum(group["count"] for group in ask.page("duplicates")["groups"]),)},
        },
    ),
}
