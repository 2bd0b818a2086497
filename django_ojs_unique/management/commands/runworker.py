"""``manage.py runworker``: run jobs."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.core.management.color import no_style
from django.db import DatabaseError
from django.utils import autoreload

from ...checks.database import pool_problem
from ...conf import settings
from ...db.clock import database_now
from ...db.schema import find_cause
from ...exceptions import InvalidRequest
from ...handlers.registry import registry
from ...hooks import tracer
from ...models import Job
from ...ojs.states import TIMED, JobState
from ...ojs.words import counted
from ...progress import progress
from ...reporting.unclaimed import every_unknown_type
from ...worker import QueueFilter, Summary, Supervisor, Worker, unfinished
from ...worker.children import end_at_once
from ...worker.loop import refuse_open_transactions
from ...worker.outages import DATABASE_FAILED
from ...worker.queues import waiting_queues
from ...worker.stop_signals import heeded
from ..arguments import require_tables
from ..metrics import metered, require_ports
from ..server import await_server
from ..stopping import end_within, ending_on_signals, stopping_on_signals
from ..streams import forget_lost, open_missing
from ..worker_arguments import WAIT_SECONDS, add_worker_arguments

STOPPING_SOON = b"\nStopping: running jobs finish first.\n"
EAGER = (
    "OJS_UNIQUE['EAGER'] is on: due jobs run in the process that enqueues them."
    " This worker gets retries, scheduled jobs, and those that wait."
)
SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval in seconds: by default the loop would wait 5 ms for handlers at each statement."""


class Command(BaseCommand):
    help = (
        "Run jobs until stopped. The first SIGTERM or Ctrl-C lets running jobs finish and requeues the rest; a second"
        " one ends at once, and what ran returns when its lease runs out. Exit codes: 0 stopped as asked or drained, 1"
        " could not start, 128 + the signal's number when forced."
    )

    def __init__(self, *args: Any, **options: Any) -> None:
        open_missing()
        self._seconds_left = 0.0
        super().__init__(*args, **options)

    def run_from_argv(self, argv: list[str]) -> None:
        """Run as the program of this process, and let the process end: handlers may leave threads that do not end."""
        code: Any = 1
        try:
            super().run_from_argv(argv)
            code = 0
        except SystemExit as error:
            code = error.code
            raise
        finally:
            end_within(self._seconds_left, code if isinstance(code, int) else int(code is not None))

    def add_arguments(self, parser: CommandParser) -> None:
        add_worker_arguments(parser)

    def execute(self, *args: Any, **options: Any) -> Any:
        """Wait for the server before Django's checks, some of which ask it."""
        if options["no_color"]:  # Django would heed it only later
            self.style, self.stderr.style_func = no_style(), None
        self._refuse_what_cannot_work(**options)
        seconds = options["wait_for_database"]
        if seconds is None:
            seconds = 0.0 if options["drain"] else WAIT_SECONDS
        with ending_on_signals():
            await_server(options["database"], seconds)
        return super().execute(*args, **options)

    def handle(self, **options: Any) -> None:
        try:
            self._handle(**options)
        finally:
            forget_lost()

    def _handle(self, *, processes: int, reload: bool, **options: Any) -> None:
        with ending_on_signals():
            require_tables(options["database"])
        if not list(registry):
            raise CommandError("No handlers: decorate a function with @job('some.type') in an installed app's jobs.py.")
        try:
            refuse_open_transactions()
        except RuntimeError as error:
            raise CommandError(str(error)) from None
        _log_to_the_terminal(options["verbosity"])
        if settings.eager and options["verbosity"]:
            self._say(self.style.WARNING(EAGER))
        if options["verbosity"] and (problem := pool_problem(options["database"], options["concurrency"])):
            self._say(self.style.WARNING(problem))
        self._ends_by = "Ctrl-C" if signal.SIGINT in heeded() else "SIGTERM"
        if reload:
            self._run_with_reloader(options)
        elif processes == 1:
            self._run(options)
        else:
            supervisor = Supervisor(
                processes, lambda number: self._run(_numbered(options, number), supervised=True), once=options["drain"]
            )
            if code := supervisor.run():
                sys.exit(code)

    def _refuse_what_cannot_work(
        self,
        *,
        processes: int,
        reload: bool,
        drain: bool,
        queue: list[str] | None,
        exclude_queue: list[str],
        health_file: str | None,
        metrics_address: str,
        metrics_port: int | None,
        **options: Any,
    ) -> None:
        try:
            QueueFilter(queue, exclude_queue)
        except InvalidRequest as error:
            raise CommandError(
                str(error).replace("queues:", "--queue:").replace("exclude:", "--exclude-queue:")
            ) from None
        if reload and (processes > 1 or drain):
            raise CommandError("--reload runs one process until it is stopped: leave out --processes and --drain.")
        if processes > 1 and not hasattr(os, "fork"):
            raise CommandError("--processes needs a system that can fork. Start several workers instead.")
        if health_file and not Path(health_file).absolute().parent.is_dir():
            raise CommandError(f"--health-file: there is no directory {Path(health_file).absolute().parent}.")
        if health_file and Path(health_file).is_dir():
            raise CommandError(f"--health-file: {health_file} is a directory.")
        if metrics_port is not None:
            require_ports(metrics_address, metrics_port, processes)

    def _run(self, options: dict[str, Any], *, supervised: bool = False) -> int:
        """Run one worker in this process; return its exit code."""
        drain, verbosity = options["drain"], options["verbosity"]
        jobs = Job.objects.using(options["database"])
        bar = progress(verbosity if drain else 0, desc="jobs", delay=1)  # not among what short handlers print
        worker = self._worker(options, bar, jobs)
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with metered(worker, options), stopping_on_signals(worker, verbosity, supervised):
                if verbosity and not drain:
                    self._say(f"Worker {worker.id}: {self._abilities(options)}. {self._ends_by} stops it.")
                summary = worker.run(drain=drain)
        except DatabaseError as error:
            if cause := find_cause(error, jobs.db):
                raise CommandError(cause) from None
            raise
        finally:
            self._seconds_left = worker.seconds_left
            sys.setswitchinterval(before)
            bar.close()
            tracer().flush()
        if verbosity:
            with suppress(*DATABASE_FAILED):  # the database may be down
                self._report(summary, jobs)
        if worker.left_behind:
            # Their threads cannot be ended, and must not keep the process alive.
            self._say(f"{counted(worker.left_behind, 'handler')} left behind, not ended in time.")
            logging.shutdown()
            forget_lost()
            end_at_once(0)
        return 0

    def _worker(self, options: dict[str, Any], bar: Any, jobs: Any) -> Worker:
        waiting = jobs.filter(state__in=[JobState.AVAILABLE, JobState.ACTIVE]).count() if not bar.disable else 0
        bar.total = waiting or None

        def show(summary: Summary) -> None:
            bar.total = max(waiting, summary.finalized)
            bar.update(summary.finalized - bar.n)

        return Worker(
            queues=options["queue"],
            exclude=options["exclude_queue"],
            concurrency=options["concurrency"],
            async_concurrency=options["async_concurrency"],
            using=options["database"],
            lease=timedelta(seconds=options["lease"]),
            shutdown_timeout=options["shutdown_timeout"],
            max_jobs=options["max_jobs"],
            health_file=options["health_file"],
            on_finalized=show,
        )

    def _run_with_reloader(self, options: dict[str, Any]) -> None:
        """Run under Django's reloader, which needs the main thread; let running jobs finish before each restart."""
        ended = threading.Event()
        workers: list[Worker] = []

        def work() -> None:
            bar = progress(0)
            workers.append(self._worker(options, bar, Job.objects.using(options["database"])))
            self._say(f"Worker {workers[0].id}: {self._abilities(options)}. Reloads when the code changes.")
            try:
                with metered(workers[0], options):
                    workers[0].run()
            finally:
                ended.set()

        def finish(**kwargs: Any) -> None:
            if workers and not ended.is_set():
                os.write(2, STOPPING_SOON)
                workers[0].stop()
                ended.wait(options["shutdown_timeout"] + 1)

        def on_change(file_path: Path, **kwargs: Any) -> None:
            if file_path.suffix == ".py":
                finish()

        # The parent ignores Ctrl-C: else Django would kill the child a quarter of a second after it.
        is_child = os.environ.get(autoreload.DJANGO_AUTORELOAD_ENV) == "true"
        signal.signal(signal.SIGINT, signal.default_int_handler if is_child else signal.SIG_IGN)
        autoreload.file_changed.connect(on_change, weak=False)
        try:
            autoreload.run_with_reloader(work)
        finally:
            finish()

    def _abilities(self, options: dict[str, Any]) -> str:
        return f"{len(list(registry))} job types, {options['concurrency']} threads"

    def _say(self, text: str) -> None:
        """Print a line. If nobody reads the output any more, the work goes on."""
        with suppress(OSError):
            self.stdout.write(text)

    def _report(self, summary: Summary, jobs: Any) -> None:
        self._say(
            f"{summary.completed} completed, {summary.skipped} skipped, {summary.retried} to be retried,"
            f" {summary.discarded} discarded, {summary.refused} refused, {summary.requeued} requeued."
        )
        if not unfinished(jobs).exists():
            return
        leased = jobs.filter(state=JobState.ACTIVE).count()
        if leased:
            self._say(f"{counted(leased, 'job')} leased to other workers, or to dead ones until their leases run out.")
        later = jobs.filter(state__in=sorted(TIMED), run_at__gt=database_now(jobs.db)).count()
        if later:
            self._say(f"Waiting for their time: {counted(later, 'job')}.")
        unknown = every_unknown_type(jobs, waiting_queues(jobs))
        if unknown.types:
            self._say(self.style.WARNING(f"Jobs wait for handlers that are not here: {unknown.named}."))


def _numbered(options: dict[str, Any], number: int) -> dict[str, Any]:
    path, port = options["health_file"], options["metrics_port"]
    own = {"health_file": f"{path}.{number}" if path else None, "metrics_port": port and port + number}
    return {**options, **own}


def _log_to_the_terminal(verbosity: int) -> None:
    """Let warnings reach a project that configured no logging; -v 2 shows more."""
    if verbosity > 1:
        logging.getLogger("django_ojs_unique").setLevel(logging.INFO if verbosity == 2 else logging.DEBUG)
        logging.basicConfig(format="%(asctime)s %(levelname)s %(message)s")
