"""What a number is: plain SQL, and how each surface is asked for it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from django.utils import timezone

from tests.reporting.everywhere.surfaces import Surfaces, sql, words

UNFINISHED = ("scheduled", "available", "active", "retryable", "pending")
FINISHED = ("completed", "cancelled", "discarded")
STATES = (*UNFINISHED, *FINISHED)
STANDINGS = ("running", "quiet", "stopping", "silent")
SPANS = {"hour": (5, 12), "day": (60, 24), "week": (360, 28)}
"""The minutes of a part of the dashboard's charts, and the number of parts."""
DECLARED = "'mail.send', 'mail.fail', 'mail.die', 'mail.bury', 'mail.skip', 'by.key', 'by.rate', 'export', 'double',"
DECLARED += " 'fair', 'fair.limited', 'step', 'step.dies', 'tick', 'tock', 'alone'"

Rows = set[tuple[Any, ...]]
Surface = Callable[[Surfaces], Rows]


class Number(NamedTuple):
    """A number: what plain SQL says, and how each surface is asked."""

    sql: Callable[[], Rows]
    surfaces: dict[str, Surface]


def counted(statement: str) -> Callable[[], Rows]:
    return partial(sql, statement)


def edge(span: str) -> datetime:
    """Return when the dashboard's charts begin, at a round local time."""
    length, parts = SPANS[span]
    local = timezone.localtime()
    offset = int(local.utcoffset().total_seconds()) // 60  # type: ignore[union-attr]
    part = (int(local.timestamp()) // 60 + offset) // length - parts + 1
    return datetime.fromtimestamp((part * length - offset) * 60, UTC)


def queues_of_the_dashboard(ask: Surfaces, read: Callable[[Any], Any], **query: Any) -> dict[str, Any]:
    return {words(row["name"]): read(row) for row in ask.page("dashboard", **query)["queues"]}
