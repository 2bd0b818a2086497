"""An entry: one job of a single or a bulk enqueue, and the decision about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

from ..db.clock import database_now
from ..exceptions import DuplicateJob, InvalidRequest, OJSError
from ..unique.conflict import FREE, Action, Verdict
from ..unique.keys import KeyMode
from ..unique.plan import Family, Plan
from ..unique.policy import UniquePolicy
from ..unique.row import JobRow
from .errors import id_taken
from .new_job import NewJob, set_times
from .results import ItemResult, Outcome
from .rewrite import rewritten

_FRESH = timedelta(seconds=1)


@dataclass(slots=True, eq=False)
class Entry:
    """A valid request, and the verdict on it: an `Intent` of a plan.

    ``index``: its place in a bulk enqueue; None for a single one. ``verdict`` is `FREE` until it is decided, as for a
    job that the first statement inserts; None if it turned out to be invalid, or its id is taken. ``error`` is set
    then, and for a duplicate that is rejected.
    """

    index: int | None
    new_job: NewJob
    verdict: Verdict[JobRow] | None = FREE
    error: OJSError | None = None
    _workflow: tuple[Any, Any, Any] | None = None

    @property
    def job(self) -> JobRow:
        """The new job."""
        return self.new_job.job

    @property
    def policy(self) -> UniquePolicy | None:
        """The policy that decides, or None."""
        return self.new_job.policy

    @property
    def mode(self) -> KeyMode | str | None:
        """The mode of its key, or None."""
        return None if self.new_job.key is None else self.new_job.key.mode

    @property
    def outcome(self) -> Outcome:
        """What the caller learns."""
        return Outcome.INVALID if self.verdict is None else outcome_of(self.verdict)

    def inherit(self, scheduled_at: datetime) -> None:
        """Take the time of a job that it replaces."""
        set_times(self.new_job, self.job.created_at, inherited_schedule=scheduled_at)

    def rewritten(self, holder: JobRow, *, keep_time: bool) -> JobRow:
        """Return the job that holds its key with its values. Raises InvalidRequest if they do not go together."""
        return rewritten(holder, self.job, keep_time=keep_time)

    def decide(self, plan: Plan, family: Family) -> None:
        """Let a plan decide; an earlier decision was undone.

        `refresh_times` has set state, times and unique states anew.
        """
        job, self.error = self.job, None
        job.finished_at = job.replaced_by_id = None
        if self._workflow is None:
            self._workflow = job.workflow_id, job.awaited, job.workflow_only
        job.workflow_id, job.awaited, job.workflow_only = self._workflow
        try:
            verdict = plan.enqueue(self, family)
        except InvalidRequest as error:
            self._fail(error)
            return
        if verdict.action is Action.ID_TAKEN:
            self._fail(id_taken(job))
        else:
            self.take(verdict)

    def take(self, verdict: Verdict[JobRow]) -> None:
        """Note a verdict, and the error of a duplicate that is rejected."""
        self.verdict = verdict
        if verdict.action is Action.REJECT:
            fingerprint = self.new_job.values["fingerprint"]
            self.error = self._located(DuplicateJob(verdict.existing, fingerprint, policy=self.policy))

    def result(self) -> ItemResult:
        """Return what the caller of a bulk enqueue learns."""
        replaced = self.verdict.cancel if self.verdict is not None else ()
        return ItemResult(self._result_job(), self.outcome, replaced, self.index or 0, self.error)

    def _result_job(self) -> Any:
        if self.verdict is None:
            return None
        return self.new_job if self.verdict.action is Action.ADMIT else self.verdict.existing

    def _fail(self, error: OJSError) -> None:
        self.verdict, self.error = None, self._located(error)

    def _located(self, error: OJSError) -> OJSError:
        return error if self.index is None else located(self.index, error)


Answer: TypeAlias = ItemResult | Entry
"""What a bulk enqueue knows of an item: the result of an invalid one, or the entry of a valid one."""


def result_of(answer: Answer) -> ItemResult:
    """Return what the caller learns of an item."""
    return answer.result() if isinstance(answer, Entry) else answer


def refresh_times(entries: Sequence[Entry], using: str, *, is_late: bool = False) -> datetime:
    """Return the time to decide by: the ``created_at`` of the new jobs, from which their windows count.

    First, if that ``is_late``, or after a wait of more than a second, give the jobs the time of now. It is late after a
    lost race or a deadlock, and when a stored job is newer: the job admitted last is the newest.
    """
    now = database_now(using)
    began: datetime = min(entry.new_job.values["created_at"] for entry in entries)
    if not is_late and now - began <= _FRESH:
        return began
    for entry in entries:
        set_times(entry.new_job, now)
    return now


def outcome_of(verdict: Verdict[JobRow]) -> Outcome:
    """Return the outcome of an enqueue that is not invalid."""
    match verdict.action:
        case Action.ADMIT:
            return Outcome.REPLACED if verdict.cancel else Outcome.CREATED
        case Action.REWRITE:
            return Outcome.REPLACED
        case Action.IGNORE:
            return Outcome.DEDUPLICATED
    return Outcome.REJECTED


def located(index: int, error: OJSError) -> OJSError:
    """Add the index of its item to an error."""
    error.message = f"items[{index}]{'.' if 'field' in error.details else ': '}{error.message}"
    error.details = {**error.details, "index": index}
    error.args = (error.message,)
    return error
