"""Retention: what finished goes, and no promised window is opened by it (S0-130)."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from django.db import connection, models, transaction
from django.db.models.signals import post_delete
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import group, lifecycle
from django_ojs_unique.enqueue.new_job import FOREVER
from django_ojs_unique.maintenance.prune import Pruned, due, prune
from django_ojs_unique.models import Job, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.ojs.states import KINDS, TERMINAL, JobState
from django_ojs_unique.workflows.advance import advance_due
from tests.support.processes import Child, Parent, together
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
ROUNDS = 2 * int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
NOTHING = Pruned()
EVERY_STATE = [str(state) for state in JobState]
COUNTS_COMPLETED = {"keys": ["type", "args"], "states": ["available", "active", "completed"], "on_conflict": "ignore"}
"""A policy, still without a period, whose jobs keep others out after they have completed."""
SOON = dict.fromkeys(KINDS, HOUR)


def finished(kind: str = "completed", *, ago: timedelta = DAY, job: Any = None, type: str = "t", **options: Any) -> Job:
    """Return a job that finished ``ago``, and was enqueued just then unless it is given."""
    job = job or Job.objects.enqueue(type, **options).job
    state, dead_letter = KINDS[kind]
    then = timezone.now() - ago
    Job._base_manager.filter(pk=job.pk).update(state=JobState.ACTIVE, started_at=then)
    lifecycle.move(Job.objects.filter(pk=job.pk), state, finished_at=then, dead_letter=dead_letter)
    job.refresh_from_db()
    return job


def pruned(now: datetime | None = None, **options: Any) -> Pruned:
    return prune(Job.objects.all(), now or timezone.now(), **{"retention": SOON, **options})


# What goes


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_goes_when_its_own_retention_has_passed(kind: str, settings: Any) -> None:
    settings.OJS_UNIQUE = {"RETENTION": {**dict.fromkeys(KINDS), kind: "PT2H"}}
    for other in KINDS:
        finished(other, args={"kind": other})
    assert pruned(retention=None) == Pruned(deleted=1)
    assert {job.args["kind"] for job in Job.objects.all()} == KINDS.keys() - {kind}


def test_the_defaults_keep_a_week_a_month_and_half_a_year() -> None:
    days = {"completed": 7, "cancelled": 7, "discarded": 30, "dead_letter": 180}
    for kind, age in days.items():
        finished(kind, ago=age * DAY + HOUR)
        finished(kind, ago=age * DAY - HOUR)
    assert pruned(retention=None) == Pruned(deleted=4)
    assert Job.objects.count() == 4


def test_a_partial_setting_is_completed_with_the_defaults(settings: Any) -> None:
    settings.OJS_UNIQUE = {"RETENTION": {"completed": None}}
    finished("completed", ago=1000 * DAY)
    finished("cancelled", ago=8 * DAY)
    assert pruned(retention=None) == Pruned(deleted=1)
    assert Job.objects.get().state == "completed"


def test_a_job_is_kept_until_the_moment_at_which_its_retention_ends() -> None:
    job = finished()
    assert job.finished_at is not None
    assert pruned(job.finished_at + HOUR - timedelta(microseconds=1)) == NOTHING
    assert pruned(job.finished_at + HOUR) == Pruned(deleted=1)


@pytest.mark.slow
def test_what_has_not_finished_stays_whatever_its_age() -> None:
    for state in JobState:
        if state not in TERMINAL:
            job = Job.objects.enqueue("t").job
            Job._base_manager.filter(pk=job.pk).update(state=state, created_at=timezone.now() - 1000 * DAY)
    assert pruned() == NOTHING
    assert Job.objects.count() == 5


def test_a_job_under_the_default_policy_keeps_nothing_open_and_goes() -> None:
    job = finished(unique={})
    assert job.window_ends_at is None
    assert pruned() == Pruned(deleted=1)


@pytest.mark.slow
def test_one_call_takes_one_batch_of_each_kind_the_oldest_first() -> None:
    for hours in (30, 20, 10):
        for kind in KINDS:
            finished(kind, ago=hours * HOUR, args={"hours": hours})
    assert pruned(batch=2) == Pruned(deleted=8)
    assert {job.args["hours"] for job in Job.objects.all()} == {10}
    assert pruned(batch=2) == Pruned(deleted=4)
    assert pruned(batch=2) == NOTHING


def test_a_suppressed_attempt_outlives_the_jobs_it_names() -> None:
    job = finished(unique={**COUNTS_COMPLETED, "period": "PT1H"})
    Job.objects.enqueue("t", unique=COUNTS_COMPLETED)
    assert pruned(timezone.now() + 2 * HOUR) == Pruned(deleted=1)
    assert SuppressedEnqueue.objects.get().existing_job_id == job.pk


def test_workers_that_died_a_day_ago_are_forgotten() -> None:
    now = timezone.now()
    for name, age in {"dead": DAY + HOUR, "silent": DAY - HOUR}.items():
        WorkerProcess.objects.create(
            id=name, hostname="h", pid=1, concurrency=1, started_at=now - 2 * DAY, heartbeat_at=now - age
        )
    assert pruned(now) == NOTHING
    assert WorkerProcess.objects.get().id == "silent"


# What keeps its window open


def test_a_job_whose_window_is_open_loses_its_payload_and_keeps_all_that_decides() -> None:
    policy = {**COUNTS_COMPLETED, "period": "P7D"}
    options = {"args": {"n": 1}, "meta": {"m": 1}, "tags": ["x"], "unique": policy, "queue": "q"}
    before = finished(**options)
    Job.objects.update(result={"r": 1}, errors=[{"e": 1}], extra={"x": 1})
    assert pruned() == Pruned(payload_pruned=1)
    after = Job.objects.get()
    assert (after.args, after.meta, after.tags, after.extra, after.errors) == ({}, {}, [], {}, [])
    assert after.result == {"r": 1}
    assert after.payload_pruned
    payload = {"args", "meta", "tags", "extra", "result", "errors", "payload_pruned"}
    for field in Job._meta.concrete_fields:
        if field.attname not in payload:
            assert getattr(after, field.attname) == getattr(before, field.attname), field.attname
    assert Job.objects.enqueue("t", **options).job == after


@pytest.mark.parametrize("state", ["completed", "discarded"])
def test_a_workflow_takes_the_result_of_a_job_that_only_its_window_keeps(handlers, state) -> None:
    unique = {**COUNTS_COMPLETED, "states": ["completed", "discarded"], "period": "P60D", "on_conflict": "ignore"}
    finished(state, unique=unique)
    lifecycle.write(Job.objects.all(), result="kept" if state == "completed" else None)
    assert pruned() == Pruned(payload_pruned=1)
    workflow = group([{"type": "t", "unique": unique}]).enqueue()
    advance_due("default")
    member = workflow.members.get()
    assert member.job_id == Job.objects.get().pk
    expected = ("kept", None) if state == "completed" else (None, "pruned")
    assert (member.result, member.error and member.error["code"]) == expected


def test_a_job_without_payload_is_not_looked_at_again_until_its_window_ends() -> None:
    job = finished(unique={**COUNTS_COMPLETED, "period": "P7D"})
    end = job.created_at + 7 * DAY
    assert pruned() == Pruned(payload_pruned=1)
    assert not any(rows.exists() for rows in due(Job.objects.all(), timezone.now(), SOON).values())
    assert pruned(end - timedelta(microseconds=1)) == NOTHING
    assert pruned(end) == Pruned(deleted=1)


@pytest.mark.parametrize("kind", KINDS)
def test_the_window_of_each_kind_is_kept_if_the_policy_counts_its_state(kind: str) -> None:
    finished(kind, unique={"states": EVERY_STATE, "period": "P7D"})
    assert pruned() == Pruned(payload_pruned=1)


def test_a_kind_that_is_not_asked_for_stays_also_when_its_window_has_ended() -> None:
    job = finished("dead_letter", unique={"states": EVERY_STATE, "period": "P7D"})
    assert pruned() == Pruned(payload_pruned=1)
    later = job.created_at + 8 * DAY
    assert pruned(later, retention={"discarded": HOUR}) == NOTHING
    assert pruned(later) == Pruned(deleted=1)


def test_a_job_without_a_fingerprint_keeps_no_window_open() -> None:
    finished(unique={"states": ["completed"], "period": "P30D"})
    Job._base_manager.update(fingerprint=None, unique_states=frozenset())
    assert pruned() == Pruned(deleted=1)


def test_a_window_without_a_period_is_kept_for_ever() -> None:
    job = finished(unique=COUNTS_COMPLETED, args={"n": 1})
    assert job.window_ends_at == FOREVER
    far = datetime(3500, 1, 1, tzinfo=UTC)
    assert pruned(far) == Pruned(payload_pruned=1)
    assert pruned(far) == NOTHING
    assert Job.objects.enqueue("t", {"n": 1}, unique=COUNTS_COMPLETED).deduplicated


def test_a_policy_that_does_not_count_the_state_in_which_a_job_finished_keeps_nothing() -> None:
    job = finished("cancelled", unique={**COUNTS_COMPLETED, "period": "P7D"})
    assert job.window_ends_at is not None
    assert pruned() == Pruned(deleted=1)


def test_a_job_whose_key_was_freed_keeps_nothing() -> None:
    finished(unique=COUNTS_COMPLETED).release_unique_key()
    assert pruned() == Pruned(deleted=1)


def test_a_month_is_counted_on_the_calendar(monkeypatch: Any) -> None:
    start = datetime(2026, 1, 31, 12, tzinfo=UTC)
    monkeypatch.setattr(timezone, "now", lambda: start)
    job = Job.objects.enqueue("t", unique={**COUNTS_COMPLETED, "period": "P1M"}).job
    finished(job=job, ago=-HOUR)
    assert job.window_ends_at == datetime(2026, 2, 28, 12, tzinfo=UTC)
    assert pruned(job.window_ends_at - HOUR) == Pruned(payload_pruned=1)
    assert pruned(job.window_ends_at) == Pruned(deleted=1)


def test_a_window_counts_from_the_moment_at_which_the_job_was_admitted() -> None:
    policy = {**COUNTS_COMPLETED, "states": ["available", "completed"], "period": "P7D", "on_conflict": "replace"}
    Job.objects.enqueue("t", unique=policy)
    job = Job.objects.enqueue("t", unique=policy).job
    assert job.window_ends_at == job.created_at + 7 * DAY


@pytest.mark.parametrize("policy", [None, {}, {"period": "P7D"}])
def test_an_enqueue_whose_policy_counts_no_finished_job_does_not_write_the_column(policy: Any) -> None:
    with CaptureQueriesContext(connection) as queries:
        Job.objects.enqueue("t", unique=policy)
    assert not any("window_ends_at" in query["sql"] for query in queries)


# S0-130: pruning a completed job inside its window does not open the window


def test_a_pruned_job_is_a_duplicate_until_its_window_ends(settings: Any, monkeypatch: Any) -> None:
    settings.OJS_UNIQUE = {"RETENTION": {"completed": "PT1H"}}
    options = {"args": {"order": 7}, "unique": {**COUNTS_COMPLETED, "period": "P7D"}}
    job = finished(**options)
    for _ in range(2):
        pruned(retention=None)
        answer = Job.objects.enqueue("t", **options)
        assert answer.deduplicated
        assert answer.job == job
    end = job.created_at + 7 * DAY
    monkeypatch.setattr(timezone, "now", lambda: end)
    assert Job.objects.enqueue("t", **options).created


def test_a_pruned_job_past_which_a_newer_one_was_admitted_is_a_duplicate_until_its_window_ends(
    monkeypatch: Any,
) -> None:
    wide = {"keys": ["type", "args"], "states": ["available", "completed"], "period": "P7D", "on_conflict": "ignore"}
    narrow = {"keys": ["type", "args"], "on_conflict": "ignore"}
    older = finished(args={"order": 7}, unique=wide)
    newer = Job.objects.enqueue("t", {"order": 7}, unique=narrow)
    assert newer.created
    older.refresh_from_db()
    assert older.unique_states == frozenset()
    finished(job=newer.job)
    assert pruned() == Pruned(deleted=1, payload_pruned=1)
    answer = Job.objects.enqueue("t", {"order": 7}, unique=wide)
    assert answer.deduplicated
    assert answer.job == older
    monkeypatch.setattr(timezone, "now", lambda: older.created_at + 7 * DAY)
    assert Job.objects.enqueue("t", {"order": 7}, unique=wide).created


def test_a_policy_that_the_stored_job_did_not_promise_keeps_nothing() -> None:
    finished(args={"order": 7}, unique={"keys": ["type", "args"]})
    pruned()
    assert Job.objects.enqueue("t", {"order": 7}, unique=COUNTS_COMPLETED).created


# Rows of the project


@pytest.fixture
def referring(transactional_db: None) -> Any:
    """Make a table with a foreign key to jobs; call with what happens when a job is deleted."""
    made: list[Any] = []

    def make(on_delete: Any) -> Any:
        meta = type("Meta", (), {"app_label": "django_ojs_unique", "db_table": "referring"})
        key = models.ForeignKey(Job, on_delete, related_name="+", null=True, db_index=False)
        model = type("Referring", (models.Model,), {"__module__": __name__, "Meta": meta, "key": key})
        made.append(model)
        with connection.schema_editor() as editor:
            editor.create_model(model)
        return model

    yield make
    for model in made:
        with connection.schema_editor() as editor:
            editor.delete_model(model)
        Job._meta.apps.all_models["django_ojs_unique"].pop("referring", None)
        Job._meta.apps.clear_cache()


def test_rows_that_cascade_go_with_their_job(referring: Any) -> None:
    model = referring(models.CASCADE)
    model.objects.create(key=finished())
    assert pruned() == Pruned(deleted=1)
    assert not model.objects.exists()


def test_rows_that_survive_their_job_forget_it(referring: Any) -> None:
    model = referring(models.SET_NULL)
    model.objects.create(key=finished())
    assert pruned() == Pruned(deleted=1)
    assert model.objects.get().key_id is None


@pytest.mark.parametrize("on_delete", [models.PROTECT, models.RESTRICT, models.DO_NOTHING])
def test_jobs_that_the_project_protects_stay_as_they_are_and_hold_up_no_others(referring: Any, on_delete: Any) -> None:
    model = referring(on_delete)
    protected = finished(args={"n": 1}, ago=2 * DAY)
    model.objects.create(key=protected)
    finished()
    assert pruned(batch=1) == Pruned(deleted=1)
    assert Job.objects.get().args == {"n": 1}
    model.objects.all().delete()
    assert pruned() == Pruned(deleted=1)


def _foreign_key(after: str) -> str:
    job, pk = Job._meta.db_table, Job._meta.pk.db_type(connection)
    extra = " ENGINE=InnoDB" if connection.vendor == "mysql" else ""
    return f"CREATE TABLE raw_reference (job {pk} NOT NULL, FOREIGN KEY (job) REFERENCES {job} (id) {after}){extra}"


@pytest.fixture
def raw_reference(transactional_db: None) -> Any:
    """Make a foreign key that Django does not know of; call with what stands after it."""

    def make(after: str, job: Job) -> None:
        with connection.cursor() as cursor:
            cursor.execute(_foreign_key(after))
            pk = Job._meta.pk.get_db_prep_save(job.pk, connection)
            cursor.execute("INSERT INTO raw_reference VALUES (%s)", [pk])

    yield make
    with connection.cursor() as cursor:
        cursor.execute("DROP TABLE raw_reference")


def test_a_raw_foreign_key_may_cascade(raw_reference: Any) -> None:
    raw_reference("ON DELETE CASCADE", finished())
    assert pruned() == Pruned(deleted=1)


def test_a_raw_foreign_key_that_refuses_holds_up_no_other_job(raw_reference: Any, caplog: Any) -> None:
    held = finished(args={"held": True})
    raw_reference("" if connection.vendor == "mysql" else "DEFERRABLE INITIALLY DEFERRED", held)
    for _ in range(6):
        finished()
    assert pruned() == Pruned(deleted=6)
    assert Job.objects.get() == held
    assert f"Job {held.pk} cannot be pruned" in caplog.text


def test_receivers_of_deletions_are_called() -> None:
    gone: list[Any] = []
    job = finished()

    def note(instance: Any, **kwargs: Any) -> None:
        gone.append(instance.pk)

    post_delete.connect(note, sender=Job)
    try:
        pruned()
    finally:
        post_delete.disconnect(note, sender=Job)
    assert gone == [job.pk]


# Many at once


def lock_one(parent: Parent, pk: Any) -> None:
    with transaction.atomic():
        Job.objects.select_for_update().get(pk=pk)
        parent.tell("locked")
        parent.hear()


@pytest.mark.skipif("connection.vendor == 'sqlite'", reason="SQLite has one writer")
def test_rows_that_somebody_has_locked_are_passed_over(start: Callable[..., Child]) -> None:
    job = finished(ago=2 * DAY)
    finished()
    child = start(lock_one, job.pk)
    child.hear()
    assert pruned(batch=1) == Pruned(deleted=1)
    assert Job.objects.get() == job
    assert pruned() == NOTHING
    child.tell("go on")
    child.result()
    assert pruned() == Pruned(deleted=1)


KEYS = 40
PROMISED = {"keys": ["type", "args"], "states": ["available", "completed"], "period": "P7D", "on_conflict": "ignore"}
ORDINARY = {"keys": ["type", "args"], "on_conflict": "ignore"}


def round_type(number: int) -> str:
    return f"round.n{number}"


def prune_all(number: int) -> Pruned:
    total = NOTHING
    for _ in range(KEYS):
        total += pruned(batch=7)
    return total


def enqueue_all(order: int, number: int) -> list[tuple[int, Any, bool]]:
    """Ask for each key, odd ones under a policy that counts completed jobs."""
    answers = []
    for key in range(KEYS)[::order]:
        result = Job.objects.enqueue(round_type(number), {"key": key}, unique=PROMISED if key % 2 else ORDINARY)
        answers.append((key, result.job.pk, result.created))
    return answers


@pytest.mark.torture
@pytest.mark.django_db(transaction=True)
def test_many_pruners_and_enqueues_open_no_window_and_lose_nothing() -> None:
    before: dict[tuple[int, int], Any] = {}
    for number in range(ROUNDS):
        for key in range(KEYS):
            policy = PROMISED if key % 2 else ORDINARY
            job = finished(type=round_type(number), args={"key": key}, unique=policy)
            before[number, key] = job.pk
    players = [prune_all, prune_all, prune_all, partial(enqueue_all, 1), partial(enqueue_all, -1)]
    answers = together(players, rounds=ROUNDS)
    totals = sum((total for round_ in answers for total in round_[:3]), NOTHING) + pruned()
    assert totals == Pruned(deleted=ROUNDS * KEYS // 2, payload_pruned=ROUNDS * KEYS // 2)
    for number, round_ in enumerate(answers):
        for key in range(KEYS):
            told = {(pk, created) for asked in round_[3:] for asked_key, pk, created in asked if asked_key == key}
            if key % 2:
                assert told == {(before[number, key], False)}
            else:
                assert sorted(created for _, created in told) == [False, True]
                assert len({pk for pk, _ in told}) == 1
                assert Job.objects.get(pk=told.pop()[0]).state == "available"
    assert Job.objects.count() == ROUNDS * KEYS


# Plans


@pytest.mark.slow
@pytest.mark.skipif("connection.vendor == 'mysql'", reason="its EXPLAIN changes with the statistics")
def test_pruning_reads_by_its_indexes() -> None:
    now = timezone.now()
    insert_all(
        Job(
            type="t",
            queue="default",
            state=state,
            finished_at=now - timedelta(minutes=number),
            created_at=now - DAY,
            unique={"states": ["completed"]},
            window_ends_at=now + timedelta(minutes=1990 - number) if number % 2 else None,
            payload_pruned=number % 4 == 1,
        )
        for number in range(2000)
        for state in sorted(TERMINAL)
    )
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    # Nothing is past its retention but a few rows: the plan must not read those that are kept.
    retention = dict.fromkeys(KINDS, timedelta(minutes=1990))
    for kind, rows in due(Job.objects.all(), now, retention).items():
        plan = rows[:1000].explain() + rows.values_list("pk")[:1].explain()
        assert plan.count("ojs_job_finished") == 2, (kind, plan)
        assert "Seq Scan" not in plan
        assert "SCAN" not in plan
