"""Values as text for people, on a terminal, on a page or in a log: untrusted text cannot begin a new record there."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime, timedelta
from typing import Any

from django.utils import timezone

from ..exceptions import Message

MOST_COUNTED = 10_000
"""How many rows a list counts at most, and how many it lets an index find."""

_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60), ("s", 1))
_AGES = {"d": Message("{number}d"), "h": Message("{number}h"), "m": Message("{number}m"), "s": Message("{number}s")}


def harmless(text: str, *, lines: bool = False) -> str:
    """Escape control characters, and those that change the direction of text; ``lines`` keeps line ends."""
    if text.isprintable():
        return text
    if lines:
        return "\n".join(map(harmless, text.expandtabs().split("\n")))
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "surrogatepass").decode() for c in text)


def shortened(text: str, most: int) -> str:
    """Cut a text to ``most`` characters, the last of them an ellipsis where something was cut."""
    return text if len(text) <= most else f"{text[: most - 1]}…"


def age(moment: datetime | None, now: datetime) -> str:
    """Say how long ago a moment was, in the largest unit that fits: ``5m``; for a future one ``in 5m``."""
    if moment is None:
        return "-"
    seconds = int((now - moment).total_seconds())
    unit, length = next(((u, n) for u, n in _UNITS if abs(seconds) >= n), _UNITS[-1])
    text = Message(_AGES[unit], number=abs(seconds) // length)
    return Message("in {age}", age=text) if seconds < 0 else text


def distance(moment: datetime, now: datetime) -> str:
    """Say how far away a moment is, in the largest unit that fits: ``5m ago`` or ``in 5m``."""
    text = age(moment, now)
    return text if text.startswith("in ") else Message("{age} ago", age=text)


def duration_text(length: timedelta) -> str:
    """Say how long something took, in the largest unit that fits: ``350ms``, ``1.5s``, ``2.0m``."""
    seconds = length.total_seconds()
    unit, long = next(((u, n) for u, n in _UNITS if seconds >= n), ("ms", 0.001))
    return f"{seconds / long:.0f}ms" if unit == "ms" else f"{seconds / long:.1f}{unit}"


def full(moment: datetime) -> str:
    """Write a moment out in the project's time zone, to the second."""
    try:
        moment = timezone.localtime(moment)
    except OverflowError:  # at either end of the calendar
        return moment.isoformat()
    return f"{moment.replace(tzinfo=None).isoformat(' ', 'seconds')} {moment.tzname()}"


def listed(words: Iterable[str], last: str) -> str:
    """Join words as in a sentence: ``a, b or c``, if ``last`` is ``or``."""
    *others, final = list(words)
    return f"{', '.join(others)} {last} {final}" if others else final


def limits_text(limit: int | None, max_per_second: int | None) -> str:
    """Write the limits of a queue, such as "4, 10/s"; empty if it has none."""
    parts = [] if limit is None else [f"{limit}"]
    if max_per_second is not None:
        parts.append(f"{max_per_second}/s")
    return ", ".join(parts)


def count_text(count: int, is_cut: bool = False) -> str:
    """Write a number of jobs; with a plus sign if it ``is_cut``, or above `MOST_COUNTED`, which is written then."""
    return f"{min(count, MOST_COUNTED):,}{'+' if is_cut or count > MOST_COUNTED else ''}"


LOGGERS = tuple(f"django_ojs_unique{name}" for name in ("", ".api", ".clock", ".enqueue", ".idempotency", ".worker"))
"""All loggers of the package: child loggers do not inherit a filter."""


class Escaping(logging.Filter):
    """Escapes control characters in the arguments of a record, and indents its traceback."""

    def filter(self, record: logging.LogRecord) -> bool:
        with suppress(Exception):  # the text of an error may fail; the log's handler reports that
            _escape(record)
        return True


def escape_all() -> None:
    """Add the filter to every logger of the package; calling it twice does no harm."""
    for name in LOGGERS:
        logging.getLogger(name).addFilter(_ESCAPING)


def _escape(record: logging.LogRecord) -> None:
    if isinstance(record.args, Mapping):
        record.args = {name: _escaped(value) for name, value in record.args.items()}
    elif record.args:
        record.args = tuple(map(_escaped, record.args))
    if record.exc_info and not record.exc_text:
        trace = harmless(_FORMATTER.formatException(record.exc_info), lines=True)
        record.exc_text = "\n".join(f"  {line}" for line in trace.split("\n"))


def _escaped(value: Any) -> Any:
    return harmless(str(value)) if isinstance(value, (str, BaseException)) else value


_ESCAPING, _FORMATTER = Escaping(), logging.Formatter()
