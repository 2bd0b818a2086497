"""Subcommands that operate on queues: pause, resume and limit."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandParser

from ...ojs.states import JobState
from ...ojs.words import counted
from ...reporting.unclaimed import doubt
from .subcommand import Subcommand, number_or_none, queue


class OnQueues(Subcommand):
    """A subcommand that does one thing to each of several queues.

    An unknown queue gives a warning and no error, as its first job or worker may come later.
    """

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("names", nargs="+", type=queue, metavar="QUEUE", help="A queue; several may be given.")

    def doubt(self, name: str, hint: str = "") -> None:
        """Warn if nothing knows a queue. Call it before the change, because the change may make the queue known."""
        if problem := doubt(self.using, name):
            self.warn(f"{problem} {hint}".rstrip())


class Pause(OnQueues):
    """Pause queues: no worker takes their jobs until they are resumed. Jobs that run go on, enqueues are accepted."""

    name = "pause"
    pauses = True
    done, already = "Paused", "Was paused already:"
    hint = "`jobs resume` takes the pause back."

    def run(self, *, names: list[str], **options: Any) -> None:
        change, answers = self.queues.pause if self.pauses else self.queues.resume, []
        for name in names:
            self.doubt(name, self.hint)
            changed = change(name)
            waiting = self.jobs.filter(queue=name, state=JobState.AVAILABLE).count()
            answers.append({"name": name, "paused": self.pauses, "changed": changed, "available": waiting})
            self.say(f"{self.done if changed else self.already} {name}; {counted(waiting, 'available job')} in it.")
        self.answer(answers)


class Resume(Pause):
    """Resume paused queues."""

    name = "resume"
    pauses = False
    done, already = "Resumed", "Was not paused:"
    hint = ""


class Limit(OnQueues):
    """Limit how many jobs of a queue run at once, or start in a second, over all workers. `none`: any number."""

    name = "limit"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("queue", type=queue, metavar="QUEUE", help="The queue.")
        parser.add_argument("limit", type=number_or_none, metavar="N", help="A whole number of at least 1, or none.")
        parser.add_argument("--per-second", action="store_true", help="Limit how many start in a second.")

    def run(self, *, queue: str, limit: int | None, per_second: bool, **options: Any) -> None:
        change, what = (
            (self.queues.rate_limit, "start in a second") if per_second else (self.queues.limit, "run at once")
        )
        self.doubt(queue)
        changed = change(queue, limit)
        self.answer({"name": queue, "max_per_second" if per_second else "concurrency_limit": limit, "changed": changed})
        none = f"{queue} has no limit{' per second' * per_second}."
        self.say(none if limit is None else f"At most {counted(limit, 'job')} of {queue} {what}.")
