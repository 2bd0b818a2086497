"""S0-070..S0-115: what happens when a duplicate is met."""

import pickle
from datetime import timedelta
from functools import partial
from unittest.mock import patch
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, lifecycle
from django_ojs_unique.db import capabilities
from django_ojs_unique.db.dialect import Dialect
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.jobs import (
    ALL_STATES,
    DAY,
    DEFAULT_STATES,
    HOUR,
    attempt,
    before_the_insert,
    claim,
    columns,
    enqueue,
    fresh,
    live,
    outcome,
    row,
    stored,
)

pytestmark = pytest.mark.django_db

WAITING = ["available", "scheduled", "retryable", "pending"]
TERMINAL = ["completed", "cancelled", "discarded"]
REPLACING = ["replace", "replace_except_schedule"]


def each(values, prefix, name="value"):
    return pytest.mark.parametrize(name, [pytest.param(value, id=f"{prefix}-{value}") for value in values])


def on(strategy, **policy):
    return {"on_conflict": strategy, **policy}


# reject


@each(DEFAULT_STATES, "S0-070", "state")
def test_reject_stores_no_row_and_leaves_the_duplicate_as_it_is(state):
    before = columns(stored(state))
    with pytest.raises(DuplicateJob):
        enqueue("t", {"other": 1}, unique=on("reject"))
    assert list(Job.objects.values()) == [before]


@each(ALL_STATES, "S0-071", "state")
def test_the_error_is_what_the_specification_prints(state):
    job = stored(state)
    with pytest.raises(DuplicateJob) as caught:
        enqueue(unique=on("reject", states=ALL_STATES))
    assert caught.value.code == "duplicate"
    assert caught.value.message == "A job matching the uniqueness key already exists"
    assert caught.value.details == {"existing_job_id": str(job.pk), "existing_job_state": state}


def test_the_text_of_the_error_names_the_job_what_counts_and_what_to_do(settings, django_assert_num_queries):
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": False}
    by_user = {"keys": ["queue", "args"], "args_keys": ["user", "/at/city"]}
    args = {"user": 5, "at": {"city": "Bern"}}
    job = enqueue(args=args, unique=by_user).job
    named = f"'t' {job.pk} is available; its unique key is type + queue + args/at/city + args.user. Use the error's"
    in_bulk = partial(Job.objects.enqueue_many, [{"type": "t", "args": args, "unique": by_user}], mode="atomic")
    for again in partial(enqueue, args=args, unique=by_user), in_bulk:
        with pytest.raises(DuplicateJob) as caught:
            again()
        with django_assert_num_queries(0):
            assert named in str(caught.value)
        assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    claim(job)
    with pytest.raises(DuplicateJob) as caught:
        enqueue(args=args, unique={**by_user, "on_conflict": "replace"})
    assert f"{job.pk} is active" in str(caught.value)
    assert "enqueue again when it has finished" in str(caught.value)


@pytest.mark.parametrize("retryable", [pytest.param(False, id="S0-072")])
def test_a_duplicate_is_not_worth_a_retry_and_names_the_key(retryable):
    job = enqueue().job
    with pytest.raises(DuplicateJob) as caught:
        enqueue()
    assert caught.value.retryable is retryable
    assert caught.value.fingerprint == job.fingerprint


@pytest.mark.parametrize("protocol", [pytest.param(n, id=f"S0-073-{n}") for n in range(pickle.HIGHEST_PROTOCOL + 1)])
def test_the_error_carries_the_existing_job_and_survives_a_pickle(protocol):
    job = stored("active")
    with pytest.raises(DuplicateJob) as caught:
        enqueue()
    for error in (caught.value, pickle.loads(pickle.dumps(caught.value, protocol))):
        assert error.existing_job == job
        assert error.existing_job.type == "t"
        assert error.existing_job_id == job.pk
        assert error.existing_job_state == "active"
        assert error.fingerprint == job.fingerprint
        assert error.details == caught.value.details


@pytest.mark.parametrize("unique", [pytest.param({}, id="S0-074"), pytest.param({"keys": []}, id="S0-074-keys")])
def test_reject_is_the_default_strategy(unique):
    enqueue(unique=unique)
    with pytest.raises(DuplicateJob):
        enqueue(unique=unique)


@each(["reject", *REPLACING], "S0-075", "strategy")
def test_after_the_error_the_callers_transaction_stays_usable(strategy, settings, django_capture_on_commit_callbacks):
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": False}
    stored("active")
    with transaction.atomic():
        before = enqueue("before").job
        with pytest.raises(DuplicateJob):
            enqueue(unique=on(strategy))
        after = enqueue("after").job
        assert not connection.needs_rollback
    assert {fresh(before).type, fresh(after).type} == {"before", "after"}


@pytest.mark.parametrize("state", [pytest.param("active", id="S0-076")])
def test_the_state_in_the_answer_is_the_one_that_decided(state):
    job = stored(state)
    with pytest.raises(DuplicateJob) as caught:
        enqueue()
    lifecycle.cancel(row(job), timezone.now())
    assert caught.value.existing_job_state == caught.value.existing_job.state == state


# replace


@each(WAITING, "S0-080", "state")
@pytest.mark.parametrize("strategy", REPLACING)
def test_replace_cancels_a_waiting_duplicate_and_stores_the_new_job(state, strategy):
    old = stored(state, args={"n": 1})
    result = enqueue("t", {"n": 2}, unique=on(strategy))
    assert (str(result.outcome), result.created, result.deduplicated) == ("replaced", True, False)
    assert [job.pk for job in result.replaced] == [old.pk]
    assert result.replaced[0].state == fresh(old).state == "cancelled"
    assert result.job.pk != old.pk
    assert fresh(result.job).args == {"n": 2}
    assert fresh(result.job).state == ("scheduled" if (state, strategy) == ("scheduled", REPLACING[1]) else "available")


@each(WAITING, "S0-081", "state")
def test_the_cancelled_row_stays_with_its_finish_time_and_a_link_to_its_replacement(state, clock):
    before = columns(stored(state, args={"n": 1}))
    clock.advance(HOUR)
    new = enqueue("t", {"n": 2}, unique=on("replace")).job
    changed = {
        "state": "cancelled",
        "finished_at": clock.now,
        "replaced_by_id": new.pk,
        "unique_states": frozenset(),
        "run_at": None,
    }
    assert row_of(before["id"]) == {**before, **changed}


def row_of(pk):
    return Job.objects.values().get(pk=pk)


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-082-{s}") for s in REPLACING])
def test_a_replacement_sends_a_cancel_signal_for_the_old_job_first(strategy, received):
    old = enqueue().job
    received.clear()
    new = enqueue(unique=on(strategy)).job
    assert [name for name, _ in received] == ["cancelled", "suppressed", "enqueued"]
    told = received[0][1]
    assert (told["job"].pk, told["job"].state, told["replaced_by"]) == (old.pk, "cancelled", new.pk)
    assert told["using"] == "default"


@pytest.fixture
def best_effort(monkeypatch):
    """A database whose constraint is not there; `test_strength` really drops it."""
    monkeypatch.setattr(capabilities, "_keeps_promise", lambda model, using: False)


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-083-{s}") for s in REPLACING])
def test_a_best_effort_database_rejects_instead_of_replacing_an_active_job(strategy, best_effort):
    before = columns(stored("active"))
    with pytest.raises(DuplicateJob) as caught:
        enqueue(unique=on(strategy))
    assert caught.value.existing_job_state == "active"
    assert list(Job.objects.values()) == [before]


@each(WAITING, "S0-083-waiting", "state")
def test_a_best_effort_database_still_replaces_a_waiting_job(state, best_effort):
    stored(state)
    assert outcome(unique=on("replace")) == "replaced"


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-084-{s}") for s in REPLACING])
def test_a_strong_database_cancels_an_active_job_whose_result_is_then_refused(strategy):
    old = enqueue().job
    token = claim(old)
    new = enqueue(unique=on(strategy)).job
    after = columns(old)
    assert (after["state"], after["replaced_by_id"]) == ("cancelled", new.pk)
    assert (after["lease_token"], after["lease_expires_at"]) == (None, None)
    now = timezone.now()
    assert lifecycle.complete(row(old), now, token=token, result={"ok": 1}) == 0
    assert lifecycle.schedule_retry(row(old), now, token=token, errors=[]) == 0
    assert lifecycle.discard(row(old), now, token=token, errors=[]) == 0
    assert lifecycle.requeue(row(old), token=token) == 0
    assert lifecycle.rescue(row(old), now, token=token, errors=[]) == 0
    assert columns(old) == after


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-085-{s}") for s in REPLACING])
def test_the_project_can_forbid_replacing_an_active_job(strategy, settings):
    before = columns(stored("active"))
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": False}
    with pytest.raises(DuplicateJob) as caught:
        enqueue(unique=on(strategy))
    assert caught.value.existing_job_id == before["id"]
    assert list(Job.objects.values()) == [before]
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": True}
    assert outcome(unique=on(strategy)) == "replaced"


class Failure(Exception):
    pass


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-086-{s}") for s in REPLACING])
@pytest.mark.parametrize("inside", [True, False])
def test_a_failure_between_the_two_steps_leaves_the_old_job_unchanged(strategy, inside, transactional_db):
    before = columns(enqueue().job)

    def fail(*args):
        assert columns_state(before["id"]) == "cancelled"
        raise Failure

    with patch.object(Dialect, "insert", fail):
        if inside:
            with transaction.atomic(), pytest.raises(Failure):
                enqueue(unique=on(strategy))
        else:
            with pytest.raises(Failure):
                enqueue(unique=on(strategy))
    assert list(Job.objects.values()) == [before]
    assert not SuppressedEnqueue.objects.exists()


def columns_state(pk):
    return Job.objects.values_list("state", flat=True).get(pk=pk)


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-087-{s}") for s in REPLACING])
def test_of_many_replacements_one_live_job_remains_and_none_is_lost(strategy):
    jobs = [enqueue(unique=on(strategy)).job for _ in range(10)]
    assert [fresh(job).state for job in jobs] == ["cancelled"] * 9 + ["available"]
    assert [fresh(job).replaced_by_id for job in jobs] == [*[job.pk for job in jobs[1:]], None]


@each(TERMINAL, "S0-088", "state")
@pytest.mark.parametrize("strategy", REPLACING)
def test_a_finished_duplicate_keeps_its_state_releases_its_unique_key_and_the_new_job_is_stored(state, strategy):
    unique = on(strategy, states=ALL_STATES)
    before = columns(stored(state, unique=unique))
    result = enqueue(unique=unique)
    assert (str(result.outcome), result.replaced) == ("created", ())
    assert row_of(before["id"]) == {**before, "unique_states": frozenset()}
    assert fresh(result.job).holds_unique_key


def several(*states):
    """Store live jobs of one key side by side: each is admitted past the unique key of the one before."""
    jobs = []
    for state in states:
        job = stored(state)
        lifecycle.release_unique_keys(row(job))
        row(job).update(created_at=job.created_at - DAY, type="t")
        jobs.append(fresh(job))
        row(job).update(fingerprint=None)
    for job in jobs:
        row(job).update(fingerprint=job.fingerprint)
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-089-{s}") for s in REPLACING])
def test_of_several_duplicates_all_are_cancelled(strategy):
    jobs = several("available", "retryable", "active", "pending")
    result = enqueue(unique=on(strategy))
    assert {job.pk for job in result.replaced} == {job.pk for job in jobs}
    assert {fresh(job).state for job in jobs} == {"cancelled"}
    assert {fresh(job).replaced_by_id for job in jobs} == {result.job.pk}


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-089-mixed-{s}") for s in REPLACING])
def test_one_duplicate_that_cannot_be_replaced_rejects_the_whole(strategy, settings):
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": False}
    several("available", "active", "pending")
    before = list(Job.objects.order_by("pk").values())
    answer, named = attempt(unique=on(strategy))
    assert (answer, named.state) == ("rejected", "active")
    assert list(Job.objects.order_by("pk").values()) == before


@pytest.mark.parametrize("strategy", [pytest.param(s, id=f"S0-090-{s}") for s in REPLACING])
def test_replace_without_a_duplicate_is_a_plain_insert(strategy):
    result = enqueue(unique=on(strategy))
    assert (str(result.outcome), result.replaced, Job.objects.count()) == ("created", (), 1)


@each(WAITING, "S0-091", "state")
def test_a_replaced_job_is_never_executed_even_if_its_id_was_prefetched(state):
    prefetched = stored(state)
    enqueue(unique=on("replace"))
    now = timezone.now() + 2 * DAY
    row(prefetched).update(created_at=now)
    assert lifecycle.promote(row(prefetched), now) == 0
    assert lifecycle.retry_waiting(row(prefetched), now) == 0
    assert lifecycle.retry_finished(row(prefetched), now) == 0
    assert lifecycle.claim(row(prefetched), now, worker_id="w", token=uuid4(), lease=HOUR) == 0
    assert fresh(prefetched).state == "cancelled"


# replace_except_schedule

KEEP = {"on_conflict": "replace_except_schedule"}


@pytest.mark.parametrize(
    "asked", [pytest.param(2 * DAY, id="S0-100"), pytest.param(None, id="S0-101"), pytest.param(-DAY, id="S0-100-past")]
)
def test_a_scheduled_duplicate_hands_down_its_schedule(asked, clock):
    x = clock.now + DAY
    old = enqueue("t", {"n": 1}, meta={"m": 1}, scheduled_at=x).job
    y = asked and clock.now + asked
    new = enqueue("t", {"n": 2}, meta={"m": 2}, scheduled_at=y, unique=KEEP).job
    after = fresh(new)
    assert (after.state, after.scheduled_at, after.run_at) == ("scheduled", x, x)
    assert (after.args, after.meta) == ({"n": 2}, {"m": 2})
    assert (new.scheduled_at, new.state) == (x, "scheduled")
    assert fresh(old).state == "cancelled"


@each(["available", "active", "retryable", "pending"], "S0-102", "state")
@pytest.mark.parametrize("asked", [None, DAY])
def test_a_duplicate_that_is_not_scheduled_hands_down_nothing(state, asked, clock):
    old = stored(state)
    row(old).update(scheduled_at=clock.now - DAY)
    y = asked and clock.now + asked
    new = enqueue(scheduled_at=y, unique=KEEP).job
    assert (fresh(new).state, fresh(new).scheduled_at) == ("scheduled" if asked else "available", y)


@pytest.mark.parametrize("late", [pytest.param(HOUR, id="S0-103"), pytest.param(timedelta(0), id="S0-103-now")])
def test_an_inherited_schedule_that_has_passed_makes_the_new_job_available_at_once(late, clock):
    x = clock.now + HOUR
    enqueue(scheduled_at=x)
    clock.advance(HOUR + late)
    new = fresh(enqueue(scheduled_at=clock.now + DAY, unique=KEEP).job)
    assert (new.state, new.scheduled_at, new.run_at, new.enqueued_at) == ("available", x, None, x)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [pytest.param(True, "replaced", id="S0-104-allowed"), pytest.param(False, "rejected", id="S0-104-forbidden")],
)
def test_an_active_duplicate_is_replaced_or_rejected_as_under_replace(allowed, expected, settings):
    stored("active")
    settings.OJS_UNIQUE = {"REPLACE_ACTIVE": allowed}
    assert outcome(unique=KEEP) == expected


@pytest.mark.parametrize("state", [pytest.param("retryable", id="S0-105")])
def test_the_next_retry_is_no_schedule(state):
    assert stored(state).run_at is not None
    new = fresh(enqueue(unique=KEEP).job)
    assert (new.state, new.scheduled_at, new.run_at) == ("available", None, None)


@pytest.mark.parametrize("unique", [pytest.param(KEEP, id="S0-106")])
def test_the_duplicate_is_cancelled_and_a_new_row_with_a_new_id_stored(unique):
    old = stored("scheduled", args={"n": 1})
    result = enqueue("t", {"n": 2}, unique=unique)
    assert result.job.pk != old.pk
    assert (fresh(old).state, fresh(old).args) == ("cancelled", {"n": 1})


@pytest.mark.slow
@pytest.mark.parametrize("calls", [pytest.param(10, id="S0-107")])
def test_a_chain_keeps_the_first_schedule(calls, clock):
    x = clock.now + DAY
    for n in range(calls):
        job = enqueue("t", {"n": n}, scheduled_at=x + n * HOUR, unique=KEEP).job
        clock.advance(HOUR)
    assert (live().get().pk, live().get().scheduled_at, live().get().args) == (job.pk, x, {"n": calls - 1})


# ignore


@each(DEFAULT_STATES, "S0-110", "state")
def test_ignore_stores_no_row_and_succeeds(state):
    before = columns(stored(state))
    result = enqueue("t", {"other": 1}, unique=on("ignore"))
    assert list(Job.objects.values()) == [before]
    assert result.job.pk == before["id"]


@each(ALL_STATES, "S0-111", "state")
def test_the_result_of_ignore_is_the_existing_job(state):
    job = stored(state)
    result = enqueue(unique=on("ignore", states=ALL_STATES))
    assert (result.job.id, result.job.type, result.job.state) == (job.pk, "t", state)
    assert (str(result.outcome), result.deduplicated, result.created) == ("deduplicated", True, False)


@each(["ignore", "reject", *REPLACING], "S0-112", "strategy")
def test_the_first_enqueue_is_created_and_not_deduplicated(strategy):
    result = enqueue(unique=on(strategy))
    assert (str(result.outcome), result.created, result.deduplicated) == ("created", True, False)


@pytest.mark.parametrize("state", [pytest.param("active", id="S0-113")])
def test_the_existing_job_in_the_result_is_whole(state):
    job = stored(state, args={"n": 1}, meta={"m": 2}, tags=["a"], priority=7)
    existing = enqueue(unique=on("ignore")).job
    for field in Job._meta.concrete_fields:
        assert getattr(existing, field.attname) == getattr(job, field.attname)


@pytest.mark.parametrize("n", [pytest.param(10, id="S0-114")])
def test_of_many_ignores_one_is_created_and_all_name_it(n):
    results = [enqueue(unique=on("ignore")) for _ in range(n)]
    assert [result.created for result in results] == [True] + [False] * (n - 1)
    assert {result.job.pk for result in results} == {results[0].job.pk}


@pytest.mark.parametrize("state", [pytest.param(s, id=f"S0-115-{s}") for s in TERMINAL])
def test_when_the_duplicate_finishes_between_check_and_answer_the_answer_names_a_real_job(state):
    """The insert loses to a job that has finished when the enqueue looks again: then the new job is stored."""

    def finish():
        return stored(state)

    with before_the_insert(finish):
        result = enqueue(unique=on("ignore"))
    assert (str(result.outcome), result.job.state) == ("created", "available")
    assert fresh(result.job).pk == result.job.pk


# what is recorded


@pytest.mark.parametrize(
    ("strategy", "recorded"),
    [("reject", "rejected"), ("ignore", "deduplicated"), *[(s, "replaced") for s in REPLACING]],
)
def test_each_suppressed_attempt_is_recorded_and_announced(strategy, recorded, received):
    old = enqueue().job
    received.clear()
    _, job = attempt("t", {"n": 1}, unique=on(strategy))
    record = SuppressedEnqueue.objects.get()
    assert (record.outcome, record.on_conflict, record.existing_job_id) == (recorded, strategy, old.pk)
    assert (record.fingerprint, record.type, record.args) == (old.fingerprint, "t", {"n": 1})
    assert record.existing_state == "available"
    assert record.job_id == (job.pk if recorded == "replaced" else None)
    told = dict(received)["suppressed"]
    assert (told["outcome"], told["existing_job"].pk, told["using"]) == (recorded, old.pk, "default")


def test_nothing_is_recorded_where_the_project_wants_no_records(settings):
    settings.OJS_UNIQUE = {"RECORD_SUPPRESSED": False}
    enqueue()
    for strategy in ("reject", "ignore", *REPLACING):
        attempt(unique=on(strategy))
    assert not SuppressedEnqueue.objects.exists()


def test_a_receiver_that_raises_disturbs_nothing(received, caplog):
    from django_ojs_unique.signals import job_enqueued

    def broken(**arguments):
        raise Failure("receiver")

    job_enqueued.connect(broken)
    try:
        assert outcome() == "created"
    finally:
        job_enqueued.disconnect(broken)
    assert "receiver" in caplog.text
    assert [name for name, _ in received] == ["enqueued"]
