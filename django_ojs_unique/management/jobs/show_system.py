"""Subcommands that show queues, workers and periodic jobs: queues, workers, crons."""

from __future__ import annotations

from contextlib import suppress
from datetime import datetime
from functools import partial
from operator import attrgetter
from time import sleep
from typing import Any

from django.core.management.base import CommandParser
from django.utils import timezone

from ...db.clock import database_now
from ...models import CronJob
from ...ojs.states import JobState
from ...reporting.queues import UNFINISHED, QueueReport, queues
from ...reporting.text import age, distance, limits_text
from ...reporting.unclaimed import every_unknown_type
from ...reporting.workers import (
    Taken,
    WorkerReport,
    is_stranded,
    misspelt,
    taken_by_running,
    untaken,
    workers,
)
from ..arguments import seconds
from .answers import fields
from .subcommand import Subcommand
from .tables import Column, as_json

PAUSE, SHORTEST_PAUSE = 2.0, 0.1
"""Seconds between two rounds of ``--watch``."""


class Watched(Subcommand):
    """A subcommand that shows a table, once or again and again."""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument(
            "--watch",
            nargs="?",
            type=partial(seconds, least=SHORTEST_PAUSE),
            const=PAUSE,
            metavar="SECONDS",
            help=f"Show it again every so many seconds (default {PAUSE:.0f}) until Ctrl-C.",
        )

    def keep_showing(self, watch: float | None) -> None:
        """Show the state of now, and every ``watch`` seconds again; None: only once."""
        if watch is None:
            self.show()
            return
        with suppress(KeyboardInterrupt):
            while True:
                self.clear()
                self.say(f"{timezone.localtime():%H:%M:%S}, every {watch:g} s. Ctrl-C ends it.")
                self.show()
                self.stdout.flush()
                sleep(watch)

    def show(self) -> None:
        """Show the state of now."""
        raise NotImplementedError


class Around(Watched):
    """A subcommand that shows a table and, below it, the queues and job types that no worker takes."""

    def run(self, *, watch: float | None, **options: Any) -> None:
        self.keep_showing(watch)

    def warn_of_what_nobody_takes(
        self, found: list[QueueReport], present: list[WorkerReport], taken: list[Taken]
    ) -> None:
        """Name the queues that no worker takes, except paused ones, and the types without a handler here."""
        stranded = [one for one in found if not one.paused_at and is_stranded(one, taken)]
        if stranded and not taken:
            some = "a queue" if len(stranded) == 1 else f"{len(stranded):,} queues"
            self.warn(f"Jobs wait in {some}, and no worker runs: `manage.py runworker` starts one.")
        else:
            used = {one.name for one in found if one.depth}
            for one in stranded:
                problem = untaken(one.name, taken).removesuffix(".")
                self.warn(f"{problem}; {one.waiting:,} available in it. {misspelt(one.name, present, used)}".rstrip())
        unknown = every_unknown_type(self.jobs, [one.name for one in found if one.waiting])
        if unknown.types:
            self.warn(f"No handler here: {unknown.named}. Such jobs wait for workers that have one.")
        elif unknown.is_cut:
            self.warn("The first jobs of the queues have handlers here; to look at all of them takes too long.")


class Queues(Around):
    """Show each queue: its unfinished jobs by state, since when it is paused, and its limits.

    Below the table are the queues whose waiting jobs no worker takes, and the types of waiting jobs that have no
    handler here. Workers over HTTP may take them.
    """

    name = "queues"

    def show(self) -> None:
        found = queues(self.using, exact=True)
        shown = [one for one in found if one.depth or one.paused_at or limits_text(one.limit, one.max_per_second)]
        now = database_now(self.using)
        present = workers(self.using, now)
        taken = taken_by_running(self.using, now, present)
        columns = (
            Column("queue", "name", cut=True),
            *(Column(state, state, partial(_depth, state=state)) for state in UNFINISHED),
            Column("", "paused", lambda one: one.paused_at is not None),
            Column("paused", "paused_at", show=lambda moment: f"{age(moment, now)} ago" if moment else "-"),
            Column("", "concurrency_limit", attrgetter("limit")),
            Column("", "max_per_second"),
            Column("limit", show=lambda one: limits_text(one.limit, one.max_per_second) or "-"),
            Column("", "is_stranded", lambda one: is_stranded(one, taken)),
        )
        self.answer([as_json(columns, one) for one in shown])
        if not shown:
            self.say("No queue has unfinished jobs, and none is paused or limited.")
            return
        self.print_columns(columns, shown)
        self.warn_of_what_nobody_takes(found, present, taken)


class Workers(Around):
    """Show the workers: how each stands, when it was heard last, which queues it takes, and what it has done.

    A `silent` worker said nothing for half a minute: it has died, or cannot reach the database.
    """

    name = "workers"

    def show(self) -> None:
        now = database_now(self.using)
        found = workers(self.using, now, every=True)
        self.answer([{**fields(one.row), "standing": one.standing} for one in found])
        if found:
            columns = (
                Column("worker", read=lambda one: one.row.pk),
                Column("state", read=lambda one: one.standing),
                Column("heard", read=lambda one: f"{age(one.row.heartbeat_at, now)} ago"),
                Column("started", read=lambda one: f"{age(one.row.started_at, now)} ago"),
                Column("claimed", read=lambda one: one.row.claimed),
                Column("done", read=lambda one: one.row.finalized),
                Column("queues", read=lambda one: " ".join(one.patterns), cut=True),
            )
            self.print_columns(columns, found)
        else:
            self.say(f"No worker runs on database {self.using!r}. `manage.py runworker` starts one.")
        taken = taken_by_running(self.using, now, found)
        self.warn_of_what_nobody_takes(queues(self.using, exact=True), found, taken)


class Crons(Subcommand):
    """Show the periodic jobs: when each is due, what became of its last occurrence, and which job it enqueued last.

    A `next` that lies in the past says that no worker fires it. Enable and disable them in the admin.
    """

    name = "crons"

    def run(self, **options: Any) -> None:
        now, entries = database_now(self.using), list(CronJob.objects.using(self.using).order_by("name"))
        self.answer(list(map(fields, entries)))
        if not entries:
            self.say(
                f"No periodic jobs in database {self.using!r}. @job(..., cron=...) declares one; a worker writes it."
            )
            return
        columns = (
            Column("name", read=lambda entry: entry.name, cut=True),
            Column("schedule", read=lambda entry: f"{entry.expression} {entry.timezone}", cut=True),
            Column("next", read=lambda entry: _due(entry, now)),
            Column("last outcome", read=lambda entry: _outcome(entry, now)),
            Column("last job", read=lambda entry: entry.last_job_id or "-"),
            Column("enqueued", read=lambda entry: distance(entry.last_run_at, now) if entry.last_run_at else "-"),
        )
        self.print_columns(columns, entries)


def _outcome(entry: CronJob, now: datetime) -> str:
    if not entry.last_outcome:
        return "-"
    moment = f" {distance(entry.last_outcome_at, now)}" if entry.last_outcome_at else ""
    times = f", {entry.outcome_count:,} times in a row" if entry.outcome_count > 1 else ""
    return f"{entry.last_outcome}{moment}{times}"


def _depth(one: QueueReport, state: JobState) -> int:
    return one.depth.get(state, 0)


def _due(entry: CronJob, now: datetime) -> str:
    if not entry.enabled:
        return "disabled"
    return distance(entry.next_run_at, now) if entry.next_run_at else "never"
