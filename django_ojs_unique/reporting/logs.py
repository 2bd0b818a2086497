"""Logs: untrusted text in a record cannot begin a new record, or send control characters to a terminal."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from .text import harmless

LOGGERS = tuple(f"django_ojs_unique{name}" for name in ("", ".api", ".enqueue", ".idempotency", ".worker"))
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
