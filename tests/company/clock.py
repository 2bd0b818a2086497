"""Two clocks: the database's, which travels, and this process's, which may be off."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, timedelta
from types import SimpleNamespace
from unittest.mock import patch

from django.utils import timezone

from django_ojs_unique.db import clock
from django_ojs_unique.testing import time_travel, travel


@contextmanager
def travelling(shift: timedelta, *, off: timedelta) -> Iterator[None]:
    """Move the database's clock by ``shift``, and this process's by that and ``off``."""
    with travel(shift):
        right, read = timezone.datetime, clock._time_of
        database = SimpleNamespace(datetime=right, now=lambda: right.now(UTC))

        def time_of(number: int) -> float:
            return read(number) + (0 if number == clock._STEADY else off.total_seconds())

        with (
            patch.object(timezone, "datetime", time_travel._clock(off)),
            patch.object(time_travel, "timezone", database),  # `Now` is the database's
            patch.object(clock, "_time_of", time_of),
        ):
            yield
