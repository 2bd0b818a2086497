"""A host whose clock is wrong: it is ahead or behind, or jumps while a test runs."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.utils import timezone

from django_ojs_unique.db import clock


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

    with patch.object(clock, "_time_of", time_of), patch.object(timezone, "datetime", Datetime):
        try:
            yield host
        finally:
            clock._readings.clear()


class _Plain(type):
    """Makes every plain datetime an instance."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)
