"""Time travel: for a while, Django's clock and the database's say another time.

`django.utils.timezone.now` is the one clock of the engine in Python, and it looks `datetime` up in its own module:
what is put there reaches every caller, field defaults and ``from django.utils.timezone import now`` included.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from unittest.mock import patch

from django.db import transaction
from django.db.models import F, QuerySet, Value
from django.db.models.functions import Cast, Now
from django.utils import timezone

from ..exceptions import InvalidRequest
from ..ojs.durations import parse_duration
from ..worker import postgres
from ..worker.clock import DatabaseClock


@contextmanager
def travel(to: timedelta | str | datetime) -> Iterator[None]:
    """Let it be later (or earlier) in this process until the end of the block; from there, time goes on.

    ``to``: a timedelta or an ISO 8601 duration from now, or an aware datetime. Inside another journey it counts from
    there. What has fallen due happens when somebody looks, as always: `run_jobs` does. Moved are
    `django.utils.timezone.now`, `Now` in queries, and what the worker asks the database; not ``datetime.now()``.

    Raises InvalidRequest for what is none of these.
    """
    shift = _shift(to, timezone.now())
    with (
        patch.object(timezone, "datetime", _clock(_datetime(), shift)),
        patch.object(Now, "resolve_expression", _now_as_a_value),
        patch.multiple(DatabaseClock, now=_now, read=_now),
        patch.object(postgres, "claim", _claiming_later(postgres.claim, shift)),
    ):
        yield


def _shift(to: Any, now: datetime) -> timedelta:
    if isinstance(to, str):
        try:
            to = now + parse_duration(to)
        except ValueError as error:
            raise InvalidRequest.at("to", str(error), value=to, mend="Write 'PT1H', 'P7D', 'P1M'.") from None
    if isinstance(to, timedelta):
        return to
    if not isinstance(to, datetime):
        mend = "Write a timedelta, an ISO 8601 duration, or an aware datetime."
        raise InvalidRequest.at("to", "is neither a length of time nor a moment", value=to, mend=mend)
    if timezone.is_naive(to) is not timezone.is_naive(now):
        raise InvalidRequest.at("to", "is naive or aware, and timezone.now() is not", value=to)
    return to - now


class _Plain(type):
    """Makes each plain datetime an instance: Django's module also asks ``isinstance(value, datetime)``."""

    def __instancecheck__(cls, value: object) -> bool:
        return isinstance(value, datetime)


def _clock(before: type[datetime], shift: timedelta) -> type[datetime]:
    class Later(datetime, metaclass=_Plain):
        @classmethod
        def now(cls, tz: Any = None) -> datetime:  # type: ignore[override]
            return before.now(tz) + shift

    return Later


def _datetime() -> type[datetime]:
    return timezone.datetime  # type: ignore[attr-defined]


def _now(clock: object) -> datetime:
    return _datetime().now(UTC)


def _now_as_a_value(expression: Now, *args: Any, **kwargs: Any) -> Any:
    # Cast, as MariaDB would give a parameter that is selected back as a string.
    value = Cast(Value(timezone.now(), expression.output_field), expression.output_field)
    return value.resolve_expression(*args, **kwargs)


def _claiming_later(claim: Callable[..., list[Any]], shift: timedelta) -> Callable[..., list[Any]]:
    """PostgreSQL's claim counts the leases by its own clock, within one statement: move them."""

    def claim_later(jobs: QuerySet[Any], **options: Any) -> list[Any]:
        with transaction.atomic(using=jobs.db):
            claimed = claim(jobs, **options)
            jobs.filter(pk__in=[job.pk for job in claimed]).update(lease_expires_at=F("lease_expires_at") + shift)
        return claimed

    return claim_later
