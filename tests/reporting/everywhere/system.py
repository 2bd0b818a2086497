"""The numbers of workers, limits and the inbox."""

from __future__ import annotations

import re
from collections import Counter, defaultdict

from tests.reporting.everywhere.questions import (
    STANDINGS,
    Number,
    Rows,
    counted,
)
from tests.reporting.everywhere.surfaces import Surfaces, number, pairs, since, sql, told, words


def stands() -> Rows:
    statement = (
        "SELECT CASE WHEN heartbeat_at < %(heard)s THEN 'silent' ELSE state END AS stands, COUNT(*)"
        " FROM {workerprocess} GROUP BY CASE WHEN heartbeat_at < %(heard)s THEN 'silent' ELSE state END"
    )
    return sql(statement)


def what_workers_run() -> Rows:
    active = "SELECT worker_id, COUNT(*) FROM {job} WHERE state = 'active' GROUP BY worker_id"
    stopped = "SELECT worker_id, COUNT(*) FROM {stoppedrun} WHERE lease_expires_at > %(now)s GROUP BY worker_id"
    return pairs(Counter(dict(sql(active))) + Counter(dict(sql(stopped))))


def limits_in_use() -> Rows:
    """Return the name of each limit with what runs, what waits, and for how many partitions. Each type has its own."""
    running: Counter[str] = Counter()
    named = {"by.key": ["key"], "by.rate": ["rate"], "export": ["exports"], "fair.limited": ["lane"]}
    named["double"] = ["one", "two"]
    active = sql("SELECT type, COUNT(*) FROM {job} WHERE state = 'active' GROUP BY type")
    stopped = sql(
        "SELECT type, COUNT(*) FROM {stoppedrun} s JOIN {job} j ON j.id = s.job_id"
        " WHERE s.lease_expires_at > %(now)s GROUP BY type"
    )
    for type, count in (*active, *stopped):
        running.update(dict.fromkeys(named.get(type, ()), count))
    waiting = {
        name: (count, partitions)
        for name, partitions, count in sql(
            "SELECT p.name, COUNT(DISTINCT p.id), COUNT(*) FROM {job} j"
            " JOIN {limitpartition} p ON p.id = SUBSTR(j.blocked_by, 1, 33) WHERE j.state = 'available' GROUP BY p.name"
        )
    }
    return {(name, running[name], *waiting.get(name, (0, 0))) for name in {*running, *waiting}}


LIMIT_METRICS = ("ojs_limit_running_jobs", "ojs_limit_waiting_jobs", "ojs_limit_waiting_partitions")
IN_USE = ("running", "waiting", "waiting_partitions")
ON_PAGE = re.compile(r"running: (\d+), waiting: (\d+), partitions with waiting jobs: (\d+)")


def limits_of_metrics(ask: Surfaces) -> Rows:
    found: dict[str, list[int]] = defaultdict(list)
    for metric in LIMIT_METRICS:
        for (name,), value in ask.metric(metric).items():
            found[name].append(int(value))
    return {(name, *counts) for name, counts in found.items() if any(counts)}


def limits_of_their_pages(ask: Surfaces) -> Rows:
    found = set()
    for name, *_ in limits_in_use():
        shown = ask.page("limitoverride_change", name)["adminform"].form.instance
        now = ask.page("limitoverride_change", name)["adminform"].model_admin.now(shown)
        found.add((name, *map(int, ON_PAGE.fullmatch(now).groups())))  # type: ignore[union-attr]
    return found


def partitions_of_key() -> Rows:
    """Return how many partitions of the limit have so many running and waiting jobs."""
    statement = "SELECT SUBSTR(blocked_by, 1, 33), state, COUNT(*) FROM {job} WHERE type = 'by.key'"
    statement += " AND state IN ('active', 'available') AND blocked_by >= 'k' GROUP BY SUBSTR(blocked_by, 1, 33), state"
    found: dict[str, Counter[str]] = defaultdict(Counter)
    for partition, state, count in sql(statement):
        found[partition][state] = count
    return pairs(Counter((each["active"], each["available"]) for each in found.values()))


WAITED_FOR = (
    "SELECT SUBSTR(blocked_by, 1, 33), COUNT(*) FROM {job} WHERE state = 'available' AND blocked_by >= 'k'"
    " GROUP BY SUBSTR(blocked_by, 1, 33)"
)
AROUND: dict[str, Number] = {
    "workers by how they stand": Number(
        stands,
        {
            "metrics": lambda ask: pairs(ask.metric("ojs_workers")),
            "cli": lambda ask: pairs(Counter(row["standing"] for row in ask.cli("workers"))),
            "table": lambda ask: pairs(Counter(row["state"] for row in ask.table("workers"))),
            "dashboard": lambda ask: pairs(Counter(words(row["standing"]) for row in ask.page("dashboard")["workers"])),
            "admin": lambda ask: pairs({name: ask.count("workerprocess", standing=name) for name in STANDINGS}),
            "http": lambda ask: pairs(Counter(row["state"] for row in ask.http("workers")["workers"])),
        },
    ),
    "what workers have claimed and done": Number(
        counted("SELECT id, claimed, finalized FROM {workerprocess}"),
        {
            "cli": lambda ask: {(row["id"], row["claimed"], row["finalized"]) for row in ask.cli("workers")},
            "table": lambda ask: {
                (row["worker"], int(row["claimed"]), int(row["done"])) for row in ask.table("workers")
            },
            "dashboard": lambda ask: {
                (row["id"], number(row["claimed"]), number(row["finalized"]))
                for row in ask.page("dashboard")["workers"]
            },
            "http": lambda ask: {(row["id"], row["held"], row["finalized"]) for row in ask.http("workers")["workers"]},
        },
    ),
    "what workers run": Number(
        what_workers_run,
        {
            "dashboard": lambda ask: pairs(
                {
                    row["id"]: row["runs"].count("<li>") + max(0, row["more_runs"])
                    for row in ask.page("dashboard")["workers"]
                }
            ),
            "their pages": lambda ask: pairs(
                {
                    name: ask.page("workerprocess_change", name)["adminform"]
                    .model_admin.claimed_jobs(ask.page("workerprocess_change", name)["original"])
                    .count("<li>")
                    for name, _ in what_workers_run()
                }
            ),
        },
    ),
    "what limits do": Number(
        limits_in_use,
        {
            "metrics": limits_of_metrics,
            "cli": lambda ask: {
                (row["name"], *(row[name] for name in IN_USE))
                for row in ask.cli("limits")
                if any(row[name] for name in IN_USE)
            },
            "table": lambda ask: {
                (row["limit"], *map(number, counts))
                for row in ask.table("limits")
                if any(map(number, counts := (row["running"], row["waiting"], row["partitions waited for"])))
            },
            "admin": lambda ask: {
                (row["name"], *map(number, row["counts"][1:]))
                for row in ask.page("limitoverride_changelist")["rows"]
                if any(map(number, row["counts"][1:]))
            },
            "their pages": limits_of_their_pages,
        },
    ),
    "partitions by limit": Number(
        counted("SELECT name, COUNT(*) FROM {limitpartition} GROUP BY name"),
        {
            "cli": lambda ask: pairs({row["name"]: row["keys"] for row in ask.cli("limits")}),
            "admin": lambda ask: pairs(
                {row["name"]: number(row["counts"][0]) for row in ask.page("limitoverride_changelist")["rows"]}
            ),
        },
    ),
    "the partitions of one limit": Number(
        partitions_of_key,
        {
            "cli": lambda ask: pairs(
                Counter((row["running"], row["waiting"]) for row in ask.cli("limits", "key")["keys_with_jobs"])
            ),
            "table": lambda ask: pairs(
                Counter(
                    (int(running), int(waiting))
                    for running, waiting in re.findall(
                        r"^key: args.n \d +(\d+) +(\d+) ", ask.text("limits", "key"), re.M
                    )
                )
            ),
        },
    ),
    "the five partitions for which most jobs wait": Number(
        lambda: pairs(Counter(sorted((row[-1] for row in sql(WAITED_FOR)), reverse=True)[:5])),
        {
            "dashboard": lambda ask: pairs(
                Counter(number(row["waiting"]) for row in ask.page("dashboard")["waiting_partitions"])
            )
        },
    ),
    "requests in the inbox": Number(
        counted(
            "SELECT CASE WHEN refused_at IS NULL THEN 'waiting' ELSE 'refused' END AS what, COUNT(*) FROM {inbox}"
            " GROUP BY CASE WHEN refused_at IS NULL THEN 'waiting' ELSE 'refused' END"
        ),
        {
            "metrics": lambda ask: pairs(ask.metric("ojs_inbox_requests")),
            "admin": lambda ask: pairs(
                {name: ask.count("inboxrequest", state=name) for name in ("waiting", "refused")}
            ),
            "cli": lambda ask: pairs(
                Counter("refused" if row["refused_at"] else "waiting" for row in ask.cli("inbox"))
            ),
        },
    ),
    "how long the first request has waited": Number(
        lambda: {(since(first),) for (first,) in sql("SELECT MIN(requested_at) FROM {inbox} WHERE refused_at IS NULL")},
        {"metrics": lambda ask: {(told(value),) for value in ask.metric("ojs_inbox_oldest_waiting_seconds").values()}},
    ),
}
