"""The plan: what enqueues, retries and promotions do to the stored jobs of their unique keys (OJS unique jobs).

It is pure: rows and the time come in, and effects come out. Each intent is judged on its family as the earlier ones
left it; for that, the rows change in memory as they will in the database.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Protocol
from uuid import UUID

from ..ojs.states import ALL, TERMINAL, JobState
from .conflict import FREE, Action, Verdict, duplicates, judge, meeting
from .keys import HOLDING, KeyAction, KeyMode
from .keys import judge as judge_key
from .policy import OnConflict, UniquePolicy
from .row import JobRow


class Intent(Protocol):
    """A job to enqueue (`enqueue.entry.Entry`), and the policy or the mode of its key that decides, or neither."""

    @property
    def job(self) -> JobRow: ...
    @property
    def policy(self) -> UniquePolicy | None: ...
    @property
    def mode(self) -> KeyMode | str | None: ...
    def inherit(self, scheduled_at: datetime) -> None: ...
    def rewritten(self, holder: JobRow, *, keep_time: bool) -> JobRow: ...


@dataclass(slots=True)
class Family:
    """The rows of one unique key, stored and new, as a plan has left them so far.

    ``counted``: the states that the policies of the plan count; rows in other states are dropped once they have
    released the key, or many intents of one key would take quadratic time. ``spared``: the rows that nothing may
    replace. ``gave_way``: whether a stored row was cancelled, or released the key.
    """

    rows: list[JobRow] = field(default_factory=list)
    counted: Collection[str] = ()
    spared: Collection[UUID] = ()
    gave_way: bool = False


@dataclass(slots=True)
class Effects:
    """What is written of a plan, or of a repair, by the ids of jobs.

    ``new`` jobs are inserted. ``detached`` ones lose the job key and all further attempts, ``released`` ones the unique
    key. ``changed`` ones get single fields, ``rewritten`` ones all of a new request. ``cancelled`` ones name their
    replacement; those of them that run are ``stopped``. ``retried`` ones run again in their new state; ``held`` names
    by fingerprint the one that takes the unique key, and its unique states. Due retries are ``promoted``, or discarded
    if they are ``superseded``. Of the ``forced`` fingerprints, a live job may be left that does not hold the key.
    """

    new: dict[UUID, JobRow] = field(default_factory=dict)
    detached: list[JobRow] = field(default_factory=list)
    released: list[UUID] = field(default_factory=list)
    changed: dict[UUID, dict[str, Any]] = field(default_factory=dict)
    rewritten: dict[UUID, JobRow] = field(default_factory=dict)
    cancelled: dict[UUID, UUID] = field(default_factory=dict)
    stopped: list[UUID] = field(default_factory=list)
    retried: dict[UUID, JobRow] = field(default_factory=dict)
    held: dict[str, tuple[UUID, frozenset[Any]]] = field(default_factory=dict)
    promoted: list[UUID] = field(default_factory=list)
    superseded: list[JobRow] = field(default_factory=list)
    forced: Collection[str] = ()


class Plan:
    """Decides on one intent after the other.

    ``judged_at``: the time by which windows and periods count, if that is not ``now``.
    ``replace_active``: whether running duplicates may be cancelled. ``taken``: ids in use. ``left`` returns, by
    fingerprint, the stored live jobs that do not hold the unique key; it is called only if that matters.
    """

    def __init__(
        self,
        now: datetime,
        *,
        judged_at: datetime | None = None,
        replace_active: bool = True,
        taken: Iterable[UUID] = (),
        left: Callable[[], Mapping[str, Collection[UUID]]] = dict,
    ) -> None:
        self.effects = Effects()
        self._now, self._judged_at = now, judged_at
        self._replace_active = replace_active
        self._taken = set(taken)
        self._left = left

    def enqueue(self, intent: Intent, family: Family) -> Verdict[JobRow]:
        """Decide on a job to enqueue. Raises what ``rewritten`` raises, and nothing has changed then."""
        if intent.mode is not None:
            return self._by_key(intent, family, intent.mode)
        if intent.policy is not None:
            return self._by_policy(intent, family, intent.policy)
        return FREE if self._admit(intent.job) else Verdict(Action.ID_TAKEN)

    def retry(self, job: JobRow, policy: UniquePolicy, family: Family, *, replace: bool) -> Verdict[JobRow]:
        """Decide on a finished job that is to run again: no live duplicate may stay.

        ``replace`` cancels the live duplicates, but none that is retried by this plan.
        """
        rows = [row for row in family.rows if row.pk != job.pk]
        verdict = judge(rows, policy, self._now, replace_active=True, on_conflict=OnConflict.REPLACE)
        if rivals := verdict.cancel:
            spared = [row for row in rivals if row.pk in family.spared]
            is_running = any(row.state == JobState.ACTIVE for row in rivals)
            is_retried = any(row.pk in self.effects.retried for row in rivals)
            if not replace or is_retried or spared or (is_running and not self._replace_active):
                named = spared if spared and replace and not is_retried else rivals
                # Name a running duplicate if there is one, else the newest.
                return Verdict(
                    Action.REJECT, max(named, key=lambda row: (row.state == JobState.ACTIVE, row.created_at))
                )
        is_left = any(row.state not in TERMINAL for row in verdict.release)
        states = HOLDING if job.key is not None else ALL if is_left else policy.unique_states
        self._make_way(job, verdict, family)
        self.effects.held[job.fingerprint] = job.pk, states
        self.run_again(job)
        return verdict

    def run_again(self, job: JobRow) -> None:
        """Let a finished job run again, whatever else lives."""
        if job.scheduled_at is not None and job.scheduled_at > self._now:
            job.state = JobState.SCHEDULED
        elif job.scheduled_at is None and job.enqueued_at is None:
            job.state = JobState.PENDING
        else:
            job.state = JobState.AVAILABLE
        if job.expires_at is not None and job.expires_at <= self._now:
            job.expires_at = None
        self.effects.retried[job.pk] = job

    def promote(self, job: JobRow, policy: UniquePolicy | None, family: Family) -> JobRow | None:
        """Decide on a due retry: it goes on, or gives way to the job that is returned.

        That is the newest one that its policy counts; another that waits for its retry counts only if it is newer.
        """
        counted: list[JobRow] = [] if policy is None else duplicates(family.rows, policy, self._now)
        family.rows.append(job)
        for row in counted:
            if row.state != JobState.RETRYABLE or (row.created_at, row.pk) > (job.created_at, job.pk):
                job.state, job.finished_at, job.run_at = JobState.DISCARDED, self._now, None
                self.effects.superseded.append(job)
                return row
        job.state = JobState.AVAILABLE
        self.effects.promoted.append(job.pk)
        return None

    def _by_policy(self, intent: Intent, family: Family, policy: UniquePolicy) -> Verdict[JobRow]:
        job = intent.job
        verdict = judge(
            family.rows,
            policy,
            self._now,
            judged_at=self._judged_at,
            replace_active=self._replace_active,
            spared=family.spared,
        )
        if verdict.action is Action.IGNORE and verdict.existing is not None:
            self._hand_on(job, verdict.existing)
        if verdict.action is not Action.ADMIT:
            return verdict
        if not self._admit(job):
            return Verdict(Action.ID_TAKEN)
        for_others = self._holds_for_others(job, verdict)
        self._make_way(job, verdict, family)
        if verdict.inherited_schedule is not None:
            intent.inherit(verdict.inherited_schedule)
        if job.enqueued_at is not None and verdict.inherited_place is not None:
            job.enqueued_at = min(job.enqueued_at, verdict.inherited_place)
        if for_others:  # after `inherit`, which sets the unique states anew
            job.unique_states = ALL
        return verdict

    def _by_key(self, intent: Intent, family: Family, mode: KeyMode | str) -> Verdict[JobRow]:
        job, holder = intent.job, next(iter(family.rows), None)
        action = judge_key(holder, mode, self._now)
        if holder is None or action in (KeyAction.CREATE, KeyAction.SUCCEED):
            if not self._admit(job):
                return Verdict(Action.ID_TAKEN)
            if holder is not None:
                self.effects.detached.append(holder)
            family.rows[:] = [job]
            return FREE
        if action is KeyAction.KEEP:
            self._hand_on(job, holder)
            return meeting(Action.IGNORE, holder)
        holder = intent.rewritten(holder, keep_time=action is KeyAction.REWRITE_BUT_TIME)
        (self.effects.new if holder.pk in self.effects.new else self.effects.rewritten)[holder.pk] = holder
        family.rows[:] = [holder]
        return Verdict(Action.REWRITE, holder)

    def _admit(self, job: JobRow) -> bool:
        """Let a job be inserted, unless its id is taken."""
        if job.pk in self._taken:
            return False
        self._taken.add(job.pk)
        self.effects.new[job.pk] = job
        return True

    def _make_way(self, job: JobRow, verdict: Verdict[JobRow], family: Family) -> None:
        """Cancel and release for a job; it belongs to the workflow that waits for one that it replaces."""
        for row in verdict.cancel:
            self._hand_on(row, job)
            if job.pk in self.effects.new and job.workflow_id is None and row.awaited:
                job.workflow_id, job.awaited = row.workflow_id, True
            if row.pk not in self.effects.new:
                self.effects.cancelled[row.pk] = job.pk
                if row.state == JobState.ACTIVE:
                    self.effects.stopped.append(row.pk)
                family.gave_way = True
            row.state, row.finished_at, row.run_at, row.replaced_by_id = JobState.CANCELLED, self._now, None, job.pk
            row.lease_token = row.lease_expires_at = row.unconfirmed = None
            row.unique_states = frozenset()
        for row in verdict.release:
            if row.unique_states and row.pk not in self.effects.new:
                self.effects.released.append(row.pk)
                family.gave_way = True
            row.unique_states = frozenset()
        kept = (
            row for row in family.rows if row.pk != job.pk and (row.holds_unique_key or row.state in family.counted)
        )
        family.rows[:] = [*kept, job]

    def _hand_on(self, job: JobRow, other: JobRow) -> None:
        """Let the caller who needs a job, if there is one, need the other job instead: it takes the place."""
        if other.workflow_only and not job.workflow_only and other.state not in TERMINAL:
            other.workflow_only = None
            if other.pk not in self.effects.new:
                self.effects.changed[other.pk] = {"workflow_only": None}

    def _holds_for_others(self, job: JobRow, verdict: Verdict[JobRow]) -> bool:
        """Whether an admitted job must hold its unique key in every state, because of live jobs that do not hold it.

        So the constraint stops every later enqueue that cannot see those, until one that can has decided about them.
        """
        if any(row.state not in TERMINAL for row in verdict.release):
            return True
        if any(row.unique_states == ALL for row in verdict.cancel):
            return True  # perhaps there are none by now: the next enqueue will find that out
        if not any(row.unique_states == ALL for row in verdict.release):
            return False
        gone = {*self.effects.cancelled, *(row.pk for row in verdict.cancel)}
        return not gone.issuperset(self._left().get(job.fingerprint, ()))
