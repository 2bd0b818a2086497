"""The plan of a batch: what is stored under its keys after each item, and what must be written at the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, TypeAlias
from uuid import UUID

from django.db.models import Case, QuerySet, UUIDField, Value, When

from .. import lifecycle
from ..db.dialect import Dialect
from ..db.inserts import in_groups
from ..exceptions import DuplicateJob, InvalidRequest, OJSError
from ..ojs.states import ALL, TERMINAL, JobState
from ..unique.conflict import FREE, Action, Verdict, judge
from ..unique.policy import UniquePolicy
from . import suppression as suppressed
from .by_key import HeldKey, write_held_keys
from .duplicates import holds_for_others, may_replace_active, outside
from .errors import id_taken
from .new_job import NewJob, set_times
from .results import ItemResult, Outcome
from .row import JobRow, take_place
from .suppression import Suppression


@dataclass(slots=True, eq=False)
class BulkEntry:
    """A valid item, and the decision about it: by its policy, by its key, or an error."""

    index: int
    new_job: NewJob
    outcome: Outcome = Outcome.CREATED
    verdict: Verdict[JobRow] | None = None
    holder: JobRow | None = None
    suppression: Suppression | None = None
    error: OJSError | None = None

    def reset(self) -> None:
        """Forget an earlier decision."""
        self.outcome, self.verdict, self.holder, self.suppression, self.error = Outcome.CREATED, None, None, None, None
        job = self.new_job.job
        job.finished_at = job.replaced_by_id = None

    def fail(self, error: OJSError) -> None:
        """Make an error the result."""
        self.error = located(self.index, error)
        if isinstance(error, DuplicateJob):
            self.outcome = Outcome.REJECTED
        else:
            self.outcome, self.verdict, self.suppression = Outcome.INVALID, None, None

    def result(self) -> ItemResult:
        """Return what the caller learns of the item."""
        replaced = self.verdict.cancel if self.verdict is not None and self.error is None else ()
        return ItemResult(self._job(), self.outcome, replaced, self.index, self.error)

    def _job(self) -> JobRow | NewJob | None:
        """Return the job that the caller gets: a stored one, or the new one of a request."""
        if self.holder is not None:
            return self.holder
        if self.verdict is not None and self.verdict.action is not Action.ADMIT:
            return self.verdict.existing
        return self.new_job if self.error is None else None


Answer: TypeAlias = ItemResult | BulkEntry
"""What a batch knows of an item: the result of an invalid one, or the entry of a valid one."""


def result_of(answer: Answer) -> ItemResult:
    """Return what the caller learns of an item."""
    return answer.result() if isinstance(answer, BulkEntry) else answer


class BulkPlan:
    """What is stored under the keys of a batch after each item, and what must be written at the end."""

    def __init__(
        self,
        jobs: QuerySet[Any],
        stored: Mapping[str, Sequence[JobRow]],
        held_keys: Mapping[str, HeldKey],
        taken: Collection[UUID],
        counted: Mapping[str, Collection[str]],
        left: Collection[str],
        now: datetime,
    ) -> None:
        self._jobs = jobs
        self._counted = counted
        self._rows = defaultdict(list, {fingerprint: list(rows) for fingerprint, rows in stored.items()})
        self._held_keys = held_keys
        self._taken = set(taken)
        self._left = set(left)
        """The fingerprints of which a live job does not hold the unique key."""
        self._now = now
        self._new: list[JobRow] = []
        self._cancelled: dict[UUID, UUID] = {}
        """The ids of stored jobs that are replaced, each with the id of its replacement."""
        self._released: list[UUID] = []

    def decide(self, entry: BulkEntry) -> None:
        """Decide on the next item."""
        entry.reset()
        new_job, job = entry.new_job, entry.new_job.job
        if new_job.key is not None:
            held = self._held_keys[job.fingerprint]
            if held.admits(new_job) and not self._takes_its_id(entry):
                return
            try:
                entry.outcome, entry.holder = held.apply(new_job)
            except InvalidRequest as error:
                entry.fail(error)
                return
            if entry.outcome is Outcome.DEDUPLICATED:
                entry.suppression = suppressed.by_key(new_job, entry.holder)
        elif new_job.policy is None:
            self._admit(entry)
        else:
            entry.verdict = self._judge(self._rows[job.fingerprint], new_job.policy, new_job.replaceable)
            entry.suppression = suppressed.by_policy(new_job, new_job.policy, entry.verdict)
            match entry.verdict.action:
                case Action.ADMIT:
                    self._admit(entry)
                case Action.IGNORE:
                    entry.outcome = Outcome.DEDUPLICATED
                case Action.REJECT:
                    entry.fail(DuplicateJob(entry.verdict.existing, job.fingerprint))

    def _judge(
        self, rows: Sequence[JobRow], policy: UniquePolicy, replaceable: QuerySet[Any] | None
    ) -> Verdict[JobRow]:
        matter = [
            row for row in rows if row.holds_unique_key or policy.is_duplicate(row.state, row.created_at, self._now)
        ]
        if not matter:
            return FREE
        verdict = judge(matter, policy, self._now, replace_active=may_replace_active(self._jobs, matter))
        spared = outside(replaceable, verdict.cancel)
        return Verdict(Action.REJECT, spared[0]) if spared else verdict

    def _admit(self, entry: BulkEntry) -> None:
        job = entry.new_job.job
        if not self._takes_its_id(entry):
            return
        self._new.append(job)
        if (verdict := entry.verdict) is None:
            return
        for_others = holds_for_others(verdict, lambda: self._left & {job.fingerprint})
        if any(row.state not in TERMINAL for row in verdict.release):
            self._left.add(job.fingerprint)
        take_place(job, verdict.cancel)
        for row in verdict.cancel:
            row.state, row.finished_at, row.run_at, row.replaced_by_id = JobState.CANCELLED, self._now, None, job.pk
            row.unique_states = frozenset()
            if not row._state.adding:
                self._cancelled[row.pk] = job.pk
        for row in verdict.release:
            row.unique_states = frozenset()
            if not row._state.adding:
                self._released.append(row.pk)
        # Drop jobs that neither hold the unique key nor count for a policy of the batch: else many items of one key
        # would take quadratic time.
        rows, counted = self._rows[job.fingerprint], self._counted[job.fingerprint]
        rows[:] = [row for row in rows if row.holds_unique_key or row.state in counted]
        rows.append(job)
        if verdict.inherited_schedule is not None:
            set_times(entry.new_job, job.created_at, inherited_schedule=verdict.inherited_schedule)
        if for_others:
            job.unique_states = ALL
        if verdict.cancel:
            entry.outcome = Outcome.REPLACED

    def _takes_its_id(self, entry: BulkEntry) -> bool:
        job = entry.new_job.job
        if job.pk in self._taken:
            entry.fail(id_taken(job))
            return False
        self._taken.add(job.pk)
        return True

    def write(self, dialect: Dialect) -> None:
        """Write the changes of stored jobs."""
        for group in in_groups(self._cancelled.items()):
            by = Case(*(When(pk=pk, then=Value(by)) for pk, by in group), output_field=UUIDField())
            lifecycle.replace(self._jobs.filter(pk__in=[pk for pk, _ in group]), self._now, by=by)
        for released in in_groups(self._released):
            lifecycle.release_unique_keys(self._jobs.filter(pk__in=released))
        write_held_keys(self._jobs, dialect, self._held_keys.values())

    def new_jobs(self) -> list[JobRow]:
        """Return the jobs to insert, in the order that all batches share."""
        new = [
            *self._new,
            *(held.holder for held in self._held_keys.values() if held.is_new and held.holder is not None),
        ]
        return sorted(new, key=lambda job: (job.fingerprint or "", job.pk))


def located(index: int, error: OJSError) -> OJSError:
    """Add the index of its item to an error."""
    error.message = f"items[{index}]{'.' if 'field' in error.details else ': '}{error.message}"
    error.details = {**error.details, "index": index}
    error.args = (error.message,)
    return error
