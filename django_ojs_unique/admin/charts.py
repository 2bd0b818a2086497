"""The charts of the dashboard: the same numbers as a sentence, a table and a picture."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise

from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from ..reporting.activity import Activity, activity
from ..reporting.spans import SPANS, Span
from ..reporting.waits import SAMPLE, Waits, waits
from .display import seconds

Numbers = Sequence[float | None]


@dataclass(frozen=True, slots=True)
class Chart:
    """Series of numbers over the parts of a span. ``format`` formats a number; ``sentence`` sums the chart up."""

    name: str
    title: str
    sentence: str
    parts: Sequence[str]
    series: Mapping[str, Numbers]
    format: Callable[[float | None], str]
    is_counted: bool
    note: str = ""

    @property
    def rows(self) -> list[tuple[str, list[str]]]:
        """The rows of the table: each part with its numbers, the newest first."""
        columns = zip(*self.series.values(), strict=True)
        return [(part, [*map(self.format, numbers)]) for part, numbers in zip(self.parts, columns, strict=True)][::-1]

    @property
    def version(self) -> str:
        """A version that changes with the numbers, so that a browser fetches a picture again only if it differs."""
        return hashlib.sha256(repr((self.parts, self.series)).encode()).hexdigest()[:12]


def chart(name: str, using: str, span: Span, now: datetime) -> Chart:
    """Query the numbers of one chart, and return it. Raises KeyError for an unknown name."""
    return _CHARTS[name](using, span, now)


def jobs_chart(happened: Activity, span: Span) -> Chart:
    """Show how many jobs were enqueued, suppressed, completed and failed."""
    series = {
        gettext("enqueued"): happened.enqueued,
        gettext("suppressed"): happened.suppressed,
        gettext("completed"): happened.completed,
        gettext("failed"): happened.failed,
    }
    parts = _parts(happened.edges, span)
    totals = {name: f"{sum(getattr(happened, name)):,}" for name in ("enqueued", "suppressed", "completed", "failed")}
    sentence = gettext(
        "Jobs since {since}: {enqueued} enqueued, {suppressed} suppressed, {completed} completed, {failed} failed."
    ).format(since=_clock(happened.edges[0], span), **totals)
    if any(happened.enqueued):
        busiest = max(range(span.parts), key=lambda part: happened.enqueued[part])
        most = gettext("Most were enqueued from {part}: {count}.")
        sentence += " " + most.format(part=parts[busiest], count=f"{max(happened.enqueued):,}")
    note = gettext("The newest part has not ended.")
    return Chart("jobs", gettext("Jobs"), sentence, parts, series, _count, is_counted=True, note=note)


def waits_chart(waited: Waits, span: Span) -> Chart:
    """Show how long jobs waited before they ran."""
    parts = _parts(waited.edges, span)
    known = [
        (part, half, most)
        for part, half, most in zip(parts, waited.median, waited.p95, strict=True)
        if most is not None
    ]
    nothing = gettext("No job that waited has completed since {since}.")
    sentence = nothing.format(since=_clock(waited.edges[0], span))
    if known:
        part, half, most = known[-1]
        worst = max(known, key=lambda row: row[2])
        sentence = gettext(
            "Of the jobs that completed from {part}, half had waited up to {half}, and 95 of 100 up to {most}."
            " The longest such wait is {longest}, from {worst}."
        ).format(part=part, half=seconds(half), most=seconds(most), longest=seconds(worst[2]), worst=worst[0])
    series = {gettext("half waited up to"): waited.median, gettext("95 of 100 waited up to"): waited.p95}
    note = gettext("Counted are the jobs that completed in each part.")
    if waited.is_sample:
        note = gettext("Counted are the newest {count} jobs that completed in each part.").format(count=SAMPLE)
    return Chart("waits", gettext("Waiting time"), sentence, parts, series, seconds, is_counted=False, note=note)


_CHARTS: dict[str, Callable[[str, Span, datetime], Chart]] = {
    "jobs": lambda using, span, now: jobs_chart(activity(using, span, now), span),
    "waits": lambda using, span, now: waits_chart(waits(using, span, now), span),
}


def _count(number: float | None) -> str:
    return f"{number:,}"


def _parts(edges: Sequence[datetime], span: Span) -> list[str]:
    text = gettext("{start} to {end}")
    return [text.format(start=_clock(start, span), end=f"{localtime(end):%H:%M}") for start, end in pairwise(edges)]


def _clock(moment: datetime, span: Span) -> str:
    return date_format(localtime(moment), "H:i" if span is SPANS["hour"] else "D H:i")
