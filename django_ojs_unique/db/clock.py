"""The database's clock, which times leases, schedules and retries."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta
from typing import Any

from django.conf import settings
from django.db import connections
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from .dialects import kind_of


class DatabaseClock:
    """Reads the database's clock now and then, and adds the time of this machine's monotonic clock in between.

    So all workers share one time, and a jump of a machine's own clock has no effect.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._reading: tuple[datetime, float] | None = None
        """The time read, and the monotonic time of the reading; one object, because several threads use it."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        if (reading := self._reading) is None:
            return self.read()
        moment, read_on = reading
        return moment + timedelta(seconds=time.monotonic() - read_on)

    def read(self) -> datetime:
        """Read the time from the database and return it."""
        connection = connections[self._using]
        with connection.cursor() as cursor:
            cursor.execute(kind_of(connection).now)
            value = cursor.fetchone()[0]
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        self._reading = moment, time.monotonic()
        return moment


def moment_of(value: Any, connection: Any) -> datetime:
    """Return a time that a cursor of a connection returned, as a `DateTimeField` would."""
    moment: Any = parse_datetime(value) if isinstance(value, str) else value
    return timezone.make_aware(moment, connection.timezone) if settings.USE_TZ and timezone.is_naive(moment) else moment
