"""The ledger of a batch: what is stored under its keys, item after item, and what must be written in the end."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import Case, QuerySet, UUIDField, Value, When

from . import lifecycle
from .admission import Admission, in_groups
from .enqueue import may_replace_active, suppression_of
from .exceptions import DuplicateJob, InvalidRequest, OJSError
from .keyed import Slot, suppression_by_key, write_slots
from .ojs.conflict import Action, Verdict, judge
from .ojs.policy import UniquePolicy
from .ojs.states import JobState
from .outcomes import Outcome, Suppression
from .races import id_taken
from .request import Incoming, date

FREE: Verdict[Any] = Verdict(Action.ADMIT)


@dataclass(slots=True, eq=False)
class Entry:
    """A valid item, and what was decided about it: by its policy, by its key, or that it cannot be."""

    index: int
    incoming: Incoming
    outcome: Outcome = Outcome.CREATED
    verdict: Verdict[Any] | None = None
    holder: Any | None = None
    suppression: Suppression | None = None
    error: OJSError | None = None

    def reset(self) -> None:
        """Forget what an earlier look decided."""
        self.outcome, self.verdict, self.holder, self.suppression, self.error = Outcome.CREATED, None, None, None, None
        job = self.incoming.job
        job.finished_at = job.replaced_by_id = None

    def fail(self, error: OJSError) -> None:
        """Take an error as the answer."""
        self.error = located(self.index, error)
        if isinstance(error, DuplicateJob):
            self.outcome = Outcome.REJECTED
        else:
            self.outcome, self.verdict, self.suppression = Outcome.INVALID, None, None

    @property
    def job(self) -> Any | None:
        """The job of the answer."""
        if self.holder is not None:
            return self.holder
        if self.verdict is not None and self.verdict.action is not Action.ADMIT:
            return self.verdict.existing
        return self.incoming.job if self.error is None else None

    @property
    def replaced(self) -> tuple[Any, ...]:
        """The jobs that were cancelled for this one."""
        return self.verdict.cancel if self.verdict is not None and self.error is None else ()


class Ledger:
    """What is stored under the keys of a batch, item after item, and what must be written in the end."""

    def __init__(
        self,
        jobs: QuerySet[Any],
        stored: Mapping[str, Sequence[Any]],
        slots: Mapping[str, Slot],
        taken: Collection[UUID],
        counted: Mapping[str, Collection[str]],
        now: datetime,
    ) -> None:
        self._jobs = jobs
        self._counted = counted
        self._rows = defaultdict(list, {fingerprint: list(rows) for fingerprint, rows in stored.items()})
        self._slots = slots
        self._taken = set(taken)
        self._now = now
        self._new: list[Any] = []
        self._cancelled: dict[UUID, UUID] = {}
        """Stored jobs that were replaced, and by which."""
        self._released: list[UUID] = []

    def decide(self, entry: Entry) -> None:
        """Decide on the next item."""
        entry.reset()
        incoming, job = entry.incoming, entry.incoming.job
        if incoming.key is not None:
            slot = self._slots[job.fingerprint]
            if slot.admits(incoming) and not self._takes_its_id(entry):
                return
            try:
                entry.outcome = slot.apply(incoming)
            except InvalidRequest as error:
                entry.fail(error)
                return
            entry.holder = slot.holder
            if entry.outcome is Outcome.DEDUPLICATED:
                entry.suppression = suppression_by_key(incoming, slot.holder)
        elif incoming.policy is None:
            self._admit(entry)
        else:
            entry.verdict = self._judge(self._rows[job.fingerprint], incoming.policy)
            entry.suppression = suppression_of(job, incoming.policy, entry.verdict)
            match entry.verdict.action:
                case Action.ADMIT:
                    self._admit(entry)
                case Action.IGNORE:
                    entry.outcome = Outcome.DEDUPLICATED
                case Action.REJECT:
                    entry.fail(DuplicateJob(entry.verdict.existing, job.fingerprint))

    def _judge(self, rows: Sequence[Any], policy: UniquePolicy) -> Verdict[Any]:
        matter = [row for row in rows if row.is_guarding or policy.is_duplicate(row.state, row.created_at, self._now)]
        if not matter:
            return FREE
        return judge(matter, policy, self._now, replace_active=may_replace_active(self._jobs, matter))

    def _admit(self, entry: Entry) -> None:
        job = entry.incoming.job
        if not self._takes_its_id(entry):
            return
        self._new.append(job)
        if (verdict := entry.verdict) is None:
            return
        for row in verdict.cancel:
            row.state, row.finished_at, row.run_at, row.replaced_by_id = JobState.CANCELLED, self._now, None, job.pk
            row.guarded_states = frozenset()
            if not row._state.adding:
                self._cancelled[row.pk] = job.pk
        for row in verdict.release:
            row.guarded_states = frozenset()
            if not row._state.adding:
                self._released.append(row.pk)
        # What no policy of the batch counts is not weighed again, or many items of one key would cost their square.
        rows, counted = self._rows[job.fingerprint], self._counted[job.fingerprint]
        rows[:] = [row for row in rows if row.is_guarding or row.state in counted]
        rows.append(job)
        if verdict.inherited_schedule is not None:
            date(entry.incoming, job.created_at, inherited_schedule=verdict.inherited_schedule)
        if verdict.cancel:
            entry.outcome = Outcome.REPLACED

    def _takes_its_id(self, entry: Entry) -> bool:
        job = entry.incoming.job
        if job.pk in self._taken:
            entry.fail(id_taken(job))
            return False
        self._taken.add(job.pk)
        return True

    def write(self, admission: Admission) -> None:
        """Write what becomes of stored jobs."""
        for group in in_groups(self._cancelled.items()):
            by = Case(*(When(pk=pk, then=Value(by)) for pk, by in group), output_field=UUIDField())
            lifecycle.replace(self._jobs.filter(pk__in=[pk for pk, _ in group]), self._now, by=by)
        for released in in_groups(self._released):
            lifecycle.release_guard(self._jobs.filter(pk__in=released))
        write_slots(self._jobs, admission, self._slots.values())

    def new_jobs(self) -> list[Any]:
        """Return the jobs to insert, in the order that all batches share."""
        new = [*self._new, *(slot.holder for slot in self._slots.values() if slot.is_new)]
        return sorted(new, key=lambda job: (job.fingerprint or "", job.pk))


def located(index: int, error: OJSError) -> OJSError:
    """Say which item an error is about."""
    error.message = f"items[{index}]{'.' if 'field' in error.details else ': '}{error.message}"
    error.details = {**error.details, "index": index}
    error.args = (error.message,)
    return error
