"""Tables that fit into the terminal, and the same for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from ...reporting.text import harmless, shortened

LEAST_WIDTH = 8


class Column(NamedTuple):
    """What is said of each row: under a ``heading`` in a table, and by a ``name`` in JSON; one of them may be missing.

    ``read`` returns it: by default the attribute of that name, or the row. ``show`` writes it for people. On a terminal
    that is too narrow, it is ``cut``.
    """

    heading: str = ""
    name: str = ""
    read: Callable[[Any], Any] | None = None
    show: Callable[[Any], object] = str
    cut: bool = False

    def value(self, row: Any) -> Any:
        if self.read is not None:
            return self.read(row)
        return getattr(row, self.name) if self.name else row


def as_json(columns: Sequence[Column], row: Any) -> dict[str, Any]:
    """Return what the columns say of a row, by their names."""
    return {column.name: column.value(row) for column in columns if column.name}


def table(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, width: int | None, cut: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a table; if they exceed ``width``, shorten the columns ``cut``, the widest first."""
    cells = [headings, *([harmless(str(cell)) for cell in row] for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    while width is not None and sum(widths) + 2 * (len(widths) - 1) > width:
        widest = max(cut, key=lambda column: widths[column])
        if widths[widest] <= LEAST_WIDTH:
            break
        widths[widest] -= 1
    for row in cells:
        yield "  ".join(_fit(cell, size) for cell, size in zip(row, widths, strict=True)).rstrip()


def folded(
    headings: Sequence[str], rows: Sequence[Sequence[object]], *, width: int, cut: Sequence[int], below: int
) -> Iterator[str]:
    """Yield the lines of a table whose columns from ``below`` on are a second line under each row."""
    heading, *lines = table(headings[:below], [row[:below] for row in rows], width=width, cut=cut)
    yield heading
    for line, row in zip(lines, rows, strict=True):
        yield line
        cells = [
            f"{name}: {harmless(str(cell))}" for name, cell in zip(headings[below:], row[below:], strict=True) if cell
        ]
        if cells:
            yield shortened(f"    {'  '.join(cells)}", width)


def _fit(text: str, size: int) -> str:
    return text.ljust(size) if len(text) <= size else f"{text[: size - 1]}…"
