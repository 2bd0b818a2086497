"""``manage.py prunejobs``: delete jobs that finished long ago."""

from __future__ import annotations

import argparse
from datetime import datetime, timedelta
from functools import partial
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser

from ...checks import TAG
from ...conf import retention_period, settings
from ...db.clock import database_now
from ...exceptions import did_you_mean
from ...maintenance.prune import ENDED, Pruned, due, preview, prune
from ...models import Event, Job, SuppressedEnqueue
from ...ojs.durations import format_duration
from ...ojs.states import KINDS
from ...progress import progress
from ..arguments import add_database, require_tables, whole_number

LARGEST_BATCH = 10_000


class Command(BaseCommand):
    help = (
        "Delete jobs that finished longer ago than OJS_UNIQUE['RETENTION'] says, and old suppressed enqueues and"
        " events. Workers do so, too, a batch at a time; this command does all of it now. A job that"
        " still counts as a duplicate loses only its payload (args, meta, tags, result, errors) until its window has"
        " ended. Safe while workers run."
    )
    requires_system_checks = [TAG]

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--state",
            action="append",
            type=_kind,
            metavar="STATE",
            help="Prune only completed, cancelled, discarded or dead_letter jobs, and no suppressed enqueues or"
            " events; may be repeated.",
        )
        parser.add_argument(
            "--older-than",
            type=_period,
            metavar="DURATION",
            help="Prune jobs that finished this long ago, such as P30D or PT12H, whatever the setting says.",
        )
        parser.add_argument("--dry-run", action="store_true", help="Say what would be done, and why; change nothing.")
        parser.add_argument(
            "--batch",
            type=partial(whole_number, most=LARGEST_BATCH),
            default=1000,
            metavar="N",
            help="Jobs of each kind in one transaction (default 1000): fewer hold locks for a shorter time.",
        )
        add_database(parser)

    def handle(
        self,
        *,
        state: list[str] | None,
        older_than: timedelta | None,
        dry_run: bool,
        batch: int,
        database: str,
        verbosity: int,
        **options: Any,
    ) -> None:
        require_tables(database)
        now, jobs = database_now(database), Job.objects.using(database)
        try:
            retention = {kind: older_than or settings.retention[kind] for kind in state or KINDS}
            records = {} if state else _records(database)
        except ValueError as error:
            raise CommandError(f"A retention in OJS_UNIQUE {error}: run `manage.py check`.") from None
        if dry_run:
            lines = _foresee(jobs, now, retention)
            for name, (rows, moment, period) in records.items():
                old = rows.filter(**{f"{moment}__lt": now - period}).count()
                lines.insert(-1, f"{name}: {old:,} older than {format_duration(period)}")
        else:
            pruned = _prune(jobs, now, retention, batch, verbosity=verbosity)
            lines = [_summary("deleted", pruned)]
            for name, (rows, _, _) in records.items():
                if old := sum(iter(partial(rows.prune, now), 0)):
                    lines.insert(-1, f"{old:,} {name} deleted.")
        if verbosity:
            self.stdout.write("\n".join(lines))


def _records(database: str) -> dict[str, tuple[Any, str, timedelta]]:
    """Return what else is pruned: by name, the rows, the field with their time, and how long they are kept."""
    return {
        "suppressed enqueues": (
            SuppressedEnqueue.objects.using(database), "created_at", settings.suppressed_retention
        ),
        "events": (Event.objects.using(database), "time", settings.event_retention),
    }  # fmt: skip


def _prune(jobs: Any, now: datetime, retention: dict[str, timedelta | None], batch: int, *, verbosity: int) -> Pruned:
    total = Pruned()
    with progress(verbosity, desc="pruned") as bar:
        if not bar.disable:
            bar.total = sum(rows.count() for rows in due(jobs, now, retention).values())
        while pruned := prune(jobs, now, batch, retention):
            total += pruned
            bar.update(pruned.deleted + pruned.payload_pruned)
    return total


def _foresee(jobs: Any, now: datetime, retention: dict[str, timedelta | None]) -> list[str]:
    """Return a line for each kind that says what would be done and why, and a last line with the sum."""
    lines, total = [], Pruned()
    found = due(jobs, now, retention)
    for kind, period in retention.items():
        if period is None:
            lines.append(f"{kind}: kept for ever")
            continue
        pruned = preview(found[kind], now)
        total += pruned
        lines.append(
            f"{kind}: {pruned.deleted + pruned.payload_pruned:,} finished {format_duration(period)} ago or earlier;"
            f" {pruned.deleted:,} to delete, {pruned.payload_pruned:,} to slim, as their windows are open"
        )
    ended = preview(found[ENDED], now)
    lines.append(f"kept without their payload: {ended.deleted:,} to delete, as their windows have ended")
    return [*lines, f"{_summary('would be deleted', total + ended)} Nothing was changed."]


def _summary(what: str, pruned: Pruned) -> str:
    return f"{pruned.deleted:,} {what}, {pruned.payload_pruned:,} kept for their windows without their payload."


def _kind(text: str) -> str:
    if text not in KINDS:
        raise argparse.ArgumentTypeError(f"{text!r} is no kind of finished job. {did_you_mean(text, KINDS)}")
    return text


def _period(text: str) -> timedelta:
    try:
        return retention_period(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{error}, not {text!r}. Write P30D or PT12H.") from None
