"""Pictures of charts: SVG without scripts or external fonts, in light and dark."""

from __future__ import annotations

from math import ceil, floor, log10
from typing import Any

from django.template.loader import render_to_string
from django.utils.translation import gettext

from .charts import Chart, Numbers

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
