"""The database's clock, by which leases, schedules and retries are timed."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

from django.db import connections

_NOW = {
    "postgresql": "SELECT clock_timestamp()",
    "mysql": "SELECT UTC_TIMESTAMP(6)",
    "sqlite": "SELECT strftime('%Y-%m-%d %H:%M:%f', 'now')",
}


class DatabaseClock:
    """Reads the database's clock now and then, and goes on by this machine's monotonic one in between.

    So all workers share one time, and a jump of a machine's own clock moves nothing.
    """

    def __init__(self, using: str) -> None:
        self._using = using
        self._reading: tuple[datetime, float] | None = None
        """What was read, and when on the monotonic clock; one object, as several threads ask."""

    def now(self) -> datetime:
        """Return the time, aware, in UTC."""
        if (reading := self._reading) is None:
            return self.read()
        moment, read_on = reading
        return moment + timedelta(seconds=time.monotonic() - read_on)

    def read(self) -> datetime:
        """Ask the database."""
        connection = connections[self._using]
        with connection.cursor() as cursor:
            cursor.execute(_NOW.get(connection.vendor, "SELECT CURRENT_TIMESTAMP"))
            value = cursor.fetchone()[0]
        moment = datetime.fromisoformat(value) if isinstance(value, str) else value
        moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
        self._reading = moment, time.monotonic()
        return moment
