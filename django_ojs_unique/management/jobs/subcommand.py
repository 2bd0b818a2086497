"""The base of all subcommands, and the readers of their arguments."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, ClassVar, TypeVar
from uuid import UUID

from django.core.management.base import CommandParser, OutputWrapper
from django.core.management.color import Style
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ...exceptions import InvalidRequest, did_you_mean
from ...models import Job, Queue
from ...ojs.names import job_key, job_type, limit_name, queue_name
from ...ojs.states import JobState
from ..arguments import HIGHEST, whole_number
from .answers import as_line
from .tables import Column, folded, table

Word = TypeVar("Word", bound=StrEnum)

CLEAR = "\x1b[2J\x1b[H"
"""Makes a terminal clear its screen, and go to the first line."""


class Subcommand:
    """One ``manage.py jobs <name>``. Its docstring is its help text; `run` does the work on one database.

    `say` is for people, and silent under ``--json``; `answer` is for programs, and silent without it.
    """

    name: ClassVar[str]

    def __init__(
        self, using: str, stdout: OutputWrapper, stderr: OutputWrapper, style: Style, *, json: bool = False
    ) -> None:
        self.using = using
        self.jobs = Job.objects.using(using)
        self.queues = Queue.objects.using(using)
        self.say = _silent if json else stdout.write
        self.warn = stderr.write
        self.style = style
        self.stdout = stdout
        self._json = json
        self._is_terminal = stdout.isatty()

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        """Declare the arguments of `run`."""

    def run(self, *args: Any, **options: Any) -> None:
        """Do the work, with the declared arguments. Raises CommandError if anything was refused."""
        raise NotImplementedError

    def answer(self, answer: Any) -> None:
        """Print an object or a list as one line of JSON. Call it once, before an error is raised."""
        if self._json:
            self.stdout.write(as_line(answer))

    def clear(self) -> None:
        """Clear the screen, if the output is a terminal and not for a program."""
        if self._is_terminal and not self._json:
            self.stdout.write(CLEAR, ending="")

    def print_columns(self, columns: Sequence[Column], rows: Sequence[Any]) -> None:
        """Print a table of the columns that have a heading."""
        shown = [column for column in columns if column.heading]
        cells = [[column.show(column.value(row)) for column in shown] for row in rows]
        cut = [number for number, column in enumerate(shown) if column.cut]
        self.print_table([column.heading for column in shown], cells, cut)

    def print_table(
        self, headings: Sequence[str], rows: Sequence[Sequence[object]], cut: Sequence[int], below: int | None = None
    ) -> None:
        """Print a table.

        On a terminal that is too narrow, the columns ``cut`` are shortened, and those from ``below`` on stand on a
        second line under each row.
        """
        width = shutil.get_terminal_size().columns if self._is_terminal else None
        heading, *lines = table(headings, rows, width=None, cut=cut)
        if width is not None and max(map(len, [heading, *lines])) > width:
            if below is None:
                heading, *lines = table(headings, rows, width=width, cut=cut)
            else:
                heading, *lines = folded(headings, rows, width=width, cut=cut, below=below)
        self.say(self.style.MIGRATE_HEADING(heading))
        for line in lines:
            self.say(line)


def _silent(text: str) -> None:
    pass


_FAILED = "A failed job is 'retryable' until its last attempt, and 'discarded' then."


def job_id(text: str) -> UUID:
    """Read a job's id."""
    return read_id(text, "list")


def read_id(text: str, shown_by: str) -> UUID:
    """Read an id that the subcommand ``shown_by`` shows."""
    try:
        return UUID(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a UUID; `manage.py jobs {shown_by}` shows ids") from None


def read_word(text: str, words: type[Word], noun: str) -> Word:
    """Read one of some words; ``noun`` is what one of them is called."""
    try:
        return words(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a {noun}. {did_you_mean(text, words)}") from None


def state(text: str) -> JobState:
    """Read a state."""
    if text.startswith("fail"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a state. {_FAILED}")
    return read_word(text, JobState, "state")


def queue(text: str) -> str:
    """Read the name of a queue."""
    return _refusing(queue_name, text)


def type_(text: str) -> str:
    """Read a job type."""
    return _refusing(job_type, text)


def key(text: str) -> str:
    """Read a job key."""
    return _refusing(job_key, text)


def limit_(text: str) -> str:
    """Read the name of a limit."""
    return _refusing(limit_name, text)


def number_or_none(text: str, *, most: int = HIGHEST) -> int | None:
    """Read a whole number from 1 to ``most``, or ``none``."""
    return None if text.lower() == "none" else whole_number(text, most=most)


def moment(text: str) -> datetime:
    """Read a date and time; without an offset, it is in the project's time zone."""
    try:
        value = parse_datetime(text)
        if value is not None:
            value = (value if timezone.is_aware(value) else timezone.make_aware(value)).astimezone(UTC)
    except (ValueError, OverflowError):  # in UTC it may be outside the calendar
        value = None
    if value is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no date and time; write 2026-01-31T14:00, or with Z at the end")
    return value


def _refusing(read: Callable[[str], str], text: str) -> str:
    try:
        return read(text)
    except InvalidRequest as error:
        raise argparse.ArgumentTypeError(error.message) from None
