"""The arguments of the filters that `jobs list`, `jobs cancel` and `jobs retry` share."""

from __future__ import annotations

import argparse
from datetime import datetime

from django.core.management.base import CommandParser
from django.db import router

from ...db.clock import database_now
from ...models import Job
from ...ojs.states import JobState
from ...reporting.job_filters import before
from .subcommand import key, moment, queue, state, type_

NO_MATCH = "No job matches. Leave a filter out to match others; `jobs queues` shows the queues that have jobs."
NO_DEAD_LETTER = (
    "No dead letter matches. A discarded job is one only if its retry policy has on_exhaustion='dead_letter': for the"
    " others leave --dead-letter out."
)


def add_filters(parser: CommandParser) -> None:
    """Declare the filters."""
    parser.add_argument(
        "--state",
        nargs="+",
        action="extend",
        type=state,
        metavar="STATE",
        help=f"Only jobs in these states: {', '.join(JobState)}.",
    )
    parser.add_argument("--queue", type=queue, metavar="QUEUE", help="Only jobs of this queue.")
    parser.add_argument("--type", type=type_, metavar="TYPE", help="Only jobs of this type, as in email.send.")
    parser.add_argument("--key", type=key, metavar="KEY", help="Only jobs that were enqueued with this key.")
    parser.add_argument("--worker", metavar="ID", help="Only jobs whose lease this worker has, or had last.")
    when = "2026-01-31T14:00, or PT30M for half an hour ago"
    parser.add_argument("--since", type=_past, metavar="TIME", help=f"Only jobs enqueued at or after: {when}.")
    parser.add_argument("--until", type=_past, metavar="TIME", help="Only jobs enqueued before that.")
    parser.add_argument("--finished-since", type=_past, metavar="TIME", help="Only jobs that ended at or after that.")
    parser.add_argument("--finished-until", type=_past, metavar="TIME", help="Only jobs that ended before that.")
    parser.add_argument(
        "--dead-letter", action="store_true", default=None, help="Only discarded jobs that are dead letters."
    )


def _past(text: str) -> datetime:
    try:
        return before(database_now(router.db_for_write(Job)), text) or moment(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}. Write PT30M or P1D.") from None
