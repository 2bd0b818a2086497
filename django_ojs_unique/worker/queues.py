"""The queues from which a worker claims."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from django.db import connections
from django.db.models import QuerySet

from ..db.index_scan import walk
from ..exceptions import InvalidRequest
from ..ojs.names import matches, queue_name
from ..ojs.states import JobState


class QueueFilter:
    """Queue names and patterns with ``*``; ``exclude`` overrides ``include``.

    Raises InvalidRequest for a text that is neither a queue name nor a pattern.
    """

    def __init__(self, include: Iterable[str] | None = None, exclude: Iterable[str] = ()) -> None:
        self.include = ["*"] if include is None else [_pattern(text, "queues") for text in include]
        self.exclude = [_pattern(text, "exclude") for text in exclude]
        self._names = None if any("*" in text for text in self.include) else [*dict.fromkeys(self.include)]

    def __contains__(self, queue: str) -> bool:
        return matches(queue, self.include) and not matches(queue, self.exclude)

    def waiting(self, jobs: QuerySet[Any]) -> list[str]:
        """Return the queues to claim from: the named ones if there is no pattern, else matching ones with jobs."""
        if self._names is not None:
            return [name for name in self._names if not matches(name, self.exclude)]
        return [name for name in waiting_queues(jobs) if name in self]

    def to_list(self) -> list[str]:
        """Return the patterns; those to exclude begin with "!"."""
        return [*self.include, *(f"!{text}" for text in self.exclude)]


def waiting_queues(jobs: QuerySet[Any]) -> list[str]:
    """Return the queues that have available jobs: one statement with one index look-up per queue."""
    rows = f"{jobs.model._meta.db_table} WHERE state = '{JobState.AVAILABLE}' AND finished_at IS NULL"
    with connections[jobs.db].cursor() as cursor:
        cursor.execute(
            f"WITH RECURSIVE {walk('waiting', 'queue', rows, 2**31 - 1)}"
            " SELECT queue FROM waiting WHERE queue IS NOT NULL",
            [],
        )
        return [row[0] for row in cursor.fetchall()]


def _pattern(text: str, field: str) -> str:
    try:
        queue_name(text.replace("*", "x") if isinstance(text, str) else text)
    except InvalidRequest:
        raise InvalidRequest.at(
            field, "is neither a queue name nor a pattern of one", value=text, hint="Write 'emails' or 'emails-*'."
        ) from None
    return text
