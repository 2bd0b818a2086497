"""Spans of time that end now, in parts."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from django.utils.timezone import localtime


@dataclass(frozen=True, slots=True)
class Span:
    """A span of time that ends now, in ``parts`` of the same ``length``."""

    name: str
    length: timedelta
    parts: int

    @property
    def whole(self) -> timedelta:
        return self.length * self.parts

    def edges(self, now: datetime) -> list[datetime]:
        """Return the moments where the parts begin and end, at round local times; the last is in the future."""
        local = localtime(now)
        seconds = int(self.length.total_seconds())
        offset = int((local.utcoffset() or timedelta()).total_seconds())
        last = (int(now.timestamp()) + offset) // seconds * seconds - offset
        first = datetime.fromtimestamp(last - (self.parts - 1) * seconds, UTC)
        return [first + number * self.length for number in range(self.parts + 1)]


SPANS = {
    span.name: span
    for span in (
        Span("hour", timedelta(minutes=5), 12),
        Span("day", timedelta(hours=1), 24),
        Span("week", timedelta(hours=6), 28),
    )
}
