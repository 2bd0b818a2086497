"""Subcommands that look at what is around the jobs: queues, workers, crons."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.utils import timezone

from ...insight.queues import UNFINISHED, queues, said_limits
from ...insight.words import age, distance, harmless
from ...insight.workers import MOST_WORKERS, WorkerInsight, is_stranded, workers
from ...models import CronJob
from .subcommand import Subcommand


class Queues(Subcommand):
    """Show each queue: its unfinished jobs by state, since when it is paused, and its limits."""

    name = "queues"

    def run(self, **options: Any) -> None:
        told = [
            one
            for one in queues(self.using, exact=True)
            if one.depth or one.paused_at or said_limits(one.limit, one.max_per_second)
        ]
        if not told:
            self.say("No queue has unfinished jobs, and none is paused or limited.")
            return
        now, rows = timezone.now(), []
        for one in told:
            paused = f"{age(one.paused_at, now)} ago" if one.paused_at else "-"
            rows.append(
                [
                    one.name,
                    *(one.depth.get(state, 0) for state in UNFINISHED),
                    paused,
                    said_limits(one.limit, one.max_per_second) or "-",
                ]
            )
        self.print_table(["queue", *UNFINISHED, "paused", "limit"], rows, cut=[0])


class Workers(Subcommand):
    """Show the workers: how each stands, when it was heard last, which queues it takes, and what it has done.

    `silent` is one that said nothing for half a minute: it has died, or cannot reach the database. Below the table are
    the queues with waiting jobs that none of them takes. Workers over HTTP do not say which they take.
    """

    name = "workers"

    def run(self, **options: Any) -> None:
        now = timezone.now()
        found = workers(self.using, now)
        if found:
            rows = [
                [
                    one.row.pk,
                    one.standing,
                    f"{age(one.row.heartbeat_at, now)} ago",
                    f"{age(one.row.started_at, now)} ago",
                    one.row.held,
                    one.row.settled,
                    " ".join(one.patterns),
                ]
                for one in found
            ]
            self.print_table(["worker", "state", "heard", "started", "holds", "done", "queues"], rows, cut=[6])
        else:
            self.say(f"No worker runs on database {self.using!r}. `manage.py runworker` starts one.")
        if len(found) == MOST_WORKERS:
            self.say(f"These are the {MOST_WORKERS} that were heard last.")
        else:
            for problem in self._abandoned(found):
                self.warn(problem)

    def _abandoned(self, present: list[WorkerInsight]) -> Iterator[str]:
        for queue in queues(self.using, exact=True):
            if not queue.paused_at and is_stranded(queue, present):
                yield f"No running worker says that it takes {queue.name}; {queue.waiting:,} available in it."


class Crons(Subcommand):
    """Show the periodic jobs: when each is due, when it was due last, and what became of that occurrence.

    A `next` that lies in the past says that no worker fires it. Enable and disable them in the admin.
    """

    name = "crons"

    def run(self, **options: Any) -> None:
        now, entries = timezone.now(), list(CronJob.objects.using(self.using).order_by("name"))
        if not entries:
            self.say(
                f"No periodic jobs in database {self.using!r}. @job(..., cron=...) declares one; a worker writes it."
            )
            return
        rows = [
            [
                harmless(entry.name),
                f"{entry.expression} {entry.timezone}",
                _due(entry, now),
                distance(entry.last_run_at, now) if entry.last_run_at else "-",
                entry.last_outcome or "-",
                entry.last_job_id or "-",
            ]
            for entry in entries
        ]
        self.print_table(["name", "schedule", "next", "last", "outcome", "its job"], rows, cut=[0, 1])


def _due(entry: CronJob, now: datetime) -> str:
    if not entry.enabled:
        return "disabled"
    return distance(entry.next_run_at, now) if entry.next_run_at else "never"
