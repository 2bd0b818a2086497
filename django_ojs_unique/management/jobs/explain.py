"""Subcommands that explain enqueues: explain, duplicates."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from operator import attrgetter
from typing import Any

from django.core.management.base import CommandError, CommandParser

from ...db.clock import database_now
from ...models import Job, SuppressedEnqueue
from ...ojs.words import counted
from ...options import DELAY, MOMENT, OBJECT, OPTIONS, QUEUE, UNIQUE
from ...reporting import duplicates as report
from ...reporting.limit_waits import waits_for, would_meet
from ...reporting.parse import read_json
from ...reporting.text import age, harmless
from ...reporting.times import SPANS
from .answers import fields
from .subcommand import Subcommand, moment, queue, type_
from .tables import Column, as_json

SHORT = 16
"""How many characters of a fingerprint a table shows; `jobs duplicates` finds it by them."""
MOST_ATTEMPTS = 20
MOST_WAITING = 5
"""Of how many duplicates is said what they wait for."""

JOB = (
    Column("fingerprint", read=lambda job: (job.fingerprint or "")[:SHORT]),
    Column("id", read=lambda job: job.pk),
    Column("state", read=lambda job: job.state),
    Column("holds key", read=lambda job: "yes" if job.holds_unique_key else "no"),
    Column("age", read=lambda job: age(job.created_at, database_now(job._state.db))),
    Column("replaced by", read=lambda job: job.replaced_by_id or "-"),
    Column("type", read=lambda job: job.type, cut=True),
)

_MORE = "more job"


NULL: Any = ...
"""The value of ``null``; None means that nothing was given."""


def _json(text: str) -> Any:
    try:
        value = read_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
    return NULL if value is None else value


DECIDING = {name: option for name, option in OPTIONS.items() if option.decides}
_READ: dict[Any, tuple[Any, str]] = {
    QUEUE: (queue, "QUEUE"),
    UNIQUE: (_json, "JSON"),
    OBJECT: (_json, "JSON"),
    MOMENT: (moment, "TIME"),
    DELAY: (str, "DURATION"),
}
"""How a flag reads the values of each kind, and what its help calls them."""


class Explain(Subcommand):
    """Say what an enqueue would do now, and why. Nothing is enqueued.

    `jobs explain email.send --args '{"user_id": 42}'` prints the fingerprint, each stored job that counts as a
    duplicate with the end of its window, and whether the queue is paused, or the job would wait for a slot of a limit.
    """

    name = "explain"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("type", type=type_, metavar="TYPE", help="The type, as in email.send.")
        parser.add_argument(
            "--args",
            dest="job_args",  # Django uses the name args itself
            type=_json,
            metavar="JSON",
            help="An object or an array; none by default.",
        )
        parser.add_argument(
            "--context",
            type=_json,
            metavar="JSON",
            help='What the job would carry where it is enqueued, as in {"tenant": {"schema_name": "acme"}}.',
        )
        for name, option in DECIDING.items():
            read, metavar = _READ.get(option.kind, (str, name.upper()))
            parser.add_argument(
                f"--{name.replace('_', '-')}",
                type=read,
                metavar=metavar,
                choices=option.kind.choices or None,
                help=option.plain_help,
            )

    def run(self, *, type: str, verbosity: int, **options: Any) -> None:
        options["args"] = options["job_args"]
        given = {name: options[name] for name in ("args", "context", *DECIDING) if options[name] is not None}
        given = {name: None if value is NULL else value for name, value in given.items()}
        explanation = self.jobs.explain(type, **given).redacted(type, given.get("args"))
        meets = would_meet(explanation, self.using)
        self.answer({**explanation.to_dict(), "waits_for": meets})
        first, *others = str(explanation).split("\n")
        self.say(self.style.MIGRATE_HEADING(harmless(first)))
        label = "limit" if explanation.limits else "queue"
        for line in (*others, *(f"{label}:          {text}" for text in meets)):
            self.say(harmless(line))
        if explanation.context and options["context"] is None:
            self.say("That is what is active in this process. --context asks about another context.")
        for duplicate in explanation.duplicates[:MOST_WAITING]:
            if waits := waits_for(duplicate.job, self.using):
                self.say(harmless(f"job {duplicate.job.pk}: {' '.join(waits)}"))


class Duplicates(Subcommand):
    """Show which enqueues met duplicates, and which live jobs share a fingerprint.

    With a job's id or the beginning of a fingerprint: the jobs of that fingerprint, and the newest enqueues that met
    it.
    """

    name = "duplicates"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("term", nargs="?", metavar="ID|FINGERPRINT", help="A job, or a fingerprint's beginning.")
        parser.add_argument("--span", choices=list(SPANS), help="How far back (default day); not with an id.")

    def run(self, *, term: str | None, span: str | None, **options: Any) -> None:
        if term is not None and span is not None:
            raise CommandError("--span goes without an id or a fingerprint: of one fingerprint everything is shown.")
        attempts = SuppressedEnqueue.objects.using(self.using)
        if term is None:
            span, now = span or "day", database_now(self.using)
            most = report.most_suppressed(attempts, self.jobs, SPANS[span], now)
            groups, columns = report.groups_after(self.jobs, ""), _met(self.using)
            self.answer(
                {
                    "since": most.since,
                    "suppressed": [as_json(columns, one) for one in most.fingerprints],
                    "groups": [
                        {"fingerprint": one.fingerprint, "jobs": list(map(fields, one.jobs)), "more": one.more}
                        for one in groups.groups
                    ],
                    "more_groups": bool(groups.last),
                }
            )
            self._print_most_met(most, span)
            self._print_groups(groups)
            return
        found = report.match(self.jobs, attempts, term)
        if found.problem or not found.fingerprints:
            reason = f"Job {found.job} takes no part in uniqueness: it has no fingerprint." if found.job else ""
            raise CommandError(found.problem or reason or f"No job has {term!r} as its id or in its fingerprint.")
        if len(found.fingerprints) > 1:
            self.answer({"fingerprints": found.fingerprints})
            self.say("Several fingerprints begin so:")
            for fingerprint in found.fingerprints:
                self.say(f"  {harmless(fingerprint)}")
            return
        self._print_one(attempts, found.fingerprints[0])

    def _print_most_met(self, most: report.MostSuppressed, span: str) -> None:
        met = most.fingerprints
        if not met:
            self.say(f"No enqueue met a duplicate in the last {span}.")
            return
        self.say(f"Enqueues of the last {span} that met a duplicate:")
        self.print_columns(_met(self.using), met)

    def _print_groups(self, found: report.Groups) -> None:
        if not found.groups:
            self.say("No live jobs share a fingerprint.")
            return
        self.say("Live jobs that share a fingerprint:")
        self._print_jobs(job for group in found.groups for job in group.jobs)
        more = sum(group.more for group in found.groups)
        if more or found.last:
            self.say(f"{f'{counted(more, _MORE)} in these groups. ' if more else ''}The admin shows all of them.")

    def _print_one(self, attempts: Any, fingerprint: str) -> None:
        history = report.history(self.jobs, fingerprint)
        met = list(report.attempts_of(attempts, fingerprint, MOST_ATTEMPTS))
        self.answer(
            {
                "fingerprint": fingerprint,
                "jobs": list(map(fields, history.jobs)),
                "more": history.is_cut,
                "suppressed": list(map(fields, met)),
            }
        )
        self.say(f"fingerprint {harmless(fingerprint)}")
        if history.is_cut:
            self.say(f"The last {len(history.jobs)} jobs:")
        self._print_jobs(history.jobs)
        if not met:
            self.say("No recorded enqueue met it.")
            return
        self.say(f"The newest enqueues that met it (at most {MOST_ATTEMPTS}):")
        now = database_now(self.using)
        rows = [
            (age(one.created_at, now), one.outcome, one.on_conflict, one.existing_job_id, _args(one)) for one in met
        ]
        self.print_table(["age", "outcome", "strategy", "met", "args"], rows, cut=[4])

    def _print_jobs(self, jobs: Iterable[Job]) -> None:
        if rows := list(jobs):
            self.print_columns(JOB, rows)
        else:
            self.say("No job has it now.")


def _args(attempt: Any) -> str:
    return report.readable(attempt.type, attempt.start)


def _met(using: str) -> tuple[Column, ...]:
    return (
        Column("fingerprint", "fingerprint", show=lambda text: text[:SHORT]),
        Column("", "type"),
        Column("", "args"),
        Column("", "count"),
        Column("rejected", "rejected"),
        Column("deduplicated", "deduplicated"),
        Column("replaced", "replaced"),
        Column("last", "last_at", show=lambda moment: age(moment, database_now(using))),
        Column("held by", "existing_job_id", lambda one: one.holder and one.holder.pk, show=lambda id: id or "nobody"),
        Column("type", "", attrgetter("type"), cut=True),
        Column("args", "", attrgetter("args"), cut=True),
    )
