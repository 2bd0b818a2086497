"""``Job.objects.filter(...).cancel()`` and its siblings: which jobs they change, with which statements and signals."""

from datetime import timedelta

import pytest
from django.db import IntegrityError, connection, models, transaction
from django.db.models import Count
from django.test.utils import CaptureQueriesContext, isolate_apps
from django.utils import timezone

from django_ojs_unique import DuplicateJob, group, lifecycle
from django_ojs_unique.db import inserts
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.exceptions import InvalidRequest, InvalidTransition
from django_ojs_unique.models import Event, Job
from django_ojs_unique.models.managers import JobQuerySet
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.operations.bulk import change
from django_ojs_unique.operations.operation import RETRY
from django_ojs_unique.signals import job_activated, job_cancelled
from tests.support.jobs import ALL_STATES, DAY, attempt, columns, enqueue, fresh, row, stored
from tests.support.limits import fail
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db


@pytest.fixture
def told():
    """Collect what is announced: the name of the signal, the job, and its state."""
    heard = []

    def cancelled(job, replaced_by, **_):
        heard.append(("cancelled", job.pk, replaced_by))

    def activated(job, **_):
        heard.append(("activated", job.pk, job.state))

    job_cancelled.connect(cancelled)
    job_activated.connect(activated)
    yield heard
    job_cancelled.disconnect(cancelled)
    job_activated.disconnect(activated)


def one_of_each():
    return {state: stored(state, type=f"t.{state}", unique={}) for state in ALL_STATES}


def states_of(jobs):
    return {name: fresh(job).state for name, job in jobs.items()}


CHANGES = {
    "cancel": ({"available", "active", "scheduled", "retryable", "pending"}, "cancelled"),
    "retry": ({"scheduled", "retryable", "pending", "discarded"}, "available"),
}


@pytest.mark.slow
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_takes_the_states_that_allow_it_and_leaves_the_others(change):
    jobs, (suits, after) = one_of_each(), CHANGES[change]
    before = states_of(jobs)
    result = getattr(Job.objects.all(), change)()
    assert set(result.changed) == {jobs[state].pk for state in suits}
    assert (result.refused, result.replaced) == ({}, {})
    assert states_of(jobs) == {state: after if state in suits else before[state] for state in jobs}


@pytest.mark.slow
def test_finished_jobs_are_enqueued_again_and_stay_as_they_are():
    jobs = one_of_each()
    before = {state: columns(job) for state, job in jobs.items()}
    result = Job.objects.all().enqueue_again()
    assert set(result.new) == set(result.changed) == {jobs[str(state)].pk for state in TERMINAL}
    assert {state: columns(job) for state, job in jobs.items()} == before
    assert set(Job.objects.filter(pk__in=result.new.values()).values_list("type", "state")) == {
        (f"t.{state}", "available") for state in TERMINAL
    }


def test_only_jobs_of_the_filter_are_changed():
    chosen, other = enqueue("a").job, enqueue("b").job
    assert Job.objects.filter(type="a").cancel().changed == [chosen.pk]
    assert fresh(other).state == "available"


def test_a_slice_changes_no_more_than_its_jobs_in_its_order():
    jobs = [enqueue(f"t{n}", priority=n).job for n in range(4)]
    assert Job.objects.order_by("-priority")[:2].cancel().changed == [jobs[2].pk, jobs[3].pk]
    assert [fresh(job).state for job in jobs] == ["available", "available", "cancelled", "cancelled"]


@pytest.mark.parametrize(
    "choose",
    [
        lambda: Job.objects.filter(type="a").distinct(),
        lambda: Job.objects.filter(type="a", replaced_by__type=None),
        lambda: Job.objects.filter(type="a").select_related("replaced_by"),
        lambda: Job.objects.filter(type="a").annotate(n=Count("replaces")),
        lambda: Job.objects.filter(type="a").values("pk"),
        lambda: Job.objects.filter(type="a").only("type"),
        lambda: Job.objects.filter(type="a").defer("fingerprint", "unique"),
    ],
    ids=["distinct", "join", "select_related", "annotate", "values", "only", "defer"],
)
def test_queries_that_cannot_lock_rows_choose_jobs_too(choose):
    chosen, other = enqueue("a").job, enqueue("b").job
    assert choose().cancel().changed == [chosen.pk]
    assert fresh(other).state == "available"


def test_a_job_that_left_the_filter_when_its_turn_comes_stays_as_it_is(monkeypatch):
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 1)
    first, second = enqueue("a").job, enqueue("b").job

    def take_the_second(job, **_):
        if job.pk == first.pk:
            row(second).update(state="active")

    job_cancelled.connect(take_the_second)
    result = Job.objects.filter(state="available").cancel()
    job_cancelled.disconnect(take_the_second)
    assert result.changed == [first.pk]
    assert f"job {second.pk}: it has changed meanwhile, and is active." in result.refused[second.pk].message
    assert fresh(second).state == "active"


@pytest.mark.slow
@pytest.mark.parametrize("change", ["cancel", "retry"])
def test_a_hundred_jobs_cost_as_many_statements_as_two(change):
    counts = []
    for count in (2, 100):
        jobs = [stored("discarded" if change == "retry" else "scheduled", type=f"t{count}.n{n}") for n in range(count)]
        chosen = Job.objects.filter(pk__in=[job.pk for job in jobs])
        with CaptureQueriesContext(connection) as queries:
            assert len(getattr(chosen, change)().changed) == count
        counts.append(len(queries))
    assert counts[0] == counts[1] < 16


def test_each_thousand_is_a_transaction(monkeypatch):
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 2)
    jobs = [enqueue(f"t{n}").job for n in range(5)]
    with CaptureQueriesContext(connection) as queries:
        assert Job.objects.all().cancel().changed == [job.pk for job in jobs]
    assert sum(query["sql"].startswith(("UPDATE", 'UPDATE "')) for query in queries) == 3


def test_a_change_rolls_back_with_the_callers_transaction(told):
    job = enqueue().job
    with transaction.atomic():
        Job.objects.all().cancel()
        transaction.set_rollback(True)
    assert fresh(job).state == "available"


def test_signals_and_events_tell_of_each_job(told, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    live, dead = enqueue("live").job, stored("discarded", type="dead")
    Event.objects.all().delete()
    Job.objects.filter(type="live").cancel()
    Job.objects.filter(type="dead").retry()
    stored("scheduled", type="later")
    told_before = len(told)
    Job.objects.filter(type="later").retry()
    assert len(told) == told_before  # its enqueue was announced
    Event.objects.filter(subject=Job.objects.get(type="later").pk).delete()
    assert told == [("cancelled", live.pk, None), ("activated", dead.pk, "available")]
    assert list(Event.objects.order_by("id").values_list("type", "subject")) == [
        ("job.cancelled", str(live.pk)),
        ("job.enqueued", str(dead.pk)),
    ]


@pytest.mark.parametrize("change", [*CHANGES, "enqueue_again"])
def test_nobody_changes_all_jobs_by_leaving_out_the_filter(change):
    assert not hasattr(Job.objects, change)


# Retry


def test_each_refusal_is_the_error_of_the_same_call_for_one_job():
    dead, live = stored("discarded"), stored("available")
    alone = stored("discarded", type="other")
    result = Job.objects.filter(state="discarded").retry()
    assert result.changed == [alone.pk]
    error = result.refused[dead.pk]
    assert isinstance(error, DuplicateJob)
    assert error.existing_job_id == live.pk
    with pytest.raises(DuplicateJob) as caught:
        dead.retry()
    assert caught.value.message == error.message
    assert str(result) == "1 changed, 1 refused"


def test_of_jobs_that_are_alike_the_oldest_is_retried():
    dead = [stored("discarded") for _ in range(3)]
    result = Job.objects.order_by("-pk").retry()
    assert (result.changed, set(result.refused)) == ([dead[0].pk], {dead[1].pk, dead[2].pk})
    assert attempt() == ("rejected", fresh(dead[0]))


def test_replacing_cancels_the_live_duplicates_but_none_that_was_retried_with_the_job(told):
    older, newer, live = stored("discarded"), stored("discarded"), stored("available")
    result = Job.objects.all().retry(replace=True)
    assert (result.changed, set(result.refused)) == ([older.pk], {newer.pk})
    assert result.replaced == {live.pk: older.pk}
    assert told == [("cancelled", live.pk, older.pk), ("activated", older.pk, "available")]


def test_force_retries_all_of_them():
    dead, live = [stored("discarded") for _ in range(3)], stored("available")
    assert Job.objects.all().retry(force=True).changed == [job.pk for job in dead]
    assert fresh(live).holds_unique_key


def test_of_two_that_do_not_count_for_each_other_the_last_holds_the_unique_key():
    policy = {"period": "PT1H"}
    older = stored("discarded", unique=policy, age=timedelta(hours=2))
    newer = stored("discarded", unique=policy)
    assert Job.objects.all().retry().changed == [older.pk, newer.pk]
    assert (fresh(older).holds_unique_key, fresh(newer).holds_unique_key) == (False, True)


def test_a_finished_job_that_holds_the_unique_key_gives_it_to_the_one_that_is_retried():
    dead = stored("discarded", unique={"states": ["available"]})
    holder = stored("cancelled", unique={"states": ["available", "cancelled"]})
    assert holder.holds_unique_key
    (result,) = change(Job.objects.all(), [holder.pk, dead.pk], RETRY)
    assert (result.changed, set(result.refused)) == ([dead.pk], {holder.pk})
    assert (fresh(dead).holds_unique_key, fresh(holder).holds_unique_key) == (True, False)


def test_a_policy_that_was_broken_manually_is_refused_and_the_others_go_on():
    broken, good = stored("discarded", type="a"), stored("discarded", type="b")
    row(broken).update(unique={"keys": "nonsense"})
    result = Job.objects.all().retry()
    assert result.changed == [good.pk]
    assert "unique.keys: must be a list of strings" in result.refused[broken.pk].message


@pytest.mark.parametrize("state", ["completed", "available", "nonsense"])
def test_a_state_that_cannot_be_retried_is_refused_with_the_hint(state):
    with refused(InvalidRequest, "state", names="'cancelled'"):
        Job.objects.all().retry(state=state)


# Cancelled jobs


@pytest.mark.slow
def test_cancelled_jobs_are_retried_when_that_state_is_named():
    jobs = one_of_each()
    assert Job.objects.all().retry(state="cancelled").changed == [jobs["cancelled"].pk]
    assert fresh(jobs["discarded"]).state == "discarded"


def test_a_cancelled_job_that_was_to_run_later_is_scheduled_again(told):
    later = timezone.now() + DAY
    job = enqueue(scheduled_at=later).job
    job.cancel()
    job.retry()
    assert (job.state, job.run_at, job.finished_at, job.holds_unique_key) == ("scheduled", later, None, True)
    assert told[-1] == ("activated", job.pk, "scheduled")


def test_a_cancelled_job_gets_all_its_attempts_and_its_key_back():
    job = stored("retryable")
    job.cancel()
    assert attempt()[0] == "created"
    with pytest.raises(DuplicateJob):
        job.retry()
    Job.objects.exclude(pk=job.pk).cancel()
    job.retry()
    assert (job.state, job.attempt, job.holds_unique_key) == ("available", 0, True)


def test_a_replaced_job_never_runs_again():
    old = stored("available")
    new = enqueue(unique={"on_conflict": "replace"}).job
    new.cancel()
    with refused(InvalidTransition, job_id=str(old.pk), current_state="cancelled", names=str(new.pk)):
        fresh(old).retry(force=True)
    assert Job.objects.all().retry(state="cancelled").changed == [new.pk]
    assert lifecycle.retry_finished(row(old), timezone.now()) == 0


# Enqueue again


def test_a_job_is_enqueued_again_with_all_that_it_was_enqueued_with():
    options = {
        "queue": "q",
        "meta": {"m": 1},
        "priority": 5,
        "retry": {"max_attempts": 7},
        "timeout": "PT9S",
        "tags": ["a"],
        "unique": {"on_conflict": "ignore"},
    }
    old = Job.objects.enqueue("t", {"n": 1}, **options).job
    old.cancel()
    again = old.enqueue_again()
    assert (again.created, again.job.pk != old.pk, again.job.state) == (True, True, "available")
    same = (
        "type",
        "args",
        "queue",
        "meta",
        "priority",
        "retry_options",
        "max_attempts",
        "timeout_ms",
        "tags",
        "unique",
    )
    assert [columns(again.job)[name] for name in (*same, "fingerprint")] == [
        columns(old)[name] for name in (*same, "fingerprint")
    ]


def test_the_policy_decides_about_an_enqueue_again():
    old = stored("completed", unique={"states": ["available", "completed"], "on_conflict": "reject"})
    with pytest.raises(DuplicateJob):
        old.enqueue_again()
    result = Job.objects.filter(pk=old.pk).enqueue_again()
    assert f"Did not enqueue job {old.pk} again: job {old.pk} is a duplicate (completed)." in str(
        result.refused[old.pk]
    )
    old.release_unique_key()
    assert old.enqueue_again().created


def test_an_ignored_duplicate_is_refused_among_many_and_returned_for_one():
    old = stored("completed", unique={"on_conflict": "ignore"})
    live = enqueue().job
    assert (old.enqueue_again().job, old.enqueue_again().deduplicated) == (live, True)
    result = Job.objects.filter(pk=old.pk).enqueue_again()
    assert (result.new, result.refused[old.pk].existing_job_id) == ({}, live.pk)


@pytest.mark.parametrize("scope", ["type", "global"])
def test_old_args_never_rewrite_the_job_that_holds_the_key_now(scope):
    old = Job.objects.enqueue("t", {"n": 1}, key="k", key_scope=scope).job
    old.cancel()
    new = Job.objects.enqueue("t", {"n": 2}, key="k", key_scope=scope).job
    assert old.enqueue_again().deduplicated
    assert fresh(new).args == {"n": 2}
    new.cancel()
    again = old.enqueue_again().job
    assert (again.args, again.key, again.fingerprint) == ({"n": 1}, "k", old.fingerprint)


@pytest.mark.parametrize("state", ["available", "active", "retryable"])
def test_a_job_that_has_not_finished_is_not_enqueued_again(state):
    job = stored(state)
    with refused(InvalidTransition, job_id=str(job.pk), current_state=state):
        job.enqueue_again()
    assert Job.objects.count() == 1


def test_a_pruned_job_is_neither_retried_nor_enqueued_again():
    job = stored("discarded")
    row(job).update(payload_pruned=True)
    for act in (job.retry, job.enqueue_again):
        with refused(InvalidTransition, current_state="discarded", names="pruned"):
            act()
    assert not Job.objects.all().retry().changed
    assert not Job.objects.all().enqueue_again().changed


def test_a_job_with_a_key_that_left_uniqueness_is_not_enqueued_again_beside_its_holder():
    old = Job.objects.enqueue("t", key="k", key_scope="global").job
    old.release_unique_key()
    old.cancel()
    Job.objects.enqueue("other", key="k", key_scope="global")
    with refused(InvalidRequest, "key", names="key_scope"):
        old.enqueue_again()
    assert Job.objects.filter(pk=old.pk).enqueue_again().refused[old.pk].details["field"] == "key"
    assert Job.objects.filter(key="k").count() == 2


def test_a_discarded_job_that_holds_its_key_is_to_be_retried():
    dead = stored("discarded", unique=None, key="k")
    result = Job.objects.filter(pk=dead.pk).enqueue_again()
    assert result.refused[dead.pk].message.endswith("it holds its key itself. Retry it.")


@pytest.mark.parametrize("broken", [{"extra": [1]}, {"timeout_ms": 9 * 10**18}, {"args": "text"}])
def test_a_row_that_was_broken_manually_is_refused_and_the_others_are_enqueued(broken):
    bad, good = stored("completed", type="a", unique=None), stored("completed", type="b", unique=None)
    row(bad).update(**broken)
    result = Job.objects.all().enqueue_again()
    assert (result.changed, set(result.refused)) == ([good.pk], {bad.pk})


# What others do meanwhile


def test_a_job_that_is_cancelled_while_others_are_retried_stays_cancelled(monkeypatch):
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 1)
    first, second = stored("pending"), stored("scheduled", type="b")

    def cancel_the_second(job, **_):
        second.cancel()

    job_activated.connect(cancel_the_second)
    result = Job.objects.all().retry()
    job_activated.disconnect(cancel_the_second)
    assert (result.changed, fresh(second).state) == ([first.pk], "cancelled")


def test_a_discarded_job_that_became_cancelled_meanwhile_is_not_retried_as_a_discarded_one(monkeypatch):
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 1)
    first, second = stored("discarded"), stored("discarded", type="b")

    def change_the_second(job, **_):
        row(second).update(state="cancelled")

    job_activated.connect(change_the_second)
    result = Job.objects.all().retry()
    job_activated.disconnect(change_the_second)
    assert (result.changed, fresh(second).state) == ([first.pk], "cancelled")


def test_a_lost_race_of_a_retry_undoes_the_retries_of_its_transaction(monkeypatch):
    later, dead = stored("scheduled", type="b"), stored("discarded")
    races = []

    def lose_once(jobs, states):
        if not races:
            races.append(jobs)
            raise IntegrityError
        return hold(jobs, states)

    hold = lifecycle.hold_unique_key
    monkeypatch.setattr(lifecycle, "hold_unique_key", lose_once)
    result = Job.objects.all().retry()
    assert (set(result.changed), result.refused) == ({later.pk, dead.pk}, {})


# Proxies


class DeadJobs(models.Manager):
    def get_queryset(self):
        return JobQuerySet(self.model, using=self._db).filter(state__in=["discarded", "cancelled"])


@isolate_apps("tests.app")
def test_what_the_manager_of_a_proxy_leaves_out_is_a_live_duplicate_all_the_same(told):
    class DeadJob(Job):
        objects = DeadJobs()

        class Meta:
            proxy = True
            app_label = "app"

    dead, live = stored("discarded"), stored("available")
    assert set(DeadJob.objects.all().retry().refused) == {dead.pk}
    live.cancel()
    assert DeadJob.objects.filter(state="discarded").retry().changed == [dead.pk]
    assert fresh(dead).holds_unique_key
    assert told[-1] == ("activated", dead.pk, "available")


# Undo


def test_a_pending_job_that_was_cancelled_waits_for_its_activation_again():
    job = Job.objects.enqueue_request(Request("t", pending=True)).job
    job.cancel()
    job.retry()
    assert (job.state, job.enqueued_at) == ("pending", None)


@pytest.mark.parametrize(("hours", "kept"), [(1, True), (-1, False)])
def test_a_retried_job_keeps_an_expiry_that_is_still_to_come(hours, kept):
    job = stored("cancelled")
    at = timezone.now() + timedelta(hours=hours)
    row(job).update(expires_at=at)
    job.retry()
    assert (job.expires_at == at) is kept


def lose_the_key():
    Job.objects.enqueue("t", key="k", retry={"max_attempts": 5})
    yield
    Job.objects.enqueue("t", key="k")


def lose_a_removed_key():
    Job.objects.enqueue("t", key="k", retry={"max_attempts": 5})
    yield
    Job.objects.remove(key="k")


def lose_the_workflow():
    workflow = group([{"type": "t", "retry": {"max_attempts": 5}}]).enqueue()
    yield
    workflow.cancel()


@pytest.mark.parametrize("lose", [lose_the_key, lose_a_removed_key, lose_the_workflow])
@pytest.mark.parametrize("way", [Job.retry, lambda job: Job.objects.filter(pk=job.pk).retry(state=job.state)])
@pytest.mark.parametrize("is_cancelled", [False, True])
def test_a_job_that_was_to_get_no_further_run_is_retried_with_all_its_attempts(take, lose, way, is_cancelled):
    losing = lose()
    next(losing)
    (job,) = take()
    next(losing, None)
    Job.objects.filter(state="available").delete()
    assert fresh(job).most_attempts == 1
    if is_cancelled:
        fresh(job).cancel()
    else:
        fail(job)
    way(fresh(job))
    assert (fresh(job).attempt, fresh(job).max_attempts, fresh(job).most_attempts) == (0, 5, 5)
    (again,) = take()
    fail(again)
    assert fresh(job).state == "retryable"


@pytest.mark.slow
def test_many_live_duplicates_are_replaced_with_as_many_statements_as_few():
    counts = []
    for number in (2, 40):
        dead = stored("discarded", type=f"t{number}")
        alike = [stored("discarded", type=f"t{number}") for _ in range(number)]
        Job.objects.filter(pk__in=[job.pk for job in alike]).retry(force=True)
        with CaptureQueriesContext(connection) as queries:
            assert set(dead.retry(replace=True)) == set(alike)
        counts.append(len(queries))
    assert counts[0] == counts[1]
