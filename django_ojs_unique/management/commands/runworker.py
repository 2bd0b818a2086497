"""``manage.py runworker``: run jobs."""

from __future__ import annotations

import argparse
import logging
import os
import signal
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils import timezone
from tqdm import tqdm

from ...models import Job
from ...ojs.states import TIMED, JobState
from ...registry import registry
from ...worker import Summary, Worker


class Command(BaseCommand):
    help = (
        "Run jobs until stopped. SIGTERM or Ctrl-C lets the running ones finish and gives back what has not started; a"
        " second one ends at once. Handlers are the @job functions in each app's jobs.py."
    )

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument(
            "--queue",
            action="append",
            metavar="NAME",
            help="Take jobs from this queue only; may be repeated. All queues by default.",
        )
        parser.add_argument(
            "--concurrency",
            type=_positive,
            default=4,
            metavar="N",
            help="Jobs that run at once, each in a thread (default 4).",
        )
        parser.add_argument(
            "--drain", action="store_true", help="Stop when no job is due: for cron, for tests, for a first look."
        )
        parser.add_argument(
            "--database",
            default=DEFAULT_DB_ALIAS,
            choices=list(connections),
            help="The database of the jobs (default: default).",
        )

    def handle(
        self, *, queue: list[str] | None, concurrency: int, drain: bool, database: str, verbosity: int, **options: Any
    ) -> None:
        jobs = Job.objects.using(database)
        if Job._meta.db_table not in connections[database].introspection.table_names():
            raise CommandError(
                f"The job table does not exist in database {database!r}: run `manage.py migrate --database {database}`."
            )
        if not list(registry):
            raise CommandError("No handlers: decorate a function with @job('some.type') in an installed app's jobs.py.")
        _log_to_the_terminal(verbosity)
        with tqdm(desc="jobs", unit="job", disable=None if drain and verbosity else True) as bar:

            def show(summary: Summary) -> None:
                bar.total = (
                    summary.settled + jobs.filter(state__in=[JobState.AVAILABLE, JobState.ACTIVE]).count()
                    if not bar.disable
                    else None
                )
                bar.update(summary.settled - bar.n)

            worker = Worker(queues=queue, concurrency=concurrency, using=database, on_settled=show)
            _stop_on_signals(worker)
            if verbosity and not drain:
                self.stdout.write(
                    f"Worker {worker.id}: {len(list(registry))} job types, {concurrency} threads. Ctrl-C stops it."
                )
            summary = worker.run(drain=drain)
        if verbosity:
            self._report(summary, jobs)

    def _report(self, summary: Summary, jobs: Any) -> None:
        self.stdout.write(
            f"{summary.completed} completed, {summary.retried} to be retried, {summary.discarded} discarded,"
            f" {summary.refused} refused, {summary.released} given back."
        )
        held = jobs.filter(state=JobState.ACTIVE).count()
        if held:
            self.stdout.write(f"{held} job(s) are held by other workers, or by dead ones until their leases run out.")
        later = jobs.filter(state__in=sorted(TIMED), run_at__gt=timezone.now()).count()
        if later:
            self.stdout.write(f"{later} job(s) wait for their time.")
        strangers = sorted(
            jobs.filter(state=JobState.AVAILABLE)
            .exclude(type__in=list(registry))
            .values_list("type", flat=True)
            .distinct()[:5]
        )
        if strangers:
            self.stdout.write(self.style.WARNING(f"Jobs wait for handlers that are not here: {', '.join(strangers)}."))


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text!r}")
    return int(text)


def _log_to_the_terminal(verbosity: int) -> None:
    """Let warnings reach a project that configured no logging; -v 2 shows more."""
    if verbosity > 1:
        logging.getLogger("django_ojs_unique").setLevel(logging.INFO if verbosity == 2 else logging.DEBUG)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")


def _stop_on_signals(worker: Worker) -> None:
    def stop(number: int, frame: Any) -> None:
        for name in (signal.SIGTERM, signal.SIGINT):
            signal.signal(name, lambda *_: os._exit(1))
        worker.stop()
        os.write(2, b"\nStopping: running jobs finish first. Once more to end at once.\n")

    for name in (signal.SIGTERM, signal.SIGINT):
        signal.signal(name, stop)
