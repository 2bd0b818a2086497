"""Subcommands that operate: on jobs, cancel, retry and release; on queues, pause, resume and limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, QuerySet
from tqdm import tqdm

from ...models import Job
from ...ojs.states import INCOMPLETE, TIMED, JobState
from ...operations import cancel_all, on_each, release
from ..arguments import whole_number
from .filters import add_filters, filters, matching
from .subcommand import Subcommand, job_id, limit, queue
from .text import table

MOST_GROUPS = 20
"""Kinds of jobs that a dry run tells apart."""


class OnJobs(Subcommand):
    """A subcommand that does one thing to each of some jobs, and goes on when one is refused."""

    done: str
    mend = ""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="The job's id; several may be given.")

    def on_each(self, ids: list[UUID], act: Callable[[Any], None], *, bar: Any = None) -> None:
        refused = 0
        for attempted in on_each(self.jobs, ids, act):
            if attempted.refusal:
                self.warn(attempted.refusal + (self.mend if attempted.duplicate else ""))
                refused += 1
            elif bar is None:
                self.say(f"{self.done} {attempted.id}.")
            if bar is not None:
                bar.update()
        count = len(set(ids))
        if bar is not None:
            bar.close()
            self.say(f"{self.done}: {count - refused:,} job(s).")
        if refused:
            raise CommandError(f"{refused:,} of {count:,} refused.")


class OnMatchingJobs(OnJobs):
    """The same, for jobs that are named by their ids or chosen by filters."""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="*", type=job_id, metavar="ID", help="The job's id; several may be given.")
        add_filters(parser)
        parser.add_argument(
            "--limit", type=whole_number, metavar="N", help="At most so many of those that match, the oldest first."
        )
        parser.add_argument(
            "--dry-run", action="store_true", help="Say how many jobs match, and which; change nothing."
        )

    def chosen(self, ids: list[UUID], options: dict[str, Any]) -> QuerySet[Any] | None:
        """Return the jobs that the filters choose, or None where ids are given."""
        wanted = filters(options)
        if ids and (wanted or options["limit"] or options["dry_run"]):
            raise CommandError("Name jobs by their ids, or choose them by filters: not both.", returncode=2)
        if not ids and not wanted:
            message = "Which jobs? Name their ids, or choose them by a filter such as --type or --queue."
            raise CommandError(message, returncode=2)
        return None if ids else matching(self.jobs, wanted)

    def foresee(self, jobs: QuerySet[Any], limit: int | None) -> None:
        """Say which jobs there are."""
        if not (total := jobs.count()):
            self.say("No job matches. Nothing was changed.")
            return
        most = f", at most {limit:,} of them" if limit else ""
        self.say(f"{total:,} job{'s' * (total != 1)} would be {self.done.lower()}{most}:")
        groups = jobs.order_by().values_list("state", "queue", "type").annotate(count=Count("*"))
        rows = [[f"{count:,}", *group] for *group, count in groups.order_by("-count", "type")[: MOST_GROUPS + 1]]
        for line in table(["jobs", "state", "queue", "type"], rows[:MOST_GROUPS], width=None, cut=[]):
            self.say(f"  {line}")
        if len(rows) > MOST_GROUPS:
            self.say("  ...")
        self.say("Nothing was changed.")


class Cancel(OnMatchingJobs):
    """Cancel jobs that have not finished. One that runs is told, and its result is refused.

    Name them by their ids, or choose them by filters, which add up: `jobs cancel --type email.send --since PT1H`
    cancels what was enqueued in the last hour. Look first, with --dry-run or `jobs list`.
    """

    name = "cancel"
    done = "Cancelled"

    def run(self, *, ids: list[UUID], verbosity: int, **options: Any) -> None:
        jobs, cancelled = self.chosen(ids, options), 0
        if jobs is None:
            self.on_each(ids, Job.cancel)
            return
        live = jobs.filter(state__in=sorted(INCOMPLETE), finished_at=None)
        if options["dry_run"]:
            self.foresee(live, options["limit"])
            return
        with tqdm(desc="cancelled", unit="job", disable=None if verbosity else True) as bar:
            for count in cancel_all(live, options["limit"]):
                cancelled += count
                bar.update(count)
        self.say(f"{self.done}: {cancelled:,} job(s).")


class Retry(OnMatchingJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A discarded job is refused while a live job has its key; the message names that job.

    Name them by their ids, or choose them by filters, which add up: `jobs retry --type email.send --dead-letter`.
    Filters choose among the discarded jobs only, unless --state says otherwise.
    """

    name = "retry"
    done = "Made available"
    mend = " Cancel that one first, or let both run with --force."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        OnMatchingJobs.add_arguments(parser)
        parser.add_argument(
            "--force",
            action="store_true",
            help="Revive a discarded job although a live job has its key: both will run.",
        )

    def run(self, *, ids: list[UUID], force: bool, verbosity: int, **options: Any) -> None:
        jobs, bar = self.chosen(ids, options), None
        if jobs is not None:
            more = set() if options["state"] is None else TIMED | {JobState.PENDING}
            jobs = jobs.filter(state__in=sorted({JobState.DISCARDED} | more))
            if options["dry_run"]:
                self.foresee(jobs, options["limit"])
                return
            ids = list(jobs.order_by("pk").values_list("pk", flat=True)[: options["limit"]])
            bar = tqdm(total=len(ids), desc="retried", unit="job", disable=None if verbosity else True)
        self.on_each(ids, lambda job: job.retry_now(force=force), bar=bar)


class Release(OnJobs):
    """Take jobs out of uniqueness for good: they go on, and the next enqueue of their keys is admitted.

    For a finished job that still counts as a duplicate while the work must be done again. `jobs explain` names it.
    """

    name = "release"
    done = "Took out of uniqueness"

    def run(self, *, ids: list[UUID], **options: Any) -> None:
        self.on_each(ids, release)


class OnQueues(Subcommand):
    """A subcommand that does one thing to each of some queues."""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", type=queue, metavar="QUEUE", help="A queue; several may be given.")

    def waiting(self, name: str) -> str:
        return f"{self.jobs.filter(queue=name, state=JobState.AVAILABLE).count()} available job(s) in it"


class Pause(OnQueues):
    """Pause queues: no worker takes their jobs until they are resumed. Jobs that run go on, enqueues are accepted."""

    name = "pause"

    def run(self, *, names: list[str], **options: Any) -> None:
        for name in names:
            told = "Paused" if self.queues.pause(name) else "Was paused already:"
            self.say(f"{told} {name}; {self.waiting(name)}.")


class Resume(OnQueues):
    """Resume paused queues."""

    name = "resume"

    def run(self, *, names: list[str], **options: Any) -> None:
        for name in names:
            told = "Resumed" if self.queues.resume(name) else "Was not paused:"
            self.say(f"{told} {name}; {self.waiting(name)}.")


class Limit(Subcommand):
    """Limit how many jobs of a queue run at once, or start in a second, over all workers. `none`: any number."""

    name = "limit"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("queue", type=queue, metavar="QUEUE", help="The queue.")
        parser.add_argument("limit", type=limit, metavar="N", help="A whole number of at least 1, or none.")
        parser.add_argument("--per-second", action="store_true", help="Limit how many start in a second.")

    def run(self, *, queue: str, limit: int | None, per_second: bool, **options: Any) -> None:
        change, what = (
            (self.queues.rate_limit, "start in a second") if per_second else (self.queues.limit, "run at once")
        )
        change(queue, limit)
        none = f"{queue} has no limit{' per second' * per_second}."
        self.say(none if limit is None else f"At most {limit} job(s) of {queue} {what}.")
