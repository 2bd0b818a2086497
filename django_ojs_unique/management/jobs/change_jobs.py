"""Subcommands that operate on jobs: cancel, retry and release."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, QuerySet

from ...models import Job
from ...ojs.states import INCOMPLETE, POSTPONED, JobState
from ...operations.bulk import cancel_all, on_each, release, retry
from ..arguments import whole_number
from ..progress import progress
from .filters import NO_MATCH, add_filters, filters, in_states, matching
from .subcommand import Subcommand, job_id
from .tables import table

MOST_GROUPS = 20
"""How many groups of jobs (by state, queue and type) a dry run shows."""


class OnJobs(Subcommand):
    """A subcommand that does one thing to each of several jobs, and goes on if one is refused."""

    done: str
    mend = ""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="The job's id; several may be given.")

    def on_each(self, ids: list[UUID], act: Callable[[Any], None], *, bar: Any = None) -> None:
        refused: list[dict[str, Any]] = []
        for attempted in on_each(self.jobs, ids, act):
            if attempted.refusal:
                self.warn(attempted.refusal + (self.mend if attempted.duplicate else ""))
                refused.append({"id": attempted.id, "message": attempted.refusal, "duplicate_id": attempted.duplicate})
            elif bar is None:
                self.say(f"{self.done} {attempted.id}.")
            if bar is not None:
                bar.update()
        count = len(set(ids))
        if bar is not None:
            bar.close()
            self.say(f"{self.done}: {count - len(refused):,} job(s).")
        self.answer({"count": count - len(refused), "refused": refused})
        if refused:
            raise CommandError(f"{len(refused):,} of {count:,} refused.")


class OnMatchingJobs(OnJobs):
    """The same, for jobs that are named by ids or chosen by filters. ``suits``: the states in which it is allowed."""

    suits: frozenset[JobState]
    cannot: str
    """What the message says about jobs in other states."""

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
        """Return the jobs that match the filters; None if ids are given. Raises CommandError for both or neither."""
        wanted = filters(options)
        if ids and (wanted or options["limit"] or options["dry_run"]):
            raise CommandError("Name jobs by their ids, or choose them by filters: not both.", returncode=2)
        if not ids and not wanted:
            message = "Which jobs? Name their ids, or choose them by a filter such as --type or --queue."
            raise CommandError(message, returncode=2)
        return None if ids else matching(self.jobs, wanted)

    def able(self, jobs: QuerySet[Any], states: frozenset[JobState], named: Collection[JobState] | None) -> Any:
        """Return the jobs that are in one of ``states``.

        Warn about those that are left out if none remain, or if the user ``named`` a state that is not allowed.
        """
        able = in_states(jobs, states)
        is_none = not able.exists()
        if is_none or not states.issuperset(named or ()):
            self._tell_of_the_rest(jobs, states, is_none=is_none)
        return able

    def _tell_of_the_rest(self, jobs: QuerySet[Any], states: frozenset[JobState], *, is_none: bool) -> None:
        rest = jobs.exclude(state__in=sorted(states)).order_by().values_list("state").annotate(count=Count("*"))
        counts = dict(sorted(rest))
        unable = {state: count for state, count in counts.items() if state not in self.suits}
        unasked = {state: count for state, count in counts.items() if state in self.suits}
        if unable:
            self.warn(f"{_said(unable)} match and {self.cannot}")
        if unasked:
            self.warn(f"{_said(unasked)} match and are left alone. To take them, add --state {' '.join(unasked)}.")
        if is_none and not counts:
            self.warn(NO_MATCH)

    def preview(self, jobs: QuerySet[Any], limit: int | None) -> None:
        """Print how many jobs match, by state, queue and type."""
        total, groups = jobs.count(), jobs.order_by().values("state", "queue", "type").annotate(count=Count("*"))
        found = list(groups.order_by("-count", "type", "queue", "state"))
        self.answer({"dry_run": True, "count": min(total, limit or total), "groups": found})
        if not total:
            self.say("Nothing was changed.")
            return
        most = f", at most {limit:,} of them" if limit else ""
        self.say(f"{total:,} job{'s' * (total != 1)} would be {self.done.lower()}{most}:")
        rows = [[f"{one['count']:,}", one["state"], one["queue"], one["type"]] for one in found[:MOST_GROUPS]]
        for line in table(["jobs", "state", "queue", "type"], rows, width=None, cut=[]):
            self.say(f"  {line}")
        if len(found) > MOST_GROUPS:
            self.say("  ...")
        self.say("Nothing was changed.")


class Cancel(OnMatchingJobs):
    """Cancel jobs that have not finished. One that runs is told, and its result is refused.

    Name them by their ids, or choose them by filters, which add up: `jobs cancel --type email.send --since PT1H`
    cancels what was enqueued in the last hour. Look first, with --dry-run or `jobs list`.
    """

    name = "cancel"
    done = "Cancelled"
    suits = INCOMPLETE
    cannot = "have finished: only unfinished jobs can be cancelled."

    def run(self, *, ids: list[UUID], verbosity: int, **options: Any) -> None:
        jobs, cancelled = self.chosen(ids, options), 0
        if jobs is None:
            self.on_each(ids, Job.cancel)
            return
        live = self.able(jobs, INCOMPLETE, options["state"])
        if options["dry_run"]:
            self.preview(live, options["limit"])
            return
        with progress(verbosity, desc="cancelled") as bar:
            for count in cancel_all(live, options["limit"]):
                cancelled += count
                bar.update(count)
        self.answer({"count": cancelled, "refused": []})
        self.say(f"{self.done}: {cancelled:,} job(s).")


class Retry(OnMatchingJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A discarded job is refused while a live job has its key; the message names that job.

    Name them by their ids, or choose them by filters, which add up: `jobs retry --type email.send --dead-letter`.
    Filters choose among the discarded jobs only, unless --state says otherwise.
    """

    name = "retry"
    done = "Made available"
    suits = POSTPONED | {JobState.DISCARDED}
    cannot = (
        "cannot be retried: only scheduled, retryable, pending and discarded jobs can."
        " To do finished work once more, enqueue it again."
    )
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
            states = frozenset({JobState.DISCARDED}) if options["state"] is None else self.suits
            jobs = self.able(jobs, states, options["state"])
            if options["dry_run"]:
                self.preview(jobs, options["limit"])
                return
            ids = list(jobs.order_by("created_at", "pk").values_list("pk", flat=True)[: options["limit"]])
            bar = progress(verbosity, total=len(ids), desc="retried")
        self.on_each(ids, partial(retry, force=force), bar=bar)


class Release(OnJobs):
    """Take jobs out of uniqueness for good: they go on, and the next enqueue of their keys is admitted.

    For a finished job that still counts as a duplicate while the work must be done again. `jobs explain` names it.
    """

    name = "release"
    done = "Took out of uniqueness"

    def run(self, *, ids: list[UUID], **options: Any) -> None:
        self.on_each(ids, release)


def _said(counts: dict[str, int]) -> str:
    """Write how many jobs there are, such as "350 job(s) (300 cancelled, 50 completed)"."""
    return f"{sum(counts.values()):,} job(s) ({', '.join(f'{count:,} {state}' for state, count in counts.items())})"
