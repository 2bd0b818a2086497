"""Pictures of charts, drawn by pygal if it is installed: without scripts or external fonts, in light and dark."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from math import ceil, floor, log10
from typing import Any

from django.utils.translation import gettext

from .charts import Chart

WIDTH, HEIGHT = 720, 300
MOST_LABELS = 7
MOST_LINES = 5

_LINE = 28
_MARKS = ("a4 4 0 1 0 8 0a4 4 0 1 0-8 0z", "v-4h8v8h-8z", "m0 4l4-8 4 8z", "l4-5 4 5-4 5z")
"""The SVG path of each series' mark, which begins four units left of its centre: circle, square, triangle, diamond."""

_DASHES = ("none", "9 4", "2 4", "12 4 2 4")
_LIGHT = ("#1d5f9e", "#8a5200", "#1e6b3a", "#b3261e")
_DARK = ("#8cc4f5", "#f0b866", "#7fd39b", "#ff9a92")


def can_draw() -> bool:
    """Return whether pygal is installed."""
    return find_spec("pygal") is not None


def draw(chart: Chart) -> bytes:
    """Return a chart as an SVG document."""
    line, style = _pygal()
    nothing = ("none",) * len(chart.series)
    picture = line(
        width=WIDTH,
        height=HEIGHT,
        title=None,
        css=[f"inline:{_css()}"],
        js=[],
        no_prefix=True,
        style=style(colors=nothing, value_colors=nothing, font_family="system-ui, sans-serif", **_FONT_SIZES),
        legend_at_bottom=True,
        legend_at_bottom_columns=len(chart.series),
        legend_box_size=_LINE,
        truncate_label=-1,
        truncate_legend=-1,
        margin=8,
        no_data_text=gettext("Nothing to show"),
        value_formatter=lambda value: f"{value:,.0f}" if chart.is_counted else chart.format(value),
    )
    every = ceil(len(chart.parts) / MOST_LABELS)
    picture.x_labels = [
        part.split(gettext("{start} to {end}").format(start="", end=""))[0] if not at % every else ""
        for at, part in enumerate(chart.parts)
    ]
    picture.y_labels = scale(max((n for row in chart.series.values() for n in row if n), default=1), chart.is_counted)
    picture.range = (0, picture.y_labels[-1])
    for name, numbers in chart.series.items():
        picture.add(name, list(numbers), allow_interruptions=True)
    picture.add_xml_filter(lambda root: _refine(root, chart.sentence))
    return bytes(picture.render())


def scale(highest: float, is_counted: bool) -> list[float]:
    """Return the values at which lines are drawn: a few round numbers from 0 to ``highest`` or above."""
    magnitude = 10.0 ** floor(log10(highest))
    step = next(step for share in (0.2, 0.5, 1, 2, 5) if (step := share * magnitude) * MOST_LINES >= highest)
    step = max(step, 1) if is_counted else step
    return [number * step for number in range(ceil(highest / step) + 1)]


_FONT_SIZES = {"label_font_size": 13, "major_label_font_size": 13, "legend_font_size": 14, "no_data_font_size": 16}


def _pygal() -> tuple[Any, Any]:
    """Import pygal without its import hook for maps, which makes every later import warn up to Python 3.11."""
    hooks = list(sys.meta_path)
    from pygal import Line
    from pygal.style import Style

    sys.meta_path[:] = [hook for hook in sys.meta_path if hook in hooks or type(hook).__module__ != "pygal"]
    return Line, Style


def _css() -> str:
    def palette(ink: str, faint: str, colours: tuple[str, ...]) -> str:
        names = {"ink": ink, "faint": faint, **{f"s{at}": colour for at, colour in enumerate(colours)}}
        return f"svg{{{''.join(f'--{name}:{value};' for name, value in names.items())}}}"

    series = "".join(
        f".color-{at}{{stroke:var(--s{at});fill:var(--s{at})}}.color-{at} .line"
        f"{{fill:none;stroke-width:2;stroke-dasharray:{dash}}}"
        for at, dash in enumerate(_DASHES)
    )
    return (
        f"{palette('#333', '#ddd', _LIGHT)}@media (prefers-color-scheme: dark){{{palette('#eee', '#444', _DARK)}}}"
        "text{fill:var(--ink);stroke:none}.background{fill:none}.axis .line{stroke:var(--faint);fill:none}"
        ".axis.y text{text-anchor:end}.axis.x text,.no_data{text-anchor:middle}.axis.x .line{stroke:none}" + series
    )


def _refine(root: Any, title: str) -> Any:
    """Remove the nodes that only a script would use, and give each series a mark, so that colour is not needed."""
    for parent in list(root.iter()):
        for node in list(parent):
            if _kind(node) in ("", "script", "desc") or "tooltip-overlay" in node.get("class", ""):
                parent.remove(node)
    for node in list(root.iter()):
        at = node.get("class", "").partition("color-")[2].partition(" ")[0]
        if _kind(node) == "rect" and at:
            _make_legend(node, int(at))
        elif _kind(node) == "g" and at:
            for circle in [each for each in node.iter() if _kind(each) == "circle"]:
                _make_mark(circle, int(at), float(circle.get("cx")), float(circle.get("cy")))
    next(node for node in root if _kind(node) == "title").text = title
    return root


def _make_legend(box: Any, at: int) -> None:
    """Replace the box of a legend by a piece of the series' line with its mark."""
    x, y = float(box.get("x")), float(box.get("y")) + _LINE / 2
    box.attrib.clear()
    box.tag = "g"
    box.set("class", f"color-{at}")
    box.append(box.makeelement("path", {"class": "line", "d": f"M{x} {y}h{_LINE}"}))
    box.append(box.makeelement("circle", {}))
    _make_mark(box[1], at, x + _LINE / 2, y)


def _make_mark(circle: Any, at: int, x: float, y: float) -> None:
    circle.attrib.clear()
    circle.tag = "path"
    circle.set("d", f"M{x - 4:.1f} {y:.1f}{_MARKS[at]}")


def _kind(node: Any) -> str:
    """Return the name of an element; empty for a comment."""
    return node.tag.rpartition("}")[2] if isinstance(node.tag, str) else ""
