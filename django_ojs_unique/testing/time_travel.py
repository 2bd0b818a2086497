"""Time travel: for a while, Django's clock and the database's clock show another time.

In Python, the engine's only clock is `database_now`, which adds to `django.utils.timezone.now` how far the database's
clock is from the host's. Django looks `datetime` up in its own module: so a replacement there reaches every caller,
also ``from django.utils.timezone import now``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.db import transaction
from django.db.models import F, Value
from django.db.models.functions import Cast, Now
from django.utils import timezone

from ..db.dialect import ClaimRequest
from ..db.fast.rows import UnreadRows
from ..db.postgresql import PostgreSQL
from ..exceptions import InvalidRequest
from ..lifecycle import write
from ..ojs.durations import parse_duration


@contextmanager
def travel(to: timedelta | str | float | datetime) -> Iterator[None]:
    """Move the time of this process forward or back until the end of the block; the clock goes on from there.

    ``to``: a timedelta, an ISO 8601 duration or seconds from now, or an aware datetime. Inside another `travel`, a
    duration counts from that time. Jobs that fall due do not run by themselves; call `run_jobs`. It moves
    `django.utils.timezone.now`, `Now` in queries, and the time that jobs go by; not ``datetime.now()``.

    Raises InvalidRequest for any other value.
    """
    shift = _shift(to, timezone.now())
    with (
        patch.object(timezone, "datetime", _clock(shift)),
        patch.object(Now, "resolve_expression", _now_as_a_value),
        patch.object(PostgreSQL, "claim", _claiming_later(PostgreSQL.claim, shift)),
    ):
        yield


def _shift(to: Any, now: datetime) -> timedelta:
    if isinstance(to, str):
        try:
            to = now + parse_duration(to)
        except ValueError as error:
            raise InvalidRequest.at("to", str(error), value=to, hint="Write 'PT1H', 'P7D', 'P1M'.") from None
    if isinstance(to, (int, float)) and not isinstance(to, bool):
        with suppress(ValueError, OverflowError):
            to = timedelta(seconds=to)
    if isinstance(to, timedelta):
        return to
    if not isinstance(to, datetime):
        hint = "Write a timedelta, an ISO 8601 duration, seconds, or an aware datetime."
        raise InvalidRequest.at("to", "is neither a length of time nor a moment", value=to, hint=hint)
    if timezone.is_naive(to) is not timezone.is_naive(now):
        raise InvalidRequest.at("to", "is naive or aware, and timezone.now() is not", value=to)
    return to - now


class _Plain(type):
    """Makes every plain datetime an instance, because Django's module also uses ``isinstance(value, datetime)``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


def _clock(shift: timedelta) -> type[datetime]:
    before = timezone.datetime  # type: ignore[attr-defined] # that of a `travel` around this one

    class Both(_Plain, type(datetime)):  # type: ignore[misc] # freezegun's class has a metaclass of its own
        pass

    class Later(datetime, metaclass=Both):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return before.now(tz) + shift

    return Later


def _now_as_a_value(expression: Now, *args: Any, **kwargs: Any) -> Any:
    # Cast, because MariaDB would return a selected parameter as a string.
    value = Cast(Value(timezone.now(), expression.output_field), expression.output_field)
    return value.resolve_expression(*args, **kwargs)


def _claiming_later(claim: Callable[..., UnreadRows], shift: timedelta) -> Callable[..., UnreadRows]:
    """Wrap the claim to move the new leases: on PostgreSQL its statement sets them by the server's clock."""

    def claim_later(self: PostgreSQL, wanted: ClaimRequest, overlap: Callable[[], Any] | None = None) -> UnreadRows:
        jobs = self.model._default_manager.using(self.connection.alias)
        with transaction.atomic(using=jobs.db):
            claimed = claim(self, wanted, overlap)
            write(jobs.filter(pk__in=[job.id for job in claimed]), lease_expires_at=F("lease_expires_at") + shift)
        return claimed

    return claim_later
