"""The charts of the dashboard: the same numbers as a sentence, a table and a picture.

A picture is an SVG document without scripts or external fonts, in light and dark.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from math import ceil, floor, log10
from typing import Any

from django.template.loader import render_to_string
from django.utils.formats import date_format
from django.utils.timezone import localtime
from django.utils.translation import gettext

from ..reporting.activity import Activity, activity
from ..reporting.times import SPANS, Span
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


WIDTH, HEIGHT = 720, 300
MOST_LABELS = 7
MOST_LINES = 5

_LEFT, _RIGHT, _TOP, _BOTTOM = 72, WIDTH - 8, 14, HEIGHT - 58
_MARKS = ("a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "v-4h8v8h-8z", "m0 4l4-8 4 8z", "l4-5 4 5-4 5z")
"""The path of each series' mark, which begins four units left of its centre: circle, square, triangle, diamond."""

_DASHES = ("none", "9 4", "2 4", "12 4 2 4")
_LIGHT = ("#1d5f9e", "#8a5200", "#1e6b3a", "#b3261e")
_DARK = ("#8cc4f5", "#f0b866", "#7fd39b", "#ff9a92")


def draw(chart: Chart) -> bytes:
    """Return a chart as an SVG document."""
    known = [number for numbers in chart.series.values() for number in numbers if number is not None]
    lines, every = scale(max(known, default=0) or 1, chart.is_counted), ceil(len(chart.parts) / MOST_LABELS)
    context = {
        "chart": chart,
        "nothing": "" if known else gettext("Nothing to show"),
        "lines": [(_y(at, lines[-1]), f"{at:,.0f}" if chart.is_counted else chart.format(at)) for at in lines],
        "labels": [
            (_x(at, chart), part.split(gettext("{start} to {end}").format(start="", end=""))[0])
            for at, part in enumerate(chart.parts)
            if not at % every
        ],
        "series": [
            _series(at, name, numbers, chart, lines[-1]) for at, (name, numbers) in enumerate(chart.series.items())
        ],
    }
    return render_to_string("admin/django_ojs_unique/chart.svg", context).encode()


def scale(highest: float, is_counted: bool) -> list[float]:
    """Return the values at which lines are drawn: a few round numbers from 0 to ``highest`` or above."""
    magnitude = 10.0 ** floor(log10(highest))
    step = next(step for share in (0.2, 0.5, 1, 2, 5) if (step := share * magnitude) * MOST_LINES >= highest)
    step = max(step, 1) if is_counted else step
    return [number * step for number in range(ceil(highest / step) + 1)]


def _series(at: int, name: str, numbers: Numbers, chart: Chart, top: float) -> dict[str, Any]:
    """Return what the template needs of one series; a part without a number interrupts the line."""
    line, marks, is_drawn = "", "", False
    for part, number in enumerate(numbers):
        if number is not None:
            x, y = _x(part, chart), _y(number, top)
            line += f"{'L' if is_drawn else 'M'}{x} {y}"
            marks += f"M{float(x) - 4:.1f} {y}{_MARKS[at]}"
        is_drawn = number is not None
    legend = 8 + at * (WIDTH - 16) // len(chart.series)
    return {
        "name": name,
        "line": line,
        "marks": marks,
        "legend": legend,
        "mark": f"M{legend + 10} {HEIGHT - 14}{_MARKS[at]}",
        "dashes": _DASHES[at],
        "light": _LIGHT[at],
        "dark": _DARK[at],
    }


def _x(part: int, chart: Chart) -> str:
    return f"{_LEFT + (_RIGHT - _LEFT) * (part + 0.5) / len(chart.parts):.1f}"


def _y(number: float, top: float) -> str:
    return f"{_BOTTOM - (_BOTTOM - _TOP) * number / top:.1f}"
