"""The plan decides on one intent after the other, each on what the earlier ones left; nothing here needs a database."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from django_ojs_unique import JobState, UniquePolicy
from django_ojs_unique.ojs.states import ALL, INCOMPLETE
from django_ojs_unique.unique.conflict import Action
from django_ojs_unique.unique.keys import HOLDING, KeyMode
from django_ojs_unique.unique.plan import Family, Plan

NOW = datetime(2026, 2, 12, 12, tzinfo=UTC)
NOWHERE: frozenset[JobState] = frozenset()
LAX = UniquePolicy(states=["scheduled"])
REPLACE = UniquePolicy(on_conflict="replace")
_numbers = count(1)


@dataclass(eq=False)
class Row:
    state: str = JobState.AVAILABLE
    unique_states: frozenset[JobState] = INCOMPLETE
    created_at: datetime = NOW
    scheduled_at: datetime | None = None
    expires_at: datetime | None = None
    started_at: datetime | None = None
    enqueued_at: datetime | None = NOW
    key: str | None = None
    workflow_id: int | None = None
    awaited: bool | None = None
    workflow_only: bool | None = None
    attempt: int = 0
    fingerprint: str = "f"
    id: UUID = field(default_factory=lambda: UUID(int=next(_numbers)))
    finished_at: Any = None
    run_at: Any = None
    replaced_by_id: Any = None
    lease_token: Any = "token"
    lease_expires_at: Any = NOW
    unconfirmed: Any = True

    @property
    def pk(self) -> UUID:
        return self.id

    @property
    def holds_unique_key(self) -> bool:
        return self.state in self.unique_states


class Intent:
    def __init__(self, policy: UniquePolicy | None = None, mode: KeyMode | None = None, **row: Any) -> None:
        self.policy, self.mode, self.job = policy, mode, Row(**row)

    def inherit(self, scheduled_at: datetime) -> None:
        self.job.scheduled_at, self.job.unique_states = scheduled_at, INCOMPLETE

    def rewritten(self, holder: Row, *, keep_time: bool) -> Row:
        return Row(id=holder.id, scheduled_at=holder.scheduled_at if keep_time else self.job.scheduled_at)


def family(*rows: Row, **options: Any) -> Any:
    return Family(list(rows), counted=INCOMPLETE, **options)


def enqueue(plan: Plan, found: Any, *arguments: Any, **row: Any) -> tuple[Any, Any]:
    intent: Any = Intent(*arguments, **row)
    return plan.enqueue(intent, found), intent.job


@pytest.mark.parametrize(("strategy", "action"), [("reject", Action.REJECT), ("ignore", Action.IGNORE)])
def test_a_new_job_is_the_duplicate_of_the_next_one_and_is_noted_in_the_state_that_it_has_then(strategy, action):
    plan, found = Plan(NOW), family()
    _, first = enqueue(plan, found, UniquePolicy())
    verdict, _ = enqueue(plan, found, UniquePolicy(on_conflict=strategy))
    enqueue(plan, found, REPLACE)
    assert (verdict.action, verdict.existing) == (action, first)
    assert [tuple(met) for met in verdict.met] == [(first.pk, JobState.AVAILABLE)]
    assert first.state == JobState.CANCELLED


def test_a_replaced_job_lets_go_of_all_that_it_holds_and_only_a_stored_one_is_written():
    stored = Row(JobState.ACTIVE)
    plan, found = Plan(NOW), family(stored)
    _, first = enqueue(plan, found, REPLACE)
    _, second = enqueue(plan, found, REPLACE)
    for row, by in ((stored, first), (first, second)):
        assert (row.state, row.finished_at, row.replaced_by_id) == (JobState.CANCELLED, NOW, by.pk)
        assert (row.unique_states, row.lease_token, row.lease_expires_at, row.unconfirmed) == (
            NOWHERE,
            None,
            None,
            None,
        )
    assert plan.effects.cancelled == {stored.pk: first.pk}
    assert list(plan.effects.new.values()) == [first, second]
    assert found.rows == [second]
    assert found.gave_way


def test_without_leave_to_replace_a_running_job_or_one_that_is_spared_is_met():
    running, waiting = Row(JobState.ACTIVE), Row()
    verdict, _ = enqueue(Plan(NOW, replace_active=False), family(running), REPLACE)
    assert (verdict.action, verdict.existing) == (Action.REJECT, running)
    verdict, _ = enqueue(Plan(NOW), family(waiting, spared={waiting.pk}), REPLACE)
    assert (verdict.action, verdict.existing, waiting.state) == (Action.REJECT, waiting, JobState.AVAILABLE)


@pytest.mark.parametrize("arguments", [(None,), (UniquePolicy(),), (None, KeyMode.REPLACE)])
def test_an_id_that_is_taken_is_refused_and_nothing_else_happens(arguments):
    plan, found = Plan(NOW, taken=[UUID(int=0)]), family()
    verdict, _ = enqueue(plan, found, *arguments, id=UUID(int=0))
    assert (verdict.action, plan.effects.new, found.rows) == (Action.ID_TAKEN, {}, [])
    _, job = enqueue(plan, found, *arguments)
    assert enqueue(plan, family(), *arguments, id=job.pk)[0].action is Action.ID_TAKEN


def test_who_is_admitted_past_a_live_job_holds_the_key_in_every_state_and_so_does_who_takes_its_place():
    passed = Row()
    plan, found = Plan(NOW), family(passed)
    assert [enqueue(plan, found, LAX)[1].unique_states for _ in range(2)] == [ALL, ALL]
    assert (plan.effects.released, found.gave_way) == ([passed.pk], True)
    assert enqueue(Plan(NOW), family(Row(unique_states=ALL)), REPLACE)[1].unique_states == ALL


LEFT = UUID(int=7)


@pytest.mark.parametrize("left", [{}, {"f": {LEFT}}])
def test_whether_a_finished_job_holds_the_key_for_a_live_one_is_asked_when_it_matters(left):
    asked: list[None] = []

    def ask() -> dict[str, set[UUID]]:
        asked.append(None)
        return left

    plan = Plan(NOW, left=ask)
    enqueue(plan, family(Row(JobState.COMPLETED, ALL)), UniquePolicy(states=["completed"]))
    enqueue(plan, family(Row(JobState.COMPLETED, HOLDING)), UniquePolicy())
    assert asked == []
    _, job = enqueue(plan, family(Row(JobState.COMPLETED, ALL)), UniquePolicy())
    assert (len(asked), job.unique_states == ALL) == (1, bool(left))


def test_a_live_job_that_is_cancelled_for_the_new_one_needs_nobody_to_hold_the_key_for_it():
    passed, holder = Row(unique_states=NOWHERE), Row(JobState.COMPLETED, ALL)
    plan = Plan(NOW, left=lambda: {"f": {passed.pk}})
    verdict, job = enqueue(plan, family(passed, holder), REPLACE)
    assert (verdict.cancel, job.unique_states) == ((passed,), INCOMPLETE)


def test_a_finished_job_without_the_key_does_not_give_way():
    plan, found = Plan(NOW), family(Row(JobState.COMPLETED, NOWHERE))
    assert enqueue(plan, found, UniquePolicy())[0].action is Action.ADMIT
    assert (plan.effects.released, found.gave_way) == ([], False)


def test_the_time_of_the_replaced_job_does_not_undo_what_is_held_for_others():
    policy = UniquePolicy(on_conflict="replace_except_schedule")
    later = NOW + timedelta(days=1)
    _, job = enqueue(Plan(NOW), family(Row(JobState.SCHEDULED, ALL, scheduled_at=later)), policy)
    assert (job.scheduled_at, job.unique_states) == (later, ALL)


def test_a_new_job_belongs_to_the_first_workflow_that_waits_for_one_that_it_replaces():
    rows = [Row(workflow_id=number, awaited=number < 3) for number in (1, 2, 3)]
    _, job = enqueue(Plan(NOW), family(*rows), REPLACE)
    assert (job.workflow_id, job.awaited) == (2, True)
    _, job = enqueue(Plan(NOW), family(Row(workflow_id=1, awaited=True)), REPLACE, workflow_id=7)
    assert job.workflow_id == 7


def test_jobs_that_neither_hold_the_key_nor_count_are_forgotten():
    found = Family([], counted={JobState.SCHEDULED})
    plan = Plan(NOW)
    for _ in range(5):
        enqueue(plan, found, LAX)
    assert (len(found.rows), len(plan.effects.new)) == (1, 5)


def test_a_key_is_created_rewritten_kept_and_taken_from_a_running_job():
    plan, found = Plan(NOW), family()
    verdict, first = enqueue(plan, found, None, KeyMode.REPLACE)
    assert (verdict.action, plan.effects.new) == (Action.ADMIT, {first.pk: first})
    verdict, _ = enqueue(plan, found, None, KeyMode.REPLACE)
    assert (verdict.action, plan.effects.new, plan.effects.rewritten) == (
        Action.REWRITE,
        {first.pk: verdict.existing},
        {},
    )
    kept, _ = enqueue(plan, found, None, KeyMode.UNSAFE_DEDUPE)
    assert (kept.action, kept.existing) == (Action.IGNORE, verdict.existing)
    assert kept.met
    stored = Row(scheduled_at=NOW)
    for mode, time in ((KeyMode.PRESERVE_RUN_AT, NOW), (KeyMode.REPLACE, None)):
        verdict, _ = enqueue(plan, family(stored), None, mode)
        assert plan.effects.rewritten == {stored.pk: verdict.existing}
        assert verdict.existing.scheduled_at == time
    running = Row(JobState.ACTIVE)
    found = family(running)
    verdict, job = enqueue(plan, found, None, KeyMode.REPLACE)
    assert (verdict.action, plan.effects.detached, found.rows) == (Action.ADMIT, [running], [job])


def dead(**options: Any) -> Any:
    return Row(JobState.DISCARDED, NOWHERE, **options)


def test_a_retry_meets_live_duplicates_only_and_names_the_running_one():
    finished, waiting, running = (
        Row(JobState.COMPLETED, ALL),
        Row(created_at=NOW + timedelta(1)),
        Row(JobState.ACTIVE, NOWHERE),
    )
    found = family(finished, running, waiting)
    verdict = Plan(NOW).retry(dead(), UniquePolicy(states=["completed", "available", "active"]), found, replace=False)
    assert (verdict.action, verdict.existing) == (Action.REJECT, running)
    plan, job = Plan(NOW), dead()
    assert plan.retry(job, UniquePolicy(), family(finished), replace=False).action is Action.ADMIT
    assert (plan.effects.released, plan.effects.retried) == ([finished.pk], {job.pk: job})
    assert plan.effects.held == {"f": (job.pk, UniquePolicy().unique_states)}


def test_a_retry_that_replaces_spares_running_and_hidden_jobs_and_those_that_were_retried_before():
    job, running, waiting = dead(), Row(JobState.ACTIVE), Row()
    for plan, found, met in (
        (Plan(NOW, replace_active=False), family(running), running),
        (Plan(NOW), family(waiting, running, spared={waiting.pk}), waiting),
    ):
        verdict = plan.retry(job, UniquePolicy(), found, replace=True)
        assert (verdict.action, verdict.existing, plan.effects.retried) == (Action.REJECT, met, {})
    plan, found, second = Plan(NOW), family(waiting), dead()
    assert plan.retry(job, UniquePolicy(), found, replace=True).cancel == (waiting,)
    assert plan.effects.cancelled == {waiting.pk: job.pk}
    verdict = plan.retry(second, UniquePolicy(), found, replace=True)
    assert (verdict.action, verdict.existing) == (Action.REJECT, job)


@pytest.mark.parametrize(
    ("key", "others", "states"), [(None, (), LAX.unique_states), (None, (Row(),), ALL), ("k", (), HOLDING)]
)
def test_a_retry_holds_the_key_in_the_states_of_its_policy_or_for_others_or_of_its_job_key(key, others, states):
    plan, job = Plan(NOW), dead(key=key)
    plan.retry(job, LAX, family(*others), replace=False)
    assert plan.effects.held == {"f": (job.pk, states)}


def test_a_finished_job_that_holds_its_key_keeps_it_when_it_runs_again():
    job: Any = Row(JobState.DISCARDED, ALL)
    plan, found = Plan(NOW), family(job)
    plan.retry(job, UniquePolicy(), found, replace=True)
    assert (plan.effects.released, found.rows, job.unique_states) == ([], [job], ALL)


@pytest.mark.parametrize(
    ("scheduled_at", "enqueued_at", "state"),
    [
        (NOW + timedelta(1), None, "scheduled"),
        (NOW, None, "available"),
        (None, None, "pending"),
        (None, NOW, "available"),
    ],
)
def test_a_job_that_runs_again_waits_as_it_did_before(scheduled_at, enqueued_at, state):
    job = dead(scheduled_at=scheduled_at, enqueued_at=enqueued_at)
    Plan(NOW).run_again(job)
    assert job.state == state


def test_a_due_retry_gives_way_to_what_runs_and_to_a_newer_retry_and_not_to_an_older_one():
    def waiting(seconds: int) -> Any:
        return Row(JobState.RETRYABLE, created_at=NOW + timedelta(seconds=seconds), run_at=NOW)

    policy = UniquePolicy(on_retry="discard", states=["available", "active", "retryable"])
    plan, job, older, newer = Plan(NOW), waiting(0), waiting(-1), waiting(1)
    assert plan.promote(job, policy, family(older)) is None
    assert (job.state, plan.effects.promoted) == (JobState.AVAILABLE, [job.pk])
    job = waiting(0)
    assert plan.promote(job, policy, family(older, newer)) is newer
    assert (job.state, job.finished_at, job.run_at, plan.effects.superseded) == (JobState.DISCARDED, NOW, None, [job])
    assert plan.promote(waiting(0), None, family(newer)) is None
    found = family()
    first = waiting(1)
    plan.promote(first, policy, found)
    assert plan.promote(waiting(0), policy, found) is first
