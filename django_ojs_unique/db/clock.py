"""The database's clock: every time that is compared with a stored one, or stored to be compared, is read from it.

A process asks the database for its time now and then, and keeps how far the clock of the host is from it. So a call
costs no statement. The host's clock may jump, and the process may be suspended: both show in a comparison with a
steady clock. SQLite has no clock but that of the host.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from asyncio import _get_running_loop
from contextlib import closing
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from django.conf import settings
from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone
from django.utils.dateparse import parse_datetime

logger = logging.getLogger("django_ojs_unique.clock")

QUERIES = {
    "mysql": "SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    "postgresql": "SELECT extract(epoch FROM clock_timestamp())",
}
"""By vendor: the query for the seconds since 1970; other databases have no clock but the host's."""
SECONDS = 5.0
"""After how long the database is asked again."""
OFF = 1.0
"""How many seconds a host's clock may be off before that is said."""
SECONDS_AFTER_ERROR = 1.0
"""After how long it is asked again when it did not answer."""
_JUMP = 0.05
"""How far the host's clock moves against the steady clock when it has been set; seconds."""

_HOST, _HOST_ROUGHLY, _STEADY = 0, 1, 2
if sys.platform == "win32":

    def _time_of(clock: int) -> float:
        return time.monotonic() if clock == _STEADY else time.time()
else:
    _HOST = time.CLOCK_REALTIME
    _HOST_ROUGHLY = 5 if sys.platform == "linux" else _HOST
    """CLOCK_REALTIME_COARSE: time-machine replaces CLOCK_REALTIME; freezegun replaces neither."""
    _STEADY = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
    _time_of = time.clock_gettime


class _Reading(NamedTuple):
    """How far the database's clock is ahead of the host's."""

    offset: timedelta = timedelta()
    drift: float = 0.0
    """How far the host's clock was ahead of the steady clock; seconds."""
    until: float = math.inf
    """When to ask again, on the steady clock."""


_HOSTS_CLOCK = _Reading()
_readings: dict[str, _Reading] = {}
"""The last reading of each database of this process."""


def database_now(using: str, *, may_ask: bool = True) -> datetime:
    """Return the time of a database, aware: `timezone.now` and how far the host's clock is from the database's.

    The database is asked when the last answer is some seconds old, or when the host's clock has jumped; in an event
    loop, and without ``may_ask``, only if it was never asked. Nobody who counts statements sees that. Raises what the
    next statement would raise if the database was never asked and does not answer.
    """
    offset, now = _current(using, may_ask).offset, timezone.now()
    return now + offset if offset else now


def seconds_ahead(using: str) -> float:
    """Return how many seconds the host's clock is ahead of a database's. Raises like `database_now`."""
    return (-_current(using, may_ask=True).offset).total_seconds()


def is_off(seconds: float) -> bool:
    """Tell whether a clock that is ahead by so much, or behind, is wrong."""
    return abs(seconds) >= OFF


def offset_text(seconds: float, using: str) -> str:
    """Say how far the host's clock is from a database's."""
    direction = "ahead of" if seconds > 0 else "behind"
    return f"The clock of this host is {abs(seconds):,.1f} seconds {direction} that of database {using!r}"


def _current(using: str, may_ask: bool) -> _Reading:
    known = _readings.get(using)
    if known is None or (known is not _HOSTS_CLOCK and not _still_holds(known)):
        return _read(using, known, may_ask)
    return known


def _still_holds(reading: _Reading) -> bool:
    _, drift, until = reading
    steady = _time_of(_STEADY)
    return steady < until and -_JUMP < _time_of(_HOST_ROUGHLY) - steady - drift < _JUMP


def _read(using: str, last: _Reading | None, may_ask: bool) -> _Reading:
    steady = _time_of(_STEADY)
    drift = _time_of(_HOST_ROUGHLY) - steady
    known = None if last is None else _after(last, drift)
    if known is not None and not (may_ask and _get_running_loop() is None):
        return known
    connection = connections[using]
    if (query := QUERIES.get(connection.vendor)) is None:
        return _readings.setdefault(using, _HOSTS_CLOCK)
    try:
        least, most = _ask(connection, query)
    except Exception:
        if known is None:
            raise
        reading = _readings[using] = known._replace(until=steady + SECONDS_AFTER_ERROR)
        return reading
    # What agrees with the answer is kept: so the time does not move for nothing.
    offset = timedelta() if known is None else known.offset
    if not least <= offset.total_seconds() <= most:
        offset = timedelta(seconds=(least + most) / 2)
    reading = _readings[using] = _Reading(offset, drift, steady + SECONDS)
    _tell(using, timedelta() if last is None else last.offset, offset)
    return reading


def _after(last: _Reading, drift: float) -> _Reading:
    """Return what is known without a question: where the host's clock has jumped, the database's has not."""
    jump = drift - last.drift
    if abs(jump) <= _JUMP:
        return last
    return last._replace(offset=last.offset - timedelta(seconds=jump), drift=drift)


def _ask(connection: BaseDatabaseWrapper, query: str) -> tuple[float, float]:
    """Return the least and the greatest offset, in seconds, that agree with the answer of the database."""
    connection.validate_no_broken_transaction()
    connection.close_if_health_check_failed()
    connection.ensure_connection()
    # Not Django's cursor, which counts and shows its statements.
    with connection.wrap_database_errors, closing(connection.connection.cursor()) as cursor:
        is_replaced = abs(_time_of(_HOST) - _time_of(_HOST_ROUGHLY)) > _JUMP
        host, precision = (_HOST_ROUGHLY, 0.02) if is_replaced else (_HOST, 1e-5)
        asked = _time_of(host)
        cursor.execute(query)
        (answer,) = cursor.fetchone()
        answered = _time_of(host)
    return float(answer) - answered - precision, float(answer) - asked + precision


def _tell(using: str, before: timedelta, offset: timedelta) -> None:
    """Log that the host's clock is wrong, or right again, when that changes."""
    ahead, was = (-offset).total_seconds(), (-before).total_seconds()
    if is_off(ahead) and is_off(ahead - was):
        logger.warning("%s. Jobs go by the database's.", offset_text(ahead, using))
    elif is_off(was) and not is_off(ahead):
        logger.info("The clock of this host agrees with that of database %r again.", using)


def moment_of(value: Any, connection: Any) -> datetime:
    """Return a time that a cursor of a connection returned, as a `DateTimeField` would."""
    moment: Any = parse_datetime(value) if isinstance(value, str) else value
    return timezone.make_aware(moment, connection.timezone) if settings.USE_TZ and timezone.is_naive(moment) else moment
