"""A host whose clock is wrong: it is ahead or behind, or jumps while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique.db import clock

ON_A_SERVER = pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has the clock of the host")
_NOW = {"postgresql": "SELECT clock_timestamp()", "mysql": "SELECT UTC_TIMESTAMP(6)"}


def real_now() -> datetime:
    """Return the time by which the statements of the database go."""
    with connection.cursor() as cursor:
        cursor.execute(_NOW[connection.vendor])
        (moment,) = cursor.fetchone()
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


class HostClock:
    """The clock of this process: ``off`` by so much, from the next call on."""

    def __init__(self) -> None:
        self.off = timedelta()

    def ahead(self, **length: float) -> None:
        self.off = timedelta(**length)

    def behind(self, **length: float) -> None:
        self.off = -timedelta(**length)


@contextmanager
def host_clock() -> Iterator[HostClock]:
    """Let a test set the clock of this process: `timezone.now`, and what `db.clock` reads; the steady clocks go on."""
    host, read, now = HostClock(), clock._time_of, timezone.datetime.now

    class Datetime(datetime, metaclass=_Plain):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:
            return now(tz) + host.off

    def time_of(number: int) -> float:
        return read(number) + (0 if number == clock._STEADY else host.off.total_seconds())

    clock._readings.clear()
    with patch.object(clock, "_time_of", time_of), patch.object(timezone, "datetime", Datetime):
        try:
            yield host
        finally:
            clock._readings.clear()


class _Plain(type):
    """Makes every plain datetime an instance."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)
