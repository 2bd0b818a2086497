"""The filters that `jobs list`, `jobs cancel` and `jobs retry` share. A job must match all that are given."""

from __future__ import annotations

import argparse
from collections.abc import Collection, Mapping
from datetime import datetime
from typing import Any

from django.core.management.base import CommandParser
from django.db.models import Q, QuerySet
from django.utils import timezone

from ...conf import retention_period
from ...db.dialects import dialect_of
from ...insight.created import created_since
from ...ojs.states import INCOMPLETE, TERMINAL, JobState
from .subcommand import moment, queue, state, type_

NO_MATCH = "No job matches. Leave a filter out to match others; `jobs queues` shows the queues that have jobs."

_LOOKUPS = {
    "state": "state__in",
    "queue": "queue",
    "type": "type",
    "key": "key",
    "worker": "worker_id",
    "since": "created_at__gte",
    "until": "created_at__lt",
    "dead_letter": "dead_letter",
}

_FREE_TEXT = {"key", "worker_id"}


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
    parser.add_argument("--key", metavar="KEY", help="Only jobs that were enqueued with this key.")
    parser.add_argument("--worker", metavar="ID", help="Only jobs that this worker holds, or had last.")
    when = "2026-01-31T14:00, or PT30M for half an hour ago"
    parser.add_argument("--since", type=_past, metavar="TIME", help=f"Only jobs enqueued at or after: {when}.")
    parser.add_argument("--until", type=_past, metavar="TIME", help="Only jobs enqueued before that.")
    parser.add_argument(
        "--dead-letter", action="store_true", default=None, help="Only discarded jobs that are dead letters."
    )


def filters(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given filters as arguments of `QuerySet.filter`; empty if no filter was given."""
    return {lookup: options[name] for name, lookup in _LOOKUPS.items() if options[name] is not None}


def matching(jobs: QuerySet[Any], wanted: Mapping[str, Any]) -> QuerySet[Any]:
    """Return the jobs that match ``wanted``, the result of `filters`."""
    jobs = jobs.filter(**wanted)
    if "state__in" in wanted:
        jobs = in_states(jobs, wanted["state__in"])
    if _LOOKUPS["since"] in wanted:
        jobs = jobs.filter(created_since(wanted[_LOOKUPS["since"]]))
    dialect = dialect_of(jobs)
    return jobs.filter(*(dialect.exactly(name, wanted[name]) for name in _FREE_TEXT & wanted.keys()))


def in_states(jobs: QuerySet[Any], states: Collection[JobState]) -> QuerySet[Any]:
    """Return the jobs that are in one of the states."""
    implied = Q()  # there for the partial indexes
    if INCOMPLETE.issuperset(states):
        implied = Q(finished_at__isnull=True)
    elif TERMINAL.issuperset(states):
        implied = Q(finished_at__isnull=False, payload_pruned__in=[False, True])
    return jobs.filter(implied, state__in=sorted(states))


def _past(text: str) -> datetime:
    if not text.startswith("P"):
        return moment(text)
    try:
        return timezone.now() - retention_period(text)
    except (ValueError, OverflowError) as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}. Write PT30M or P1D.") from None
