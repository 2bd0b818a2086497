"""Text for a terminal: nothing in it can move the cursor, and tables fit the window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime

LEAST_WIDTH = 8
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))


def harmless(text: str, *, lines: bool = False) -> str:
    """Show control characters, and those that turn the direction of text, by their escapes; ``lines`` keeps lines."""
    if lines:
        return "\n".join(map(harmless, text.expandtabs().split("\n")))
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def age(moment: datetime | None, now: datetime) -> str:
    """Say how long ago, in the largest unit that fits: ``5m``; what is still to come as ``in 5m``."""
    if moment is None:
        return "-"
    seconds = int((now - moment).total_seconds())
    unit, length = next(((u, n) for u, n in _UNITS if abs(seconds) >= n), _UNITS[-1])
    return f"{'in ' if seconds < 0 else ''}{abs(seconds) // length}{unit}"


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None, cut: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table; where they exceed ``width``, shorten the columns ``cut``, the widest first."""
    cells = [headings, *([harmless(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(cut, key=lambda column: widths[column])
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    for row in cells:
        yield "  ".join(_fit(cell, size) for cell, size in zip(row, widths, strict=True)).rstrip()


def _fit(text: str, size: int) -> str:
    return text.ljust(size) if len(text) <= size else f"{text[: size - 1]}…"
