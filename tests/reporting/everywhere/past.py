"""The numbers of what happened."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable
from functools import partial
from typing import Any

from tests.reporting.everywhere.questions import (
    SPANS,
    Number,
    Rows,
    Surface,
    edge,
    queues_of_the_dashboard,
)
from tests.reporting.everywhere.surfaces import Surfaces, number, pairs, ranked, sql

ENDED = "state = 'completed' OR state = 'discarded' AND attempt > 0"
"""How jobs end that have run to their end: one that expired before its first run has not failed."""


def happened(span: str) -> Rows:
    begin = edge(span)
    enqueued = sql("SELECT 'enqueued', COUNT(*) FROM {job} WHERE created_at >= %(edge)s", edge=begin)
    suppressed = sql("SELECT 'suppressed', COUNT(*) FROM {suppressedenqueue} WHERE created_at >= %(edge)s", edge=begin)
    completed = sql(
        "SELECT 'completed', COUNT(*) FROM {job} WHERE state = 'completed' AND finished_at >= %(edge)s", edge=begin
    )
    return enqueued | suppressed | completed


def ended(span: str, state: str) -> Rows:
    return sql(
        f"SELECT queue, COUNT(*) FROM {{job}} WHERE state = '{state}' AND ({ENDED}) AND finished_at >= %(edge)s"
        " GROUP BY queue",
        edge=edge(span),
    )


def failed(span: str) -> Rows:
    return {(sum(count for _, count in ended(span, "discarded")),)}


def said_in_chart(ask: Surfaces, span: str) -> dict[str, int]:
    sentence = ask.page("dashboard", span=span)["charts"][0]["chart"].sentence
    return {name: int(count.replace(",", "")) for count, name in re.findall(r"([\d,]+) (\w+)[,.]", sentence)[:4]}


def happened_in_chart(ask: Surfaces, span: str) -> Rows:
    return pairs({name: n for name, n in said_in_chart(ask, span).items() if name != "failed"})


def lengths(what: str, begin: str, end: str, ask: Surfaces | None = None) -> dict[str, list[float]]:
    rows = sql(
        f"SELECT id, {what}, {begin}, {end} FROM {{job}} WHERE state = 'completed' AND finished_at >= %(edge)s",
        edge=edge("day"),
    )
    found: dict[str, list[float]] = defaultdict(list)
    for _, name, start, stop in rows:
        if start is not None and stop >= start:
            found[name].append((stop - start).total_seconds())
    return found


def in_words(length: float) -> str:
    for unit, size in (("h", 3600), ("min", 60), ("s", 1)):
        if length >= size:
            return f"{length / size:.1f} {unit}"
    return f"{length * 1000:.0f} ms"


def causes() -> Rows:
    for_good = sql(
        "SELECT type, COUNT(*) FROM {job} WHERE state = 'discarded' AND attempt > 0 AND finished_at >= %(edge)s"
        " GROUP BY type",
        edge=edge("day"),
    )
    waiting = sql("SELECT type, COUNT(*) FROM {job} WHERE state = 'retryable' GROUP BY type")
    return {(*row, "failed") for row in for_good} | {(*row, "to be retried") for row in waiting}


def causes_of_the_dashboard(ask: Surfaces) -> Rows:
    found: Counter[tuple[str, str]] = Counter()
    for row in ask.page("dashboard", span="day")["failures"]["rows"]:
        found[row["type"], "failed"] += number(row["failed"])
        found[row["type"], "to be retried"] += number(row["retrying"])
    return {(type, count, what) for (type, what), count in found.items() if count}


def rates() -> Rows:
    completed, broken = (dict(ended("day", state)) for state in ("completed", "discarded"))
    return {
        (name, f"{broken.get(name, 0) / (broken.get(name, 0) + completed.get(name, 0)):.1%}")
        for name in completed | broken
    }


def column(name: str, read: Callable[[Any], Any] = number) -> Surface:
    return lambda ask: pairs(queues_of_the_dashboard(ask, lambda row: read(row[name]), span="day"))


PAST: dict[str, Number] = {
    **{
        f"what happened in the last {span}": Number(
            partial(happened, span), {"dashboard": partial(happened_in_chart, span=span)}
        )
        for span in SPANS
    },
    **{
        f"what failed in the last {span}": Number(
            partial(failed, span),
            {"dashboard": lambda ask, span=span: {(said_in_chart(ask, span)["failed"],)}},
        )
        for span in SPANS
    },
    "completed jobs by queue": Number(partial(ended, "day", "completed"), {"dashboard": column("completed")}),
    "failed jobs by queue": Number(partial(ended, "day", "discarded"), {"dashboard": column("failed")}),
    "failure rates": Number(rates, {"dashboard": column("failure_rate", str)}),
    "why jobs fail": Number(causes, {"dashboard": causes_of_the_dashboard}),
    "how long runs took": Number(
        lambda: {
            (
                type,
                len(numbers),
                in_words(ranked(numbers, 0.5)),
                in_words(ranked(numbers, 0.95)),
                in_words(max(numbers)),
            )
            for type, numbers in lengths("type", "started_at", "finished_at").items()
        },
        {
            "dashboard": lambda ask: {
                (row["type"], number(row["count"]), *map(str, row["lengths"]))
                for row in ask.page("dashboard", span="day")["runs"]
            }
        },
    ),
    "how long jobs waited": Number(
        lambda: {
            (name, in_words(ranked(numbers, 0.5)), in_words(ranked(numbers, 0.95)))
            for name, numbers in lengths("queue", "enqueued_at", "started_at").items()
        },
        {
            "dashboard": lambda ask: {
                (name, *map(str, found))
                for name, found in queues_of_the_dashboard(ask, lambda row: row["waited"], span="day").items()
                if found[0] != "-"
            }
        },
    ),
}
