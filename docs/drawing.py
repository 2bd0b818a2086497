"""What the pictures share. Each stands on light paper, so that it can be read on a light page and on a dark one."""

from collections.abc import Iterable
from html import escape

STYLE = """
    text { font: 14px system-ui, sans-serif; fill: #1b1f24; text-anchor: middle }
    .note { font-size: 13px; fill: #57606a }
    .left { text-anchor: start }
    .paper { fill: #f8fafc }
    .plain { fill: #e5e7eb; stroke: #6b7280 }
    .blue { fill: #dbeafe; stroke: #2563eb }
    .green { fill: #dcfce7; stroke: #15803d }
    .red { fill: #fee2e2; stroke: #b91c1c }
    .yellow { fill: #fef3c7; stroke: #b45309 }
    .frame { fill: none; stroke: #57606a; stroke-dasharray: 5 4 }
    .arrow { fill: none; stroke: #57606a; stroke-width: 1.5; marker-end: url(#head) }
    .line { fill: none; stroke: #57606a }
"""
HEAD = (
    '<marker id="head" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0 L8 4 L0 8 Z" fill="#57606a"/></marker>'
)


def picture(width: float, height: float, label: str, parts: Iterable[str]) -> str:
    """Return the SVG, which a screen reader reads as ``label``."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img"'
            f' aria-label="{escape(label)}">',
            f"  <style>{STYLE}  </style>",
            f"  {HEAD}",
            f'  <rect class="paper" width="{width}" height="{height}" rx="12"/>',
            *(f"  {part}" for part in parts),
            "</svg>\n",
        ]
    )


def box(x: float, y: float, width: float, height: float, text: str = "", kind: str = "plain") -> str:
    """Draw a box around its centre, with a text in it, whose lines ``|`` divides."""
    rect = (
        f'<rect class="{kind}" x="{x - width / 2:g}" y="{y - height / 2:g}" width="{width}" height="{height}" rx="8"/>'
    )
    lines = text.split("|") if text else []
    top = y + 5 - 9 * (len(lines) - 1)
    return rect + "".join(write(x, top + 18 * number, line, "") for number, line in enumerate(lines))


def write(x: float, y: float, text: str, kind: str = "note") -> str:
    of = f' class="{kind}"' if kind else ""
    return f'<text{of} x="{x:g}" y="{y:g}">{escape(text)}</text>'


def arrow(path: str, kind: str = "arrow") -> str:
    """Draw an SVG path with a head at its end; with ``line`` as its kind it has none."""
    return f'<path class="{kind}" d="{path}"/>'
