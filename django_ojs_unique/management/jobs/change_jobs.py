"""Subcommands that operate on jobs: cancel, retry, enqueue-again, release and remove."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.core.management.base import CommandError, CommandParser
from django.db.models import Count, QuerySet

from ...db.clock import database_now
from ...exceptions import DuplicateJob
from ...ojs.states import JobState
from ...ojs.words import counted
from ...operations.bulk import change
from ...operations.operation import CANCEL, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from ...operations.rows import by_state
from ...options import OPTIONS
from ...progress import progress
from ...reporting.job_filters import filters, in_states, matching
from ..arguments import whole_number
from .filters import NO_DEAD_LETTER, NO_MATCH, add_filters
from .subcommand import Subcommand, job_id, key, type_
from .tables import table

KEY_SCOPES = OPTIONS["key_scope"].kind.choices
MOST_GROUPS = 20
"""How many groups of jobs (by state, queue and type) a dry run shows."""


class OnJobs(Subcommand):
    """A subcommand that does one thing to each of several jobs, and goes on if one is refused."""

    operation: Operation
    hint = ""
    """What to do about a live duplicate."""

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("ids", nargs="+", type=job_id, metavar="ID", help="The job's id; several may be given.")
        _add_dry_run(parser)

    def change(self, jobs: QuerySet[Any], ids: list[UUID], *, bar: Any = None, **options: bool) -> None:
        """Do it, and say what became of each job; with a ``bar``, only of those that were refused."""
        operation, done, refused, new = self.operation, 0, list[dict[str, Any]](), dict[str, str]()
        for result in change(jobs, ids, operation, **options):
            for id, error in result.refused.items():
                rival = error.existing_job_id if isinstance(error, DuplicateJob) else None
                self.warn(error.message + (self.hint if rival else ""))
                refused.append({"id": id, "message": error.message, "duplicate_id": rival})
            done += len(result.changed)
            new |= {str(old): str(id) for old, id in result.new.items()}
            if bar is not None:
                bar.update(len(result.changed) + len(result.refused))
                continue
            for id in result.changed:
                self.say(f"{operation.done} {f'{id} as {result.new[id]}' if id in result.new else id}.")
        if bar is not None:
            bar.close()
            self.say(f"{operation.done}: {counted(done, 'job')}.")
        self.answer({"count": done, "refused": refused} | ({"new": new} if operation is ENQUEUE_AGAIN else {}))
        if refused:
            raise CommandError(f"{len(refused):,} of {done + len(refused):,} refused.")

    def foretell(self, ids: list[UUID], **options: Any) -> None:
        """Print what would become of each job."""
        from ...reporting.preview import consequences  # few calls need it

        found = consequences(self.operation, self.jobs, ids, database_now(self.using), **options)
        self.answer({"dry_run": True, "jobs": [{"id": one.id, **one.to_dict()} for one in found]})
        for one in found:
            message = f"Nothing would be done. {one.refusal}" if one.refusal else " ".join(one.sentences)
            met = ", ".join(f"{rival.pk} ({rival.state})" for rival in one.rivals)
            self.say(f"{one.id}: {message}{f' {met}' if met else ''}")
        self.say("Nothing was changed.")


class OnMatchingJobs(OnJobs):
    """The same, for jobs that are named by ids or chosen by filters."""

    unasked: frozenset[JobState] = frozenset()
    """The states that filters choose only if --state names them."""
    cannot: str
    """What the message says about jobs that cannot be changed."""

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

    def run(self, *, ids: list[UUID], dry_run: bool, **options: Any) -> None:
        jobs, switches = self.chosen(ids, options), self.switches(options)
        if jobs is None:
            if dry_run:
                self.foretell(ids, **switches)
            else:
                self.change(self.jobs, ids, **switches)
            return
        jobs = self.able(jobs, options["state"])
        oldest = jobs.order_by("created_at", "pk").values_list("pk", flat=True)
        if options["dead_letter"] and not oldest[:1]:
            self.warn(NO_DEAD_LETTER)
        if dry_run:
            self.preview(jobs, options["limit"])
            return
        ids = list(oldest[: options["limit"]])
        bar = progress(options["verbosity"], total=len(ids), desc=self.operation.done.lower())
        self.change(jobs, ids, bar=bar, **switches)

    def switches(self, options: dict[str, Any]) -> dict[str, bool]:
        """Return the options of `operations.bulk.change`."""
        return {}

    def able(self, jobs: QuerySet[Any], named: Collection[JobState] | None) -> QuerySet[Any]:
        """Return the jobs that can be changed, and are in a state that was ``named`` or need not be.

        Warn about those that are left out if none remain, or if a state is named that does not allow it.
        """
        left_out = frozenset() if named else self.unasked
        able = self.operation.able(in_states(jobs, self.operation.states - left_out))
        is_none = not able.exists()
        if is_none or not self.operation.states.issuperset(named or ()):
            self._tell_of_the_rest(jobs, left_out, is_none=is_none)
        return able

    def _tell_of_the_rest(self, jobs: QuerySet[Any], left_out: frozenset[JobState], *, is_none: bool) -> None:
        all_able = self.operation.able(jobs)
        unable = by_state(jobs.exclude(pk__in=all_able.values("pk")))
        unasked = by_state(all_able.filter(state__in=sorted(left_out)))
        if unable:
            self.warn(f"{_counts_text(unable)} match and {self.cannot}")
        if unasked:
            self.warn(
                f"{_counts_text(unasked)} match and are left alone. To take them, add --state {' '.join(unasked)}."
            )
        if is_none and not unable and not unasked:
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
        self.say(f"{counted(total, 'job')} would be {self.operation.done.lower()}{most}:")
        rows = [[f"{one['count']:,}", one["state"], one["queue"], one["type"]] for one in found[:MOST_GROUPS]]
        for line in table(["jobs", "state", "queue", "type"], rows, width=None, cut=[]):
            self.say(f"  {line}")
        if len(found) > MOST_GROUPS:
            self.say("  ...")
        self.say("Nothing was changed.")


class Cancel(OnMatchingJobs):
    """Cancel jobs that have not finished. One that runs is told, and its result is refused.

    Give ids, or filters: `jobs cancel --type email.send --since PT1H`.
    """

    name = "cancel"
    operation = CANCEL
    cannot = "have finished: only unfinished jobs can be cancelled."


class Retry(OnMatchingJobs):
    """Make jobs available now: those that are scheduled, retryable or pending, and discarded ones with new attempts.

    A job is refused while a live job has its key. Give ids, or filters: `jobs retry --type email.send --dead-letter`.
    Filters select discarded jobs only, unless --state says otherwise. A cancelled job is retried if you give its id or
    `--state cancelled`.
    """

    name = "retry"
    operation = RETRY
    unasked = RETRY.states - {JobState.DISCARDED}
    cannot = (
        "cannot be retried: only scheduled, retryable, pending, discarded and cancelled jobs can, unless they were"
        " replaced or pruned. To do finished work once more, use `jobs enqueue-again`."
    )
    hint = " Cancel that one first, or let both run with --force."

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        OnMatchingJobs.add_arguments(parser)
        parser.add_argument(
            "--force",
            action="store_true",
            help="Retry a finished job although a live job has its key: both will run.",
        )

    def switches(self, options: dict[str, Any]) -> dict[str, bool]:
        return {"force": options["force"]}


class EnqueueAgain(OnMatchingJobs):
    """Enqueue finished jobs again: new jobs with the same args and options, through their policies.

    A job that duplicates another one is refused. Give ids, or filters; these select completed jobs only, unless --state
    says otherwise.
    """

    name = "enqueue-again"
    operation = ENQUEUE_AGAIN
    unasked = ENQUEUE_AGAIN.states - {JobState.COMPLETED}
    cannot = "have not finished, or are pruned: they cannot be enqueued again."


class Release(OnJobs):
    """Take jobs out of uniqueness for good: they go on, and the next enqueue of their keys is admitted.

    For a finished job that still counts as a duplicate while the work must be done again.
    """

    name = "release"
    operation = RELEASE

    def run(self, *, ids: list[UUID], dry_run: bool, **options: Any) -> None:
        if dry_run:
            self.foretell(ids)
        else:
            self.change(self.jobs, ids)


class Remove(Subcommand):
    """Remove the job that holds a key, as `Job.objects.remove` does; `jobs list --key` shows which one it is.

    A waiting or discarded job is deleted. A running one loses the key, and gets no further run.
    """

    name = "remove"

    @staticmethod
    def add_arguments(parser: CommandParser) -> None:
        parser.add_argument("key", type=key, metavar="KEY", help="The key.")
        parser.add_argument("--type", type=type_, metavar="TYPE", help="The type of the job, if several hold the key.")
        parser.add_argument("--key-scope", choices=KEY_SCOPES, help="The scope of the key, likewise.")

    def run(self, *, key: str, type: str | None, key_scope: str | None, **options: Any) -> None:
        if (job := self.jobs.remove(key=key, type=type, key_scope=key_scope)) is None:
            raise CommandError(f"No job holds the key {key!r}.")
        is_deleted = job.state != JobState.ACTIVE
        self.answer({"id": job.pk, "deleted": is_deleted})
        self.say(f"{'Deleted' if is_deleted else 'Runs to its end, and not again:'} {job.pk}.")


def _add_dry_run(parser: CommandParser) -> None:
    parser.add_argument("--dry-run", action="store_true", help="Say what would be done; change nothing.")


def _counts_text(counts: dict[str, int]) -> str:
    """Write how many jobs there are, such as "350 jobs (300 cancelled, 50 completed)"."""
    return (
        f"{counted(sum(counts.values()), 'job')} ({', '.join(f'{count:,} {state}' for state, count in counts.items())})"
    )
