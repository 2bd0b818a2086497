"""The numbers of jobs and queues."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from django.core.checks import Tags, run_checks
from django.test import override_settings
from django.utils import timezone

from tests.reporting.everywhere import situation
from tests.reporting.everywhere.questions import (
    DECLARED,
    FINISHED,
    STATES,
    UNFINISHED,
    Number,
    Rows,
    Surface,
    counted,
    edge,
    queues_of_the_dashboard,
)
from tests.reporting.everywhere.surfaces import LIST, Surfaces, number, pairs, since, sql, told, words


def states_of_the_dashboard(ask: Surfaces) -> Rows:
    page = ask.page("dashboard")
    return {
        (words(row["name"]), state, number(count))
        for row in page["queues"]
        for state, count in zip(page["states"], row["depth"], strict=True)
        if number(count)
    }


def states_of_each_queue(ask: Surfaces, states: tuple[str, ...]) -> Rows:
    names = [name for (name,) in sql("SELECT DISTINCT queue FROM {job}")]
    found = {name: ask.http(f"queues/{name}/stats") for name in names}
    assert all(stats["exact"] for stats in found.values())
    return pairs({(name, state): found[name]["stats"][state] for name in names for state in states})


def by_filter(ask: Surfaces, how: str, name: str, values: Any, **others: Any) -> Rows:
    """Ask a list of jobs for the number of each value of a filter."""
    values = values if isinstance(values, tuple) else sorted(value for (value,) in sql(values) if value)
    if how == "http":
        return pairs({value: ask.total("jobs", **{name: value}, **others) for value in values})
    if how == "admin":
        return pairs({value: ask.count("job", **{name: value}, **others) for value in values})
    options = [word for key, value in others.items() for word in (f"--{key}", value)]
    return pairs({value: len(ask.cli("list", f"--{name}", value, "--limit", "999", *options)) for value in values})


def every_list(name: str, values: Any) -> dict[str, Surface]:
    return {how: partial(by_filter, how=how, name=name, values=values) for how in ("http", "admin", "cli")}


def waits() -> Rows:
    statement = "SELECT queue, MIN(enqueued_at) FROM {job} WHERE state = 'available' GROUP BY queue"
    return {(name, since(first)) for name, first in sql(statement)}


def runs_of_limited_queues() -> Rows:
    running = Counter(dict(sql("SELECT queue, COUNT(*) FROM {job} WHERE state = 'active' GROUP BY queue")))
    stopped = "SELECT queue, COUNT(*) FROM {stoppedrun} WHERE lease_expires_at > %(now)s GROUP BY queue"
    running += Counter(dict(sql(stopped)))
    limits = sql("SELECT name, concurrency_limit FROM {queue} WHERE concurrency_limit IS NOT NULL")
    return {(name, f"{running[name]} of {limit}") for name, limit in limits}


def said_to_be_stranded(ask: Surfaces) -> Rows:
    said = re.findall(r"takes ([\w-]+); ([\d,]+) available in it", ask.said("queues"))
    return {(name, int(count)) for name, count in said}


def said_of_each(sentence: str) -> dict[str, Surface]:
    """Look for a sentence about each available job, and for the number in it."""

    def look(ask: Surfaces, read: Callable[[Surfaces, str], str]) -> Rows:
        found = set()
        for (id,) in sql("SELECT id FROM {job} WHERE state = 'available'"):
            if match := re.search(sentence, read(ask, id)):
                found.add((id, *(0 if text == "No" else int(text) for text in match.groups())))
        return {row for row in found if row[-1] != 0}

    return {
        "cli": partial(look, read=lambda ask, id: " ".join(ask.cli("show", id)["waits_for"])),
        "its page": partial(look, read=lambda ask, id: ask.html("job_change", UUID(id))),
    }


def before() -> Rows:
    """Return of each blocked job how many come before it of those that the same thing blocks."""
    return sql(
        "SELECT j.id, COUNT(*) FROM {job} j JOIN {job} o ON o.blocked_by = j.blocked_by AND o.state = j.state"
        " AND (o.queue = j.queue OR j.blocked_by >= 'k') AND (o.priority > j.priority OR o.priority = j.priority"
        " AND (o.enqueued_at < j.enqueued_at OR o.enqueued_at = j.enqueued_at AND o.id < j.id))"
        " WHERE j.state = 'available' AND j.blocked_by <> '' GROUP BY j.id"
    )


def pruned(ask: Surfaces) -> Rows:
    said = ask.command("prunejobs", "--older-than", "PT2H", "--dry-run")
    return pairs({kind: int(count) for kind, count in re.findall(r"^(\w+): (\d+) finished", said, re.M)})


STRANDED = (
    "SELECT queue, COUNT(*) FROM {job} WHERE state = 'available' AND NOT EXISTS (SELECT 1 FROM {workerprocess} w"
    " WHERE state = 'running' AND heartbeat_at >= %(heard)s"
    " AND CAST(queues AS {text}) LIKE REPLACE('%%\"it\"%%', 'it', {job}.queue))"
)
PAUSED = "SELECT name FROM {queue} WHERE paused_at IS NOT NULL"
JOBS: dict[str, Number] = {
    "unfinished jobs by queue and state": Number(
        counted("SELECT queue, state, COUNT(*) FROM {job} WHERE finished_at IS NULL GROUP BY queue, state"),
        {
            "metrics": lambda ask: pairs(ask.metric("ojs_jobs")),
            "cli": lambda ask: pairs(
                {(row["name"], state): row[state] for row in ask.cli("queues") for state in UNFINISHED}
            ),
            "table": lambda ask: pairs(
                {(row["queue"], state): number(row[state]) for row in ask.table("queues") for state in UNFINISHED}
            ),
            "dashboard": states_of_the_dashboard,
            "http": partial(states_of_each_queue, states=UNFINISHED),
        },
    ),
    "all jobs by queue and state": Number(
        counted("SELECT queue, state, COUNT(*) FROM {job} GROUP BY queue, state"),
        {"http": partial(states_of_each_queue, states=STATES)},
    ),
    "unfinished jobs by state": Number(
        counted("SELECT state, COUNT(*) FROM {job} WHERE finished_at IS NULL GROUP BY state"),
        {
            name: lambda ask, page=page: pairs({state: number(n) for state, n in ask.page(page)["live"]["states"]})
            for name, page in (("dashboard", "dashboard"), ("its first lines", "dashboard_now"))
        },
    ),
    "jobs by state": Number(counted("SELECT state, COUNT(*) FROM {job} GROUP BY state"), every_list("state", STATES)),
    "jobs by queue": Number(
        counted("SELECT queue, COUNT(*) FROM {job} GROUP BY queue"),
        every_list("queue", "SELECT DISTINCT queue FROM {job}"),
    ),
    "jobs by type": Number(
        counted("SELECT type, COUNT(*) FROM {job} GROUP BY type"), every_list("type", "SELECT DISTINCT type FROM {job}")
    ),
    "jobs by worker": Number(
        counted("SELECT worker_id, COUNT(*) FROM {job} WHERE worker_id IS NOT NULL GROUP BY worker_id"),
        {
            "http": partial(by_filter, how="http", name="worker_id", values="SELECT DISTINCT worker_id FROM {job}"),
            "cli": partial(by_filter, how="cli", name="worker", values="SELECT DISTINCT worker_id FROM {job}"),
        },
    ),
    "jobs of the last half an hour by state": Number(
        counted("SELECT state, COUNT(*) FROM {job} WHERE created_at >= %(half_an_hour)s GROUP BY state"),
        {how: partial(by_filter, how=how, name="state", values=STATES, since="PT30M") for how in ("http", "cli")},
    ),
    "jobs that ended in the last minute": Number(
        counted("SELECT state, COUNT(*) FROM {job} WHERE finished_at >= %(minute)s GROUP BY state"),
        {
            "metrics": lambda ask: pairs(ask.metric("ojs_recently_finished_jobs")),
            "http": partial(by_filter, how="http", name="state", values=FINISHED, finished_since="PT1M"),
            "cli": partial(by_filter, how="cli", name="state", values=FINISHED, **{"finished-since": "PT1M"}),
        },
    ),
    "jobs that ended in the last day, as the dashboard has it": Number(
        lambda: sql("SELECT state, COUNT(*) FROM {job} WHERE finished_at >= %(edge)s GROUP BY state", edge=edge("day")),
        {"admin": partial(by_filter, how="admin", name="state", values=FINISHED, finished="day")},
    ),
    "discarded jobs": Number(
        counted(
            "SELECT CASE WHEN dead_letter THEN 'true' ELSE 'false' END AS dead, COUNT(*) FROM {job}"
            " WHERE state = 'discarded' GROUP BY dead_letter"
        ),
        {
            "metrics": lambda ask: pairs(ask.metric("ojs_discarded_jobs")),
            "http": partial(by_filter, how="http", name="dead_letter", values=("true", "false"), state="discarded"),
        },
    ),
    "dead letters": Number(
        counted("SELECT COUNT(*) FROM {job} WHERE state = 'discarded' AND dead_letter AND NOT payload_pruned"),
        {
            "http": lambda ask: {(ask.total("dead-letter"),)},
            "admin": lambda ask: {(ask.count("job", dead_letter="yes"),)},
            "cli": lambda ask: {(len(ask.cli("list", "--dead-letter")),)},
        },
    ),
    "stuck jobs": Number(
        counted("SELECT COUNT(*) FROM {job} WHERE state = 'active' AND lease_expires_at < %(now)s"),
        {"admin": lambda ask: {(ask.count("job", stuck="yes"),)}},
    ),
    "jobs with and without a fingerprint": Number(
        counted(
            "SELECT CASE WHEN fingerprint IS NULL THEN 'no' ELSE 'yes' END AS has, COUNT(*) FROM {job}"
            " GROUP BY CASE WHEN fingerprint IS NULL THEN 'no' ELSE 'yes' END"
        ),
        {"admin": partial(by_filter, how="admin", name="unique", values=("yes", "no"))},
    ),
    "how long the first job of a queue has waited": Number(
        waits,
        {
            "metrics": lambda ask: {
                (name, told(value))
                for (name,), value in ask.metric("ojs_queue_oldest_waiting_seconds").items()
                if value
            },
            "dashboard": lambda ask: {
                (name, wait)
                for name, wait in queues_of_the_dashboard(ask, lambda row: words(row["longest_wait"])).items()
                if wait
            },
        },
    ),
    "how long the first job of all has waited": Number(
        lambda: {(since(first),) for (first,) in sql("SELECT MIN(enqueued_at) FROM {job} WHERE state = 'available'")},
        {
            "dashboard": lambda ask: {(words(ask.page("dashboard")["live"]["wait"]),)},
            "its first lines": lambda ask: {(words(ask.page("dashboard_now")["live"]["wait"]),)},
        },
    ),
    "queues in which a job has waited for five minutes": Number(
        lambda: {
            (name,)
            for name, first in sql("SELECT queue, MIN(enqueued_at) FROM {job} WHERE state = 'available' GROUP BY queue")
            if timezone.now() - first > 5 * situation.MINUTE and (name,) not in sql(PAUSED)
        },
        {"dashboard": lambda ask: {(name,) for name in ask.page("dashboard")["long_waits"]}},
    ),
    "paused queues": Number(
        counted(PAUSED),
        {
            "metrics": lambda ask: {key for key, value in ask.metric("ojs_queue_paused").items() if value},
            "cli": lambda ask: {(row["name"],) for row in ask.cli("queues") if row["paused"]},
            "table": lambda ask: {(row["queue"],) for row in ask.table("queues") if row["paused"] != "-"},
            "dashboard": lambda ask: {
                (name,) for name, it in queues_of_the_dashboard(ask, lambda row: row["paused_since"]).items() if it
            },
            "http": lambda ask: {(row["name"],) for row in ask.http("queues", **LIST)["queues"] if row["paused"]},
            "admin": lambda ask: {(row.name,) for row in ask.list("queue", paused="yes").result_list},
        },
    ),
    "queues with limits": Number(
        counted(
            "SELECT max_per_second, concurrency_limit, name FROM {queue}"
            " WHERE concurrency_limit IS NOT NULL OR max_per_second IS NOT NULL"
        ),
        {
            "cli": lambda ask: {
                (row["max_per_second"], row["concurrency_limit"], row["name"])
                for row in ask.cli("queues")
                if row["concurrency_limit"] or row["max_per_second"]
            },
            "admin": lambda ask: {
                (row.max_per_second, row.concurrency_limit, row.name)
                for row in ask.list("queue", limited="yes").result_list
            },
        },
    ),
    "what runs of a queue's limit": Number(
        runs_of_limited_queues,
        {
            "dashboard": lambda ask: {
                (name, it) for name, it in queues_of_the_dashboard(ask, lambda row: row["limit"]).items() if it
            }
        },
    ),
    "unfinished jobs of queues that operators know": Number(
        counted(
            "SELECT name, (SELECT COUNT(*) FROM {job} WHERE queue = name AND finished_at IS NULL) AS n FROM {queue}"
        ),
        {"admin": lambda ask: pairs({row.name: row.unfinished for row in ask.list("queue").result_list})},
    ),
    "available jobs of queues that nobody takes": Number(
        counted(STRANDED + " AND queue NOT IN (SELECT name FROM {queue} WHERE paused_at IS NOT NULL) GROUP BY queue"),
        {"table": said_to_be_stranded},
    ),
    "queues that nobody takes": Number(
        counted(STRANDED.replace(", COUNT(*)", "") + " GROUP BY queue"),
        {
            "metrics": lambda ask: {key for key, value in ask.metric("ojs_queue_stranded").items() if value},
            "cli": lambda ask: {(row["name"],) for row in ask.cli("queues") if row["is_stranded"]},
            "dashboard": lambda ask: {(name,) for name in ask.page("dashboard")["stranded"]},
            "the dashboard's table": lambda ask: {
                (name,) for name, it in queues_of_the_dashboard(ask, lambda row: row["is_stranded"]).items() if it
            },
        },
    ),
    "types of waiting jobs without a handler": Number(
        counted(f"SELECT DISTINCT type FROM {{job}} WHERE state = 'available' AND type NOT IN ({DECLARED})"),
        {
            "dashboard": lambda ask: {(name,) for name in ask.page("dashboard")["unknown_types"].split(", ")},
            "table": lambda ask: {
                (name,)
                for name in re.search(r"No handler here: (.*)\. Such", ask.said("queues"))[1].split(", ")  # type: ignore[index]
            },
        },
    ),
    "events by type": Number(
        counted("SELECT type, COUNT(*) FROM {event} GROUP BY type"),
        {"http": lambda ask: pairs(Counter(each["type"] for each in ask.http("events", limit=1000)["events"]))},
    ),
    "jobs whose queue is paused": Number(
        counted(
            "SELECT j.id FROM {job} j JOIN {queue} q ON q.name = j.queue"
            " WHERE j.state = 'available' AND q.paused_at IS NOT NULL"
        ),
        said_of_each("is paused: no worker claims its jobs"),
    ),
    "jobs before each one that is blocked": Number(
        before, said_of_each(r"(No|\d+) jobs? (?:in its partition of the queue )?waits? before it")
    ),
    "jobs with slots of the partition that a job waits for": Number(
        counted(
            "SELECT j.id, (SELECT COUNT(*) FROM {job} a"
            " WHERE a.state = 'active' AND a.blocked_by = SUBSTR(j.blocked_by, 1, 33))"
            " + (SELECT COUNT(*) FROM {slot} s WHERE s.partition_id = SUBSTR(j.blocked_by, 1, 33)) AS used"
            " FROM {job} j WHERE j.state = 'available' AND j.blocked_by >= 'k' AND j.type <> 'by.rate'"
        ),
        said_of_each(r"(?s)^(?!.*No worker has looked at its limits).*?(\d+) of \d+ in use"),
    ),
    "jobs that would be pruned": Number(
        counted(
            "SELECT CASE WHEN dead_letter THEN 'dead_letter' ELSE state END AS kind, COUNT(*) FROM {job} WHERE"
            " finished_at <= %(hours)s AND NOT payload_pruned"
            " GROUP BY CASE WHEN dead_letter THEN 'dead_letter' ELSE state END"
        ),
        {"cli": pruned},
    ),
    "jobs that were verified": Number(
        counted("SELECT COUNT(*) FROM {job}"), {"cli": lambda ask: {(ask.cli("verify")["looked_at"],)}}
    ),
    "jobs that a command would cancel": Number(
        counted("SELECT COUNT(*) FROM {job} WHERE queue = 'keys' AND finished_at IS NULL"),
        {"cli": lambda ask: {(ask.cli("cancel", "--queue", "keys", "--dry-run")["count"],)}},
    ),
    "waiting jobs from before a queue was unique": Number(
        counted(
            "SELECT COUNT(*) FROM {job} WHERE queue = 'mail' AND state IN ('available', 'scheduled', 'retryable')"
            " AND fingerprint IS NULL"
        ),
        {"checks": lambda ask: {(from_before(),)}},
    ),
}


def from_before() -> int:
    with override_settings(OJS_UNIQUE={"UNIQUE_QUEUES": ["mail"]}):
        found = run_checks(tags=[Tags.database], databases=["default"])
    (warning,) = [each for each in found if each.id == "django_ojs_unique.W004"]
    return int(re.search(r"hold ([\d,]+) waiting", warning.msg)[1])  # type: ignore[index]
