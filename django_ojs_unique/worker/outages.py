"""Outages of the database: what they look like, and how long to wait before the next try."""

from __future__ import annotations

from contextlib import suppress

from django.db import DatabaseError, InterfaceError, InternalError, OperationalError, connections

DATABASE_FAILED = (OperationalError, InterfaceError, InternalError)
LONGEST_PAUSE = 10.0


def drop(using: str) -> None:
    """Close a connection that failed; one that cannot be closed is dropped all the same."""
    with suppress(DatabaseError, InterfaceError):
        connections[using].close()


def pause_after(failures: int) -> float:
    """Return the seconds to wait after so many failures in a row: doubling, up to ten."""
    return min(0.25 * 2.0 ** min(failures, 10), LONGEST_PAUSE)
