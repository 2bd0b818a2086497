"""The database's time in a statement."""

from __future__ import annotations

from datetime import UTC
from typing import Any

from django.db.models.functions import Now

from .clock import database_now


class DatabaseNow(Now):
    """The time of the database as Django stores it: in the time zone of the connection, which is nearly always UTC.

    On MariaDB `Now` would use the session's time zone, and on SQLite always UTC.
    """

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"(UTC_TIMESTAMP(6) + INTERVAL {_seconds_from_utc(connection)} SECOND)"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        template = f"STRFTIME('%%%%Y-%%%%m-%%%%d %%%%H:%%%%M:%%%%f', 'NOW', '{_seconds_from_utc(connection)} seconds')"
        return self.as_sql(compiler, connection, template=template, **context)


def _seconds_from_utc(connection: Any) -> int:
    zone = connection.timezone
    offset = None if zone == UTC else database_now(connection.alias, may_ask=False).astimezone(zone).utcoffset()
    return 0 if offset is None else int(offset.total_seconds())
