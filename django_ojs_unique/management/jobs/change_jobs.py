"""Subcommands that operate on jobs: cancel, retry, enqueue-again and release."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, QuerySet
from django.utils import timezone
from tqdm import tqdm

from ...by_hand.refusals import able
from ...exceptions import DuplicateJob
from ...insight.preview import Consequence, of_enqueues_again, of_releases, of_revivals
from ...ojs.states import INCOMPLETE, POSTPONED, REVIVABLE, TERMINAL, JobState
from ...operations.bulk import CANCEL, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from ..arguments import whole_number
from .filters import NO_MATCH, add_filters, filters, in_states, matching
from .subcommand import Subcommand, job_id
from .tables import table

MOST_GROUPS = 20
"""How many groups of jobs (by state, queue and type) a dry run shows."""


class OnJobs(Subcommand):
    """A subcommand that does one thing to each of several jobs, and goes on if one is refused."""

    operation: Operation
    mend = ""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="The job's id; several may be given.")
        _add_dry_run(parser)

    def change(self, operation: Operation, ids: list[UUID], jobs: QuerySet[Any] | None = None, bar: Any = None) -> None:
        """Do it, and say what became of each job; with a ``bar``, only of those that were refused."""
        done = refused = 0
        for result in operation.on(self.jobs if jobs is None else jobs, ids):
            for error in result.refused.values():
                self.warn(error.message + (self.mend if isinstance(error, DuplicateJob) else ""))
            done, refused = done + len(result.changed), refused + len(result.refused)
            if bar is not None:
                bar.update(len(result.changed) + len(result.refused))
                continue
            for id in result.changed:
                self.say(f"{operation.done} {f'{id} as {result.new[id]}' if id in result.new else id}.")
        if bar is not None:
            bar.close()
            self.say(f"{operation.done}: {done:,} job(s).")
        if refused:
            raise CommandError(f"{refused:,} of {done + refused:,} refused.")

    def foretell(self, consequences: Iterable[Consequence]) -> None:
        """Print what would become of each job."""
        for one in consequences:
            said = f"Nothing would be done. {one.refusal}" if one.refusal else " ".join(one.sentences)
            met = ", ".join(f"{rival.pk} ({rival.state})" for rival in one.rivals)
            self.say(f"{one.id}: {said}{f' {met}' if met else ''}")
        self.say("Nothing was changed.")


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
        _add_dry_run(parser)

    def chosen(self, ids: list[UUID], options: dict[str, Any]) -> QuerySet[Any] | None:
        """Return the jobs that match the filters; None if ids are given. Raises CommandError for both or neither."""
        wanted = filters(options)
        if ids and (wanted or options["limit"]):
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
        if not (total := jobs.count()):
            self.say("Nothing was changed.")
            return
        most = f", at most {limit:,} of them" if limit else ""
        self.say(f"{total:,} job{'s' * (total != 1)} would be {self.operation.done.lower()}{most}:")
        groups = jobs.order_by().values_list("state", "queue", "type").annotate(count=Count("*"))
        rows = [[f"{count:,}", *group] for *group, count in groups.order_by("-count", "type")[: MOST_GROUPS + 1]]
        for line in table(["jobs", "state", "queue", "type"], rows[:MOST_GROUPS], width=None, cut=[]):
            self.say(f"  {line}")
        if len(rows) > MOST_GROUPS:
            self.say("  ...")
        self.say("Nothing was changed.")

    def change_or_foretell(
        self,
        operation: Operation,
        ids: list[UUID],
        jobs: QuerySet[Any] | None,
        verbosity: int,
        options: dict[str, Any],
        foretelling: Callable[..., Iterable[Consequence]] | None = None,
    ) -> None:
        """Do it to the jobs of the ids, or to ``jobs``, the oldest first; in a dry run, say what it would do."""
        if options["dry_run"]:
            if jobs is None and foretelling is not None:
                self.foretell(foretelling(self.jobs, ids, timezone.now()))
            else:
                named = able(self.jobs.filter(pk__in=ids), operation.name)
                self.preview(named if jobs is None else jobs, options["limit"])
        elif jobs is None:
            self.change(operation, ids)
        else:
            ids = list(jobs.order_by("created_at", "pk").values_list("pk", flat=True)[: options["limit"]])
            bar = tqdm(total=len(ids), desc=operation.done.lower(), unit="job", disable=None if verbosity else True)
            self.change(operation, ids, jobs, bar)


class Cancel(OnMatchingJobs):
    """Cancel jobs that have not finished. One that runs is told, and its result is refused.

    Name them by their ids, or choose them by filters, which add up: `jobs cancel --type email.send --since PT1H`
    cancels what was enqueued in the last hour. Look first, with --dry-run or `jobs list`.
    """

    name = "cancel"
    operation = CANCEL
    suits = INCOMPLETE
    cannot = "have finished: only unfinished jobs can be cancelled."

    def run(self, *, ids: list[UUID], verbosity: int, **options: Any) -> None:
        jobs = self.chosen(ids, options)
        if jobs is not None:
            jobs = self.able(jobs, INCOMPLETE, options["state"])
        self.change_or_foretell(CANCEL, ids, jobs, verbosity, options)


class Retry(OnMatchingJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A cancelled job is revived, too, if you name it by its id or say `--state cancelled`. A job is refused while a live
    job has its key; the message names that job. With --dry-run it says so before.

    Name them by their ids, or choose them by filters, which add up: `jobs retry --type email.send --dead-letter`.
    Filters choose among the discarded jobs only, unless --state says otherwise.
    """

    name = "retry"
    operation = RETRY
    suits = POSTPONED | REVIVABLE
    cannot = (
        "cannot be retried: only scheduled, retryable, pending, discarded and cancelled jobs can."
        " To do finished work once more, use `jobs enqueue-again`."
    )
    mend = " Cancel that one first, or let both run with --force."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        OnMatchingJobs.add_arguments(parser)
        parser.add_argument(
            "--force",
            action="store_true",
            help="Revive a job although a live job has its key: both will run.",
        )

    def run(self, *, ids: list[UUID], force: bool, verbosity: int, **options: Any) -> None:
        jobs = self.chosen(ids, options)
        if jobs is not None:
            states = frozenset({JobState.DISCARDED}) if options["state"] is None else self.suits
            jobs = self.able(jobs, states, options["state"])
        self.change_or_foretell(RETRY.with_options(force=force), ids, jobs, verbosity, options, of_revivals)


class EnqueueAgain(OnMatchingJobs):
    """Enqueue finished jobs again: new jobs with the same args and options, through their policies.

    The old jobs stay as they are. A job that duplicates another one is refused; with --dry-run it says so before.

    Name them by their ids, or choose them by filters, which add up: `jobs enqueue-again --type report.build`. Filters
    choose among the completed jobs only, unless --state says otherwise.
    """

    name = "enqueue-again"
    operation = ENQUEUE_AGAIN
    suits = TERMINAL
    cannot = "have not finished: they run without this."

    def run(self, *, ids: list[UUID], verbosity: int, **options: Any) -> None:
        jobs = self.chosen(ids, options)
        if jobs is not None:
            states = frozenset({JobState.COMPLETED}) if options["state"] is None else TERMINAL
            jobs = self.able(jobs, states, options["state"])
        self.change_or_foretell(ENQUEUE_AGAIN, ids, jobs, verbosity, options, of_enqueues_again)


class Release(OnJobs):
    """Take jobs out of uniqueness for good: they go on, and the next enqueue of their keys is admitted.

    For a finished job that still counts as a duplicate while the work must be done again. `jobs explain` names it.
    """

    name = "release"
    operation = RELEASE

    def run(self, *, ids: list[UUID], dry_run: bool, **options: Any) -> None:
        if dry_run:
            self.foretell(of_releases(self.jobs, ids, timezone.now()))
        else:
            self.change(RELEASE, ids)


def _add_dry_run(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")


def _said(counts: dict[str, int]) -> str:
    """Write how many jobs there are, such as "350 job(s) (300 cancelled, 50 completed)"."""
    return f"{sum(counts.values()):,} job(s) ({', '.join(f'{count:,} {state}' for state, count in counts.items())})"
