"""A list of jobs on disk for verify and rekey, so that memory does not depend on the number of jobs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing
from datetime import UTC
from typing import Any, Self
from uuid import UUID

from django.db.models import QuerySet

GROUP = 500
"""The most jobs of one fingerprint that are decided on together."""
PAGE = 500
"""About how many jobs are read, or decided on in one transaction."""


class Spool:
    """Jobs grouped by the fingerprint that they should have.

    A context manager.
    """

    def __init__(self) -> None:
        self._file = sqlite3.connect("")  # SQLite makes a temporary file
        self._file.executescript(
            "PRAGMA synchronous = OFF;"
            "CREATE TABLE job (id BLOB PRIMARY KEY, fingerprint TEXT, created_at TEXT);"
            "CREATE INDEX in_order ON job (fingerprint, created_at, id);"
            "CREATE TABLE counting (fingerprint TEXT, id BLOB, wanted TEXT, created_at TEXT)"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._file.close()

    def __len__(self) -> int:
        return int(self._file.execute("SELECT COUNT(*) FROM job").fetchone()[0])

    def add(self, jobs: Iterable[tuple[Any, str | None]]) -> None:
        """Add rows with the fingerprints that they should have; a row that was added before is not changed."""
        self._file.executemany(
            "INSERT OR IGNORE INTO job VALUES (?, ?, ?)", [_line(row, wanted) for row, wanted in jobs]
        )

    def note(self, jobs: Iterable[tuple[Any, str | None]]) -> None:
        """Note rows that count for others of their fingerprint, for `add_who_shares`; else as `add`."""
        self._file.executemany(
            "INSERT INTO counting VALUES (?, ?, ?, ?)", [(row.fingerprint, *_line(row, wanted)) for row, wanted in jobs]
        )

    def add_who_shares(self) -> None:
        """Add the noted jobs that share a fingerprint with another one now, or will after the repair."""
        self._file.executescript(
            "CREATE INDEX by_fingerprint ON counting (fingerprint);"
            "INSERT OR IGNORE INTO job SELECT id, wanted, created_at FROM counting WHERE fingerprint IN"
            " (SELECT fingerprint FROM counting GROUP BY fingerprint HAVING COUNT(*) > 1"
            " UNION SELECT fingerprint FROM job)"
        )

    def parts(self) -> Iterator[list[tuple[str, list[UUID]]]]:
        """Yield the groups as lists of about `PAGE` jobs together."""
        parts: list[tuple[str, list[UUID]]] = []
        count = 0
        for group in self._groups():
            parts.append(group)
            count += len(group[1])
            if count >= PAGE or len(group[1]) == GROUP:  # the next group may be of the same fingerprint
                yield parts
                parts, count = [], 0
        if parts:
            yield parts

    def _groups(self) -> Iterator[tuple[str, list[UUID]]]:
        """Yield each fingerprint with the ids of its jobs, the oldest first, in pieces of at most `GROUP` jobs."""
        with closing(self._file.cursor()) as cursor:
            cursor.execute("SELECT fingerprint, id FROM job ORDER BY fingerprint, created_at, id")
            group: list[UUID] = []
            current = ""
            for name, id in cursor:
                if group and (name != current or len(group) == GROUP):
                    yield current, group
                    group = []
                current = name
                group.append(UUID(bytes=id))
            if group:
                yield current, group


def _line(row: Any, wanted: str | None) -> tuple[bytes, str, str]:
    return row.pk.bytes, wanted or "", row.created_at.astimezone(UTC).isoformat("T", "microseconds")


def pages(jobs: QuerySet[Any]) -> Iterator[list[Any]]:
    """Yield all rows in the order of their primary keys, `PAGE` at a time."""
    last = None
    while rows := list((jobs if last is None else jobs.filter(pk__gt=last)).order_by("pk")[:PAGE]):
        yield rows
        last = rows[-1].pk
