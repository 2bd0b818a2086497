"""Subcommands that operate: on jobs, cancel and retry; on queues, pause, resume and limit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser

from ...models import Job
from ...ojs.states import JobState
from ...operations import on_each
from .subcommand import Subcommand, job_id, limit, queue


class OnJobs(Subcommand):
    """A subcommand that does one thing to each of some jobs, and goes on when one is refused."""

    done: str
    mend = ""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="The job's id; several may be given.")

    def on_each(self, ids: list[UUID], act: Callable[[Any], None]) -> None:
        refused = 0
        for attempted in on_each(self.jobs, ids, act):
            if attempted.refusal:
                self.warn(attempted.refusal + (self.mend if attempted.duplicate else ""))
                refused += 1
            else:
                self.say(f"{self.done} {attempted.id}.")
        if refused:
            raise CommandError(f"{refused} of {len(set(ids))} refused.")


class Cancel(OnJobs):
    """Cancel jobs that have not finished. One that runs is told, and its result is refused."""

    name = "cancel"
    done = "Cancelled"

    def run(self, *, ids: list[UUID], **options: Any) -> None:
        self.on_each(ids, Job.cancel)


class Retry(OnJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A discarded job is refused while a live job has its key; the message names that job.
    """

    name = "retry"
    done = "Made available"
    mend = " Cancel that one first, or let both run with --force."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        OnJobs.add_arguments(parser)
        parser.add_argument(
            "--force",
            action="store_true",
            help="Revive a discarded job although a live job has its key: both will run.",
        )

    def run(self, *, ids: list[UUID], force: bool, **options: Any) -> None:
        self.on_each(ids, lambda job: job.retry_now(force=force))


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
