"""What the commands share: the database option, the reading of numbers, and a check that the tables exist."""

from __future__ import annotations

import argparse

from django.core.management.base import CommandError, CommandParser
from django.db import InterfaceError, OperationalError, connections, router

from ..db.schema import find_lack
from ..models import Job

HIGHEST = 2**31 - 1


def add_database(parser: CommandParser) -> None:
    """Declare ``--database``."""
    parser.add_argument(
        "--database",
        default=router.db_for_write(Job),
        choices=list(connections),
        help="The database of the jobs (default: %(default)s).",
    )


def require_tables(using: str) -> None:
    """Raise CommandError if the database does not answer, or lacks a migration or a table of the package."""
    try:
        lack = find_lack(using)
    except (OperationalError, InterfaceError) as error:
        raise does_not_answer(using, error) from error
    if lack:
        raise CommandError(lack)


def does_not_answer(using: str, error: Exception) -> CommandError:
    """Return the error of a command that cannot reach its database."""
    return CommandError(f"Database {using!r} does not answer: {one_line(error)}")


def one_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return " ".join(str(error).split())


def whole_number(text: str, *, most: int = HIGHEST) -> int:
    """Read a whole number from 1 to ``most``."""
    if not text.isdecimal() or not 1 <= int(text[:20]) <= most:
        wanted = "of at least 1" if most == HIGHEST else f"from 1 to {most:,}"
        raise argparse.ArgumentTypeError(f"must be a whole number {wanted}, not {text!r}")
    return int(text)


def seconds_or_zero(text: str) -> float:
    """Read a number of seconds, 0 or more."""
    return 0.0 if text == "0" else seconds(text)


def seconds(text: str, *, least: float = 0) -> float:
    """Read a number of seconds above 0, at least ``least`` and at most a year."""
    try:
        number = float(text)
    except ValueError:
        number = -1.0
    if not 0 < number <= 86_400 * 365:
        raise argparse.ArgumentTypeError(f"must be a number above 0, up to a year, not {text!r}")
    if number < least:
        raise argparse.ArgumentTypeError(f"must be at least {least} seconds, not {text!r}")
    return number
