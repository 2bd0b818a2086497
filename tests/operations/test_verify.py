"""``jobs verify`` and ``jobs rekey``: what they find, what they fix, and that they disturb nobody."""

import io
import random
import sys
from collections import Counter
from contextlib import suppress
from datetime import timedelta
from functools import partial

import pytest
from django.core.checks import Tags, run_checks
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, Limit, UniquePolicy, job, lifecycle
from django_ojs_unique.db import capabilities
from django_ojs_unique.enqueue.new_job import FOREVER
from django_ojs_unique.exceptions import UnknownJobType
from django_ojs_unique.execution.leases import requeue_leased
from django_ojs_unique.integrity import Kind, rekey, verify
from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job, StoppedRun, WorkerProcess
from django_ojs_unique.ojs.states import TERMINAL, WAITING
from django_ojs_unique.signals import job_cancelled
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.unique.fingerprint import SCHEME, canonical_text, fingerprint
from django_ojs_unique.unique.keys import JobKey
from django_ojs_unique.unique.presets import resque_uniqueue
from django_ojs_unique.worker import Worker
from tests.support.audit import audit
from tests.support.background import working
from tests.support.jobs import claim, fresh, put, row
from tests.support.limits import take
from tests.support.processes import together, until
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db(transaction=True)

HOUR = timedelta(hours=1)
BY_ARGS = UniquePolicy(keys=["type", "args"], on_conflict="ignore")


@pytest.fixture
def unique_queues(settings):
    """Switch the rule on, as the next deployment would."""

    def switch_on(rule=True):
        settings.OJS_UNIQUE = {"UNIQUE_QUEUES": rule}

    return switch_on


def a_job(type="t", args=None, **options):
    return Job.objects.enqueue(type, args, **options).job


def change(job, **values):
    row(job).update(**values)
    return fresh(job)


def found(**options):
    """Return the kinds of what is found and how often, and see that looking changed nothing."""
    before = list(Job.objects.order_by("pk").values())
    findings = verify(Job.objects.using("default"), **options)
    assert list(Job.objects.order_by("pk").values()) == before
    return {kind.name: count for kind, count in findings.counts.items()}


def fixed():
    """Fix everything; see that a second look finds nothing, and that a second fix changes nothing."""
    assert not verify(Job.objects.using("default"), fix=True)
    before = list(Job.objects.order_by("pk").values())
    assert not verify(Job.objects.using("default"), fix=True)
    assert found() == {}
    assert list(Job.objects.order_by("pk").values()) == before
    audit()


def command(*arguments):
    out = io.StringIO()
    call_command("jobs", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def refused(*arguments):
    out = io.StringIO()
    with pytest.raises(CommandError) as error:
        call_command("jobs", *arguments, stdout=out, stderr=out)
    assert error.value.returncode == 1
    return f"{out.getvalue()}{error.value}"


# What agrees


@pytest.mark.slow
def test_nothing_to_fix_is_said(unique_queues):
    assert command("verify") == "Nothing to fix in 0 jobs: rows, fingerprints and unique keys agree.\n"
    a_job(unique=BY_ARGS)
    a_job()
    assert command("verify", "--fix").startswith("Nothing to fix in 2 jobs")


@pytest.mark.slow
def test_everything_that_enqueues_and_workers_write_agrees(unique_queues):
    unique_queues(["unique"])
    policies = [
        BY_ARGS,
        UniquePolicy(keys=["args"], period="PT1H", states=["available", "completed"], on_conflict="replace"),
        UniquePolicy(keys=["args"], period="PT1H", window="fixed", states=["scheduled", "completed"]),
        UniquePolicy(keys=["args"], states=["active"], on_conflict="replace_except_schedule"),
        UniquePolicy(keys=["args"], window="retention", states=["available", "completed"]),
        UniquePolicy(keys=["queue", "meta"], meta_keys=["m"]),
    ]
    for number, policy in enumerate(policies):
        for state in ("available", "active", "retryable", "completed", "discarded", "cancelled"):
            options = {"type": f"t{number}", "args": {"s": state}, "meta": {"m": state}, "unique": policy}
            put(a_job(**options), state)
            with suppress(DuplicateJob):
                a_job(**options, scheduled_at=timezone.now() + 40 * HOUR)
    for state in ("available", "active", "retryable", "completed", "discarded", "cancelled"):
        put(a_job(key=f"key {state}", key_scope="global"), state)
        a_job(key=f"key {state}", key_scope="global")
        put(a_job(key=f"typed {state}"), state)
        put(a_job(queue="unique", args=[state]), state)
        a_job(queue="unique", args=[state])
        a_job(queue="plain", args=[state])
    a_job(args={"freed": 1}, unique=BY_ARGS).release_unique_key()
    a_job(key="freed").release_unique_key()
    a_job(queue="unique", args=["freed"]).release_unique_key()
    row(a_job(args={"payload_pruned": 1}, unique=BY_ARGS)).update(args={}, payload_pruned=True)
    assert found() == {}


@pytest.mark.slow
def test_jobs_that_were_rightly_admitted_side_by_side_are_left_alone(unique_queues):
    """Each pair shares a fingerprint and waits: a retry, a rescue, a release, an ended window, a forced retry."""
    unique_queues()
    retried = a_job(args=["retried"])
    token = claim(retried)
    a_job(args=["retried"])
    lifecycle.schedule_retry(row(retried), timezone.now(), token=token, errors=[])
    released = a_job(args=["released"])
    token = claim(released)
    a_job(args=["released"])
    lifecycle.requeue(row(released), token=token, looks_first=True)
    rescued = a_job(args=["rescued"])
    token = claim(rescued)
    a_job(args=["rescued"])
    lifecycle.rescue(row(rescued), timezone.now(), token=token, errors=[])
    old = a_job(args=["old"], unique=UniquePolicy(period="PT1H"))
    change(old, created_at=timezone.now() - 2 * HOUR)
    a_job(args=["old"], unique=UniquePolicy(period="PT1H"))
    dead = put(a_job("retried", unique=BY_ARGS), "discarded")
    a_job("retried", unique=BY_ARGS)
    dead.retry(force=True)
    narrow = UniquePolicy(keys=["type", "args"], states=["scheduled"])
    a_job("narrow", unique=narrow)
    a_job("narrow", unique=narrow)
    assert Job.objects.filter(state__in=sorted(WAITING)).count() == 12
    assert found() == {}


@pytest.mark.slow
def test_a_job_that_expired_and_was_retried_by_force_is_left_beside_the_one_that_came_meanwhile():
    expired = a_job(unique=BY_ARGS, expires_at=timezone.now() - HOUR)
    assert lifecycle.expire(row(expired), timezone.now()) == 1
    newer = a_job(unique=BY_ARGS)
    fresh(expired).retry(force=True)
    assert found() == {}
    fixed()
    assert {fresh(expired).state, fresh(newer).state} == {"available"}


@pytest.mark.slow
def test_an_enqueue_that_waited_past_the_edge_of_its_window_agrees():
    policy = UniquePolicy(period="PT1H", window="fixed")
    late = a_job(unique=policy)
    edge = late.created_at.replace(minute=0, second=0, microsecond=0) + HOUR
    change(late, created_at=edge + timedelta(seconds=1))
    assert found() == {}
    change(late, created_at=edge + HOUR)
    assert found() == {"FINGERPRINT": 1}


# What does not


def wrong_fingerprint():
    return change(a_job(args={"n": 1}, unique=BY_ARGS), fingerprint="f" * 64)


def no_fingerprint_of_anything():
    return change(a_job(unique=BY_ARGS), fingerprint="not hexadecimal")


def changed_args():
    return change(a_job(args={"n": 1}, unique=BY_ARGS), args={"n": 2})


def wrong_window():
    job = a_job(unique=UniquePolicy(period="PT1H", window="fixed"))
    return change(job, scheduled_at=job.created_at + 3 * HOUR)


def wrong_key():
    return change(a_job(key="a"), key="b")


def too_long_a_unique_key():
    return change(a_job(unique=BY_ARGS), unique_states=frozenset(["available", "completed"]))


def too_wide_a_unique_key_of_a_key():
    return change(a_job(key="a"), unique_states=frozenset(["available", "completed"]))


def a_unique_key_left_behind():
    unique_states = a_job(unique=BY_ARGS).unique_states
    return change(put(a_job(args=[1], unique=BY_ARGS), "completed"), unique_states=unique_states)


def no_policy():
    return change(a_job(unique=BY_ARGS), unique=None)


def no_policy_any_more_but_finished():
    return change(put(a_job(unique=BY_ARGS), "completed"), unique=None)


def an_unknown_member():
    return change(a_job(unique=BY_ARGS), unique={"keyz": ["args"]})


def a_policy_that_does_not_fit():
    return change(a_job(args={"n": 1}, unique={"keys": ["args"], "args_keys": ["n"]}), args={})


def a_policy_that_is_a_number():
    return change(a_job(unique=BY_ARGS), unique=7)


def no_end():
    return change(put(a_job(unique=UniquePolicy(states=["available", "completed"])), "completed"), window_ends_at=None)


def an_old_scheme():
    return change(a_job(unique=BY_ARGS), fingerprint_scheme=SCHEME + 1, fingerprint="0" * 64)


def an_old_scheme_of_a_key():
    return change(a_job(key="k", key_scope="global"), fingerprint_scheme=SCHEME + 1)


def by_sql(job, **columns):
    """Write a row as somebody would, past the ORM."""
    assignments = ", ".join(f"{connection.ops.quote_name(name)} = %s" for name in columns)
    values = [parameter(name, value) for name, value in columns.items()]
    with connection.cursor() as cursor:
        cursor.execute(
            f"UPDATE {Job._meta.db_table} SET {assignments} WHERE id = %s", [*values, parameter("id", job.pk)]
        )
    return fresh(job)


def parameter(name, value):
    return Job._meta.get_field(name).get_db_prep_value(value, connection)


def an_end_of_none():
    return by_sql(put(a_job(), "completed"), finished_at=None)


def a_cancelled_job_without_an_end():
    return by_sql(put(a_job(unique=BY_ARGS), "cancelled"), finished_at=None)


def a_dead_job_without_an_end():
    return by_sql(put(a_job(key="k"), "discarded"), finished_at=None)


def an_end_of_a_waiting_job():
    return by_sql(a_job(unique=BY_ARGS), finished_at=timezone.now())


def an_end_of_a_running_job():
    job = a_job()
    claim(job)
    return by_sql(job, finished_at=timezone.now())


def an_end_of_a_retry():
    return by_sql(put(a_job(unique=BY_ARGS), "retryable"), finished_at=timezone.now())


def a_time_of_a_running_job():
    job = a_job(unique=BY_ARGS)
    claim(job)
    return by_sql(job, run_at=timezone.now() + HOUR)


def a_time_of_a_finished_job():
    return by_sql(put(a_job(), "completed"), run_at=timezone.now())


def a_lease_of_a_waiting_job():
    return by_sql(a_job(), lease_expires_at=timezone.now())


ANOTHER_PARTITION, A_PARTITION = f"k{'0' * 32}", f"f{'0' * 32}"


def a_limited_job_that_waits_for_another_partition():
    return by_sql(a_job(args={"n": 1}, limit=Limit(key=["args.n"], running=1)), blocked_by=ANOTHER_PARTITION)


def a_job_without_limits_that_waits_for_a_partition():
    return by_sql(a_job(unique=BY_ARGS), blocked_by=ANOTHER_PARTITION)


def a_job_in_a_partition_that_is_not_its_own():
    return by_sql(a_job(), blocked_by=A_PARTITION, fair_partition=A_PARTITION.replace("0", "1"))


def a_limited_job_that_nothing_blocks():
    return by_sql(a_job(args={"n": 1}, limit=Limit(key=["args.n"], running=1)), blocked_by="")


def limits_that_cannot_be_read():
    return by_sql(a_job(), limits=[{"name": "x"}])


def a_place_of_none():
    return by_sql(a_job(), enqueued_at=None)


def a_scheduled_job_without_its_time():
    return by_sql(a_job(scheduled_at=timezone.now() + HOUR, unique=BY_ARGS), run_at=None)


def a_retry_without_its_time():
    return by_sql(put(a_job(), "retryable"), run_at=None)


def a_running_job_without_a_lease():
    job = a_job()
    claim(job)
    return by_sql(job, lease_token=None, lease_expires_at=None)


def more_attempts_than_it_may_have():
    return by_sql(put(a_job(), "discarded"), attempt=9)


def less_attempts_than_none():
    return by_sql(a_job(), attempt=-1)


def a_queue_without_a_name():
    return by_sql(a_job(), queue="")


def a_meta_that_is_a_number():
    return by_sql(a_job(unique=BY_ARGS), meta=7)


def tags_that_are_an_object():
    return by_sql(a_job(), tags={"a": 1})


def a_retry_policy_that_cannot_be_read():
    return by_sql(a_job(), retry_options={"max_tries": 3})


def a_dead_letter_that_completed():
    return by_sql(put(a_job(), "completed"), dead_letter=True)


def unique_states_of_nothing():
    return by_sql(a_job(), unique_states=1)


def unique_states_of_nothing_in_another_state():
    return by_sql(a_job(unique=BY_ARGS), unique_states=128, fingerprint=None)


INCONSISTENT = [
    (an_end_of_none, "FINISH"),
    (a_cancelled_job_without_an_end, "FINISH"),
    (a_dead_job_without_an_end, "FINISH"),
    (an_end_of_a_waiting_job, "FINISH"),
    (an_end_of_a_running_job, "FINISH"),
    (an_end_of_a_retry, "FINISH"),
    (a_time_of_a_running_job, "TIMER"),
    (a_time_of_a_finished_job, "TIMER"),
    (a_lease_of_a_waiting_job, "TIMER"),
    (a_limited_job_that_waits_for_another_partition, "BLOCK"),
    (a_job_without_limits_that_waits_for_a_partition, "BLOCK"),
    (a_job_in_a_partition_that_is_not_its_own, "BLOCK"),
    (a_limited_job_that_nothing_blocks, "BLOCK"),
    (limits_that_cannot_be_read, "LIMITS"),
    (a_place_of_none, "PLACE"),
    (a_scheduled_job_without_its_time, "DUE"),
    (a_retry_without_its_time, "DUE"),
    (a_running_job_without_a_lease, "LEASE"),
    (more_attempts_than_it_may_have, "ATTEMPTS"),
    (less_attempts_than_none, "ATTEMPTS"),
    (a_queue_without_a_name, "QUEUE"),
    (a_meta_that_is_a_number, "SHAPE"),
    (tags_that_are_an_object, "SHAPE"),
    (a_retry_policy_that_cannot_be_read, "RETRY"),
    (a_dead_letter_that_completed, "DEAD_LETTER"),
    (unique_states_of_nothing, "LOOSE"),
    (unique_states_of_nothing_in_another_state, "LOOSE"),
    (wrong_fingerprint, "FINGERPRINT"),
    (no_fingerprint_of_anything, "FINGERPRINT"),
    (changed_args, "FINGERPRINT"),
    (wrong_window, "FINGERPRINT"),
    (wrong_key, "FINGERPRINT"),
    (too_long_a_unique_key, "UNIQUE_STATES"),
    (too_wide_a_unique_key_of_a_key, "UNIQUE_STATES"),
    (a_unique_key_left_behind, "UNIQUE_STATES"),
    (no_policy, "STRAY"),
    (no_policy_any_more_but_finished, "STRAY"),
    (an_unknown_member, "POLICY"),
    (a_policy_that_does_not_fit, "POLICY"),
    (a_policy_that_is_a_number, "POLICY"),
    (no_end, "WINDOW"),
    (an_old_scheme, "SCHEME"),
    (an_old_scheme_of_a_key, "SCHEME"),
]


@pytest.mark.slow
@pytest.mark.parametrize(("make", "kind"), INCONSISTENT, ids=[f"S2-13-{make.__name__}" for make, _ in INCONSISTENT])
def test_an_inconsistency_is_found_named_and_fixed(make, kind):
    job = make()
    assert found() == {kind: 1}
    said = refused("verify")
    assert f"{Kind[kind].problem}: 1\n  hint: {Kind[kind].hint}\n  jobs: {job.pk}\n" in said
    assert "1 to fix: run `manage.py jobs verify --fix --database default`." in said
    said = command("verify", "--fix")
    assert Kind[kind].problem in said
    assert said.splitlines()[-1].startswith("Nothing to fix")
    assert fresh(job).state == job.state
    fixed()


def args_that_are_a_number():
    return by_sql(a_job(), args=7)


@pytest.mark.slow
def test_args_that_are_neither_an_object_nor_an_array_are_named_and_left():
    job = args_that_are_a_number()
    assert found() == {"ARGS": 1}
    said = refused("verify", "--fix")
    assert f"{Kind.ARGS.problem}: 1\n  hint: {Kind.ARGS.hint}\n  jobs: {job.pk}\n" in said
    assert fresh(job).args == 7


def an_unknown_state():
    return by_sql(a_job(unique=BY_ARGS), state="running")


BROKEN = [*(make for make, _ in INCONSISTENT), args_that_are_a_number, an_unknown_state]


def good_jobs(limit=None):
    """Enqueue jobs for a worker, and one that its upkeep must take back from a worker that has died."""
    with transaction.atomic():  # so that no worker claims it before
        lost = a_job(args={"lost": 1})
        claim(lost)
        change(lost, lease_expires_at=timezone.now() - HOUR)
    return [lost.pk, *(a_job(args={"n": n}, limit=limit).pk for n in (1, 1, 2))]


def are_done(ids):
    return set(Job.objects.filter(pk__in=ids).values_list("state", flat=True)) == {"completed"}


@pytest.mark.slow
@pytest.mark.parametrize("limit", [None, Limit(key=["args.n"], running=2)], ids=["plain", "limited"])
def test_no_broken_row_ends_a_worker_or_keeps_it_from_other_jobs(handlers, limit):
    job("t")(lambda **kwargs: None)
    for make in BROKEN:
        broken, good = make(), good_jobs(limit)
        Worker().run(drain=True)
        assert are_done(good), make
        assert Job.objects.filter(pk=broken.pk).exists()
        Job.objects.all().delete()
        StoppedRun.objects.all().delete()


@pytest.mark.slow
def test_a_worker_and_its_upkeep_live_beside_broken_rows_of_every_kind(handlers, caplog):
    job("t")(lambda **kwargs: None)
    for number, make in enumerate(BROKEN):
        broken = make()
        if broken.fingerprint is not None:  # so that they are no duplicates of one another
            by_sql(broken, fingerprint=f"{number:064x}")
    with working():
        until(partial(are_done, good_jobs()), "the jobs beside broken rows were done")
        now = timezone.now()
        until(lambda: WorkerProcess.objects.filter(heartbeat_at__gt=now).exists(), "the worker was heard again")
        until(partial(are_done, good_jobs()), "the jobs beside broken rows were done")
    assert "A task of the worker failed" not in caplog.text


@pytest.mark.slow
def test_a_job_that_waits_for_a_full_partition_that_is_not_its_own_runs_after_the_fix():
    limit = Limit(key=["args.n"], running=1)
    _, second = a_job(args={"n": 1}, limit=limit), a_job(args={"n": 1}, limit=limit)
    take(), take()
    other, plain = (
        by_sql(job, blocked_by=fresh(second).blocked_by) for job in (a_job(args={"n": 2}, limit=limit), a_job())
    )
    assert take() == []
    fixed()
    assert {job.pk for job in take()} == {other.pk, plain.pk}


def test_jobs_that_are_blocked_are_left_alone(settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"fair": ["args.n"]}}
    limit = Limit(key=["args.n"], running=1)
    for queue in ("default", "fair"):
        for n in (1, 1, 2):
            a_job(args={"n": n}, queue=queue, limit=limit)
        a_job(args={"n": 3}, queue=queue)
    for _ in range(2):
        take(3, queues=["default", "fair"])
    a_job(args={"n": 4}, limit=limit)
    assert {block[:1] for block in Job.objects.filter(state="available").values_list("blocked_by", flat=True)} >= {
        "k",
        "0",
    }
    assert found() == {}


@pytest.mark.slow
@pytest.mark.parametrize("state", ["running", "", "AVAILABLE"])
@pytest.mark.parametrize("unique", [None, BY_ARGS], ids=["plain", "unique"])
def test_a_state_that_does_not_exist_is_named_and_left(state, unique):
    job = by_sql(a_job(unique=unique), state=state)
    beside = a_job(unique=BY_ARGS)
    assert found() == {"STATE": 1}
    for arguments in (["verify"], ["verify", "--fix"]):
        said = refused(*arguments)
        assert f"{Kind.STATE.problem}: 1\n  hint: {Kind.STATE.hint}\n  jobs: {job.pk}\n" in said
        assert said.endswith("1 to fix.")
    assert [(one.pk, one.state) for one in Job.objects.order_by("pk")] == [(job.pk, state), (beside.pk, "available")]
    change(job, state="cancelled")
    fixed()


@pytest.mark.slow
def test_what_can_be_fixed_is_fixed_beside_a_state_that_does_not_exist():
    unknown = by_sql(a_job(), state="running")
    broken = wrong_fingerprint()
    said = refused("verify", "--fix")
    assert "Fixed: 1 finding" in said
    assert said.partition("Left:")[2].startswith(f"\n{Kind.STATE.problem}: 1")
    assert found() == {"STATE": 1}
    assert fresh(broken).fingerprint != broken.fingerprint
    assert fresh(unknown).state == "running"


@pytest.mark.slow
def test_a_row_of_which_everything_is_wrong_is_fixed_at_once():
    """S2-13"""
    job = by_sql(
        a_job(), state="completed", run_at=timezone.now(), unique_states=1, lease_expires_at=timezone.now(), unique=7
    )
    assert found() == {"FINISH": 1, "TIMER": 1, "LOOSE": 1, "POLICY": 1}
    fixed()
    assert (fresh(job).run_at, fresh(job).unique_states, fresh(job).unique) == (None, frozenset(), None)


@pytest.mark.slow
def test_an_end_is_set_to_now_or_taken_back():
    """So retention prunes nothing before anybody has looked, and the waiting job runs."""
    old = timezone.now() - 1000 * HOUR
    finished = by_sql(put(a_job(), "completed"), finished_at=None, created_at=old)
    waiting = by_sql(a_job(), finished_at=old)
    assert [job.pk for job in run_jobs()] == []
    fixed()
    assert timezone.now() - fresh(finished).finished_at < HOUR
    assert fresh(waiting).finished_at is None


@pytest.mark.slow
def test_a_lease_beside_a_time_to_run_ends_after_the_fix():
    job = a_time_of_a_running_job()
    by_sql(job, lease_expires_at=timezone.now() - HOUR)
    assert timers.rescue(Job.objects.all(), timezone.now()) == 0
    fixed()
    assert timers.rescue(Job.objects.all(), timezone.now()) == 1
    assert fresh(job).state == "available"


@pytest.mark.slow
def test_the_fixes_are_what_an_enqueue_would_have_written():
    job = wrong_fingerprint()
    fixed()
    assert fresh(job).fingerprint == fingerprint(
        canonical_text(BY_ARGS, type="t", queue="default", args={"n": 1}, meta={})
    )
    with pytest.raises(DuplicateJob):
        a_job(args={"n": 1}, unique={"keys": ["args"]})
    Job.objects.all().delete()
    job = wrong_key()
    fixed()
    assert fresh(job).fingerprint == fingerprint(JobKey("b").canonical_text("t"))
    job = an_old_scheme_of_a_key()
    fixed()
    assert fresh(job).fingerprint == fingerprint(JobKey("k", scope="global").canonical_text("t"))
    job = no_end()
    fixed()
    assert fresh(job).window_ends_at == FOREVER
    job = an_unknown_member()
    fixed()
    assert (fresh(job).unique, fresh(job).fingerprint) == (None, None)


@pytest.mark.slow
def test_what_the_fix_of_one_kind_uncovers_is_fixed_too(unique_queues):
    """A job that loses its unreadable policy on a unique queue gets the rule's, and is a duplicate then."""
    first = a_job(args=[1])
    broken = change(a_job(args=[1], unique=BY_ARGS), unique={"keyz": 1})
    unique_queues()
    fixed()
    assert fresh(first).unique == resque_uniqueue().to_dict()
    assert (fresh(broken).state, fresh(broken).replaced_by_id) == ("cancelled", first.pk)


@pytest.mark.slow
def test_fingerprints_that_were_swapped_are_swapped_back():
    one, two = a_job(args=[1], unique=BY_ARGS), a_job(args=[2], unique=BY_ARGS)
    change(one, fingerprint="0" * 64)
    change(two, fingerprint=one.fingerprint)
    change(one, fingerprint=two.fingerprint)
    fixed()
    assert (fresh(one).fingerprint, fresh(two).fingerprint) == (one.fingerprint, two.fingerprint)


@pytest.mark.slow
def test_a_fixed_job_does_not_take_the_unique_key_of_an_older_one():
    older = a_job(args=[1], unique=BY_ARGS)
    newer = change(a_job(args=[2], unique=BY_ARGS), args=[1])
    running = change(a_job(args=[3], unique=BY_ARGS), args=[1])
    claim(running)
    fixed()
    assert fresh(older).holds_unique_key
    assert (fresh(newer).state, fresh(newer).replaced_by_id) == ("cancelled", older.pk)
    assert (fresh(running).state, fresh(running).holds_unique_key) == ("active", False)


@pytest.mark.slow
def test_of_imported_duplicates_the_oldest_waits_on():
    values = {"type": "t", "queue": "q", "unique": BY_ARGS.to_dict(), "args": {}}
    text = canonical_text(BY_ARGS, type="t", queue="q", args={}, meta={})
    rows = insert_all(Job(**values, fingerprint=fingerprint(text), enqueued_at=timezone.now()) for _ in range(5))
    assert found() == {"DUPLICATE": 4, "UNHELD": 1}
    seen = []
    receive = lambda **arguments: seen.append((arguments["job"].pk, arguments["job"].state, arguments["replaced_by"]))  # noqa: E731
    job_cancelled.connect(receive)
    try:
        fixed()
    finally:
        job_cancelled.disconnect(receive)
    assert Counter(row.state for row in Job.objects.all()) == {"available": 1, "cancelled": 4}
    assert fresh(rows[0]).state == "available"
    assert sorted(seen) == sorted((row.pk, "cancelled", rows[0].pk) for row in rows[1:])


@pytest.mark.slow
def test_a_key_that_several_jobs_hold_stays_with_the_one_that_holds_it():
    holder = a_job(key="k", args=[1])
    others = [change(a_job(key=f"k{n}", args=[n]), key="k", fingerprint=holder.fingerprint, unique_states=frozenset())
              for n in range(2, 4)]  # fmt: skip
    claim(others[1])
    assert found() == {"KEY": 2}
    fixed()
    assert fresh(holder).key == "k"
    assert [(fresh(job).key, fresh(job).state, fresh(job).args) for job in others] == [
        (None, "available", [2]),
        (None, "active", [3]),
    ]


@pytest.mark.slow
def test_a_missing_constraint_is_found_and_cannot_be_fixed():
    (constraint,) = [one for one in Job._meta.constraints if one.name == capabilities.CONSTRAINT]
    with connection.schema_editor() as editor:
        editor.remove_constraint(Job, constraint)
    try:
        first, second = a_job(unique=BY_ARGS), a_job(args=[2], unique=BY_ARGS)
        change(second, args={}, fingerprint=first.fingerprint)
        claim(second)
        assert found() == {"CONSTRAINT": 1, "SHARED": 1}
        said = refused("verify", "--fix")
        assert "Left:" in said
        assert "manage.py migrate" in said
        assert found() == {"CONSTRAINT": 1}
        assert (fresh(first).holds_unique_key, fresh(second).holds_unique_key) == (True, False)
    finally:
        with connection.schema_editor() as editor:
            editor.add_constraint(Job, constraint)
        capabilities.forget()


# Queues


@pytest.mark.slow
def test_waiting_jobs_from_before_the_rule_get_it_and_duplicates_go(unique_queues):
    """S2-14"""
    first, second = a_job(args=[1]), a_job(args=[1])
    alone, elsewhere = a_job(args=[2]), a_job(args=[1], queue="elsewhere")
    running, later = a_job(args=[1]), a_job(args=[1], scheduled_at=timezone.now() + HOUR)
    claim(running)
    own = a_job(args=[1], unique=BY_ARGS)
    unique_queues(["default"])
    assert found() == {"RULE": 4, "DUPLICATE": 2}
    said = refused("verify")
    assert "the oldest waits on, the newer ones are cancelled" in said
    fixed()
    states = {job.pk: fresh(job).state for job in (first, second, alone, elsewhere, running, later, own)}
    assert list(states.values()) == [
        "available", "cancelled", "available", "available", "active", "cancelled", "available",
    ]  # fmt: skip
    assert fresh(elsewhere).fingerprint is None
    assert fresh(running).fingerprint is None
    assert a_job(args=[1]) == first


@pytest.mark.slow
def test_jobs_that_came_after_the_rule_give_way_to_those_from_before(unique_queues):
    before = a_job(args=[1])
    unique_queues()
    after = a_job(args=[1])
    assert after != before
    assert found() == {"RULE": 1, "DUPLICATE": 1}
    fixed()
    assert (fresh(before).holds_unique_key, fresh(after).replaced_by_id) == (True, before.pk)


@pytest.mark.slow
def test_many_duplicates_in_many_parts_are_told_and_fixed(unique_queues, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.operations.integrity.spool.GROUP", 7)
    monkeypatch.setattr("django_ojs_unique.operations.integrity.spool.PAGE", 11)
    insert_all(Job(type="t", queue="q", args={"n": n % 3}, enqueued_at=timezone.now()) for n in range(90))
    unique_queues()
    assert found() == {"RULE": 90, "DUPLICATE": 87}
    fixed()
    assert Counter(row.state for row in Job.objects.all()) == {"available": 3, "cancelled": 87}
    assert {row.pk for row in Job.objects.filter(state="available")} == {
        row.pk for row in Job.objects.order_by("created_at", "pk")[:3]
    }


@pytest.fixture
def warned():
    def ask(databases=("default",)):
        messages = run_checks(tags=[Tags.database], databases=list(databases))
        return [message for message in messages if message.id == "django_ojs_unique.W004"]

    return ask


@pytest.mark.slow
def test_the_check_says_how_many_jobs_are_from_before_the_rule(unique_queues, warned):
    """S2-14"""
    a_job(), a_job(scheduled_at=timezone.now() + HOUR), a_job(queue="other")
    assert warned() == []
    unique_queues(["default"])
    (message,) = warned()
    assert message.msg.startswith("Unique queues in database 'default' hold 2 waiting jobs")
    assert "manage.py jobs verify --database default" in message.hint
    unique_queues(True)
    assert "hold 3 waiting jobs" in warned()[0].msg
    fixed()
    assert warned() == []
    unique_queues("default")  # which is E001, and not asked about
    assert warned() == []


def test_the_check_looks_at_so_many_jobs_only(unique_queues, warned, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.checks.queues.MOST_LOOKED_AT", 3)
    for _ in range(5):
        a_job()
    unique_queues()
    assert "hold at least 3 waiting jobs" in warned()[0].msg


def test_the_check_is_silent_while_the_tables_do_not_exist(unique_queues, warned):
    unique_queues()
    table = Job._meta.db_table
    with connection.schema_editor() as editor:
        editor.alter_db_table(Job, table, f"{table}_away")
    try:
        assert warned() == []
    finally:
        with connection.schema_editor() as editor:
            editor.alter_db_table(Job, f"{table}_away", table)


# Rekey


def declare(unique, type="t"):
    job(type, unique=unique)(lambda **kwargs: None)


@pytest.mark.slow
def test_live_jobs_get_the_policy_that_the_handler_declares_now(handlers):
    declare(UniquePolicy(keys=["args"], args_keys=["a"]))
    waiting, running = a_job(args={"a": 1, "b": 1}), a_job(args={"a": 2, "b": 1})
    finished, stranger = put(a_job(args={"a": 3, "b": 1}), "completed"), a_job("stranger")
    claim(running)
    handlers.unregister("t")
    policy = UniquePolicy(keys=["args"], args_keys=["b"], states=["available", "completed"])
    declare(policy)
    assert "2 of 2 live jobs would be rekeyed, 0 would be taken out of uniqueness. Nothing was changed." in command(
        "rekey", "--dry-run"
    )
    assert fresh(waiting).unique == waiting.unique
    said = command("rekey", "--type", "t")
    assert f"1 without a unique key, as an older job has it:\n  {running.pk}\n2 of 2 live jobs rekeyed" in said
    for one in (waiting, running):
        assert fresh(one).unique == policy.to_dict()
        assert fresh(one).fingerprint == fingerprint(
            canonical_text(policy, type="t", queue="default", args=one.args, meta={})
        )
        assert fresh(one).window_ends_at == FOREVER
    assert (fresh(waiting).holds_unique_key, fresh(running).holds_unique_key, fresh(running).state) == (
        True,
        False,
        "active",
    )
    assert fresh(finished).unique == finished.unique
    assert fresh(stranger).fingerprint is None
    with pytest.raises(DuplicateJob):
        a_job(args={"a": 9, "b": 1})
    assert found() == {}


@pytest.mark.slow
def test_rekeyed_duplicates_go_on_or_are_cancelled(handlers):
    declare(None)
    jobs = [a_job(args={"n": 1}) for _ in range(3)]
    claim(jobs[2])
    handlers.unregister("t")
    declare(BY_ARGS)
    assert "2 without a unique key" in command("rekey")
    assert {fresh(job).state for job in jobs} == {"available", "active"}
    assert found() == {"DUPLICATE": 1}
    said = command("rekey", "--cancel-duplicates")
    assert f"1 cancelled as duplicates:\n  {jobs[1].pk}, for {jobs[0].pk}" in said
    assert [fresh(job).state for job in jobs] == ["available", "cancelled", "active"]
    fixed()


def test_a_waiting_job_is_a_duplicate_of_a_running_one_if_the_policy_says_so(handlers):
    declare(None)
    running, waiting = a_job(), a_job()
    claim(running)
    handlers.unregister("t")
    declare(BY_ARGS)
    assert rekey(Job.objects.using("default"), cancel_duplicates=True).cancelled == [(waiting.pk, running.pk)]
    assert fresh(running).state == "active"


def test_a_handler_without_a_policy_takes_its_jobs_out_of_uniqueness(handlers):
    declare(BY_ARGS)
    one = a_job()
    handlers.unregister("t")
    declare(None)
    assert "0 of 1 live job rekeyed, 1 taken out of uniqueness." in command("rekey")
    assert (fresh(one).unique, fresh(one).fingerprint, fresh(one).unique_states) == (None, None, frozenset())
    assert "0 of 1 live job rekeyed, 0 taken out" in command("rekey")


def test_keys_and_what_left_manually_stay_as_they_are(handlers, unique_queues):
    declare(BY_ARGS)
    keyed, freed = a_job(key="k"), a_job()
    freed.release_unique_key()
    freed = fresh(freed)
    before = [fresh(keyed), freed]
    assert "0 of 2" in command("rekey")
    assert [fresh(keyed).fingerprint, fresh(freed).fingerprint] == [one.fingerprint for one in before]
    change(keyed, fingerprint_scheme=SCHEME + 1)
    assert "1 of 2" in command("rekey")
    assert fresh(keyed).fingerprint_scheme == SCHEME


def test_a_job_whose_args_do_not_fit_is_named_and_left(handlers):
    declare(None)
    one = a_job(args={"a": 1})
    handlers.unregister("t")
    declare(UniquePolicy(keys=["args"], args_keys=["b"]))
    said = command("rekey")
    assert (
        f"1 left as they are, as their args do not fit the policy:\n  {one.pk}: unique.args_keys: names a key" in said
    )
    assert fresh(one).unique is None


def test_a_type_without_a_handler_is_refused(handlers):
    declare(None, "email.send")
    assert "Did you mean 'email.send'?" in refused("rekey", "--type", "email.sent")
    with pytest.raises(UnknownJobType):
        rekey(Job.objects.using("default"), ["nothing"])


# At a terminal, and on another database


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["verify", "--fix"], ["rekey"]])
def test_at_a_terminal_there_is_a_progress_bar(arguments, handlers, monkeypatch):
    declare(BY_ARGS)
    change(a_job(), fingerprint="0" * 64)
    monkeypatch.setattr(sys, "stderr", Terminal())
    command(*arguments)
    assert "looked at" in sys.stderr.getvalue()
    monkeypatch.setattr(sys, "stderr", Terminal())
    call_command("jobs", *arguments, verbosity=0, stdout=io.StringIO())
    assert sys.stderr.getvalue() == ""


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_another_database_is_verified_by_name():
    one = Job.objects.using("other").enqueue("t", unique=BY_ARGS).job
    Job._base_manager.using("other").update(fingerprint="0" * 64)
    assert command("verify").startswith("Nothing")
    assert "--fix --database other" in refused("verify", "--database", "other")
    command("verify", "--fix", "--database", "other")
    assert Job.objects.using("other").get().fingerprint == one.fingerprint


# Beside workers and producers


@pytest.mark.torture
def test_two_fixes_beside_producers_and_workers_leave_one_waiting_job_of_each_kind(unique_queues):
    """Jobs from before the rule, broken fingerprints and unique keys; then four kinds of process at once."""
    dice = random.Random(random.SystemRandom().randrange(10**9))
    for number in range(60):
        a_job(args=[number % 12])
    unique_queues()
    for number in range(40):
        broken = a_job(args=[100 + number])
        if number % 2:
            change(broken, fingerprint=f"{dice.randrange(16**12):064x}")
        else:
            change(broken, unique_states=frozenset(["available"]))
    payloads = [*range(12), *range(100, 140)]

    def hint(number):
        verify(Job.objects.using("default"), fix=True)

    def produce(number):
        for payload in random.sample(payloads, 25):
            a_job(args=[payload])

    def work(number):
        done = []
        for _ in range(25):
            taken = Job.objects.filter(state="available").order_by("?").first()
            if taken is None:
                continue
            try:
                token = claim(taken)
            except AssertionError:
                continue  # somebody else was faster
            finish = random.choice(["complete", "retry", "release"])
            if finish == "complete":
                assert lifecycle.complete(row(taken), timezone.now(), token=token) == 1
                done.append(taken.args[0])
            elif finish == "retry":
                assert lifecycle.schedule_retry(row(taken), timezone.now(), token=token, errors=[]) == 1
            else:
                assert requeue_leased(Job.objects.all(), [taken.pk], token) == 1
        return done

    ((*_, done, more),) = together([hint, hint, produce, produce, work, work])
    verify(Job.objects.using("default"), fix=True)
    fixed()
    rows = audit()
    left = {row.args[0] for row in rows if row.state not in TERMINAL}
    assert left | set(done) | set(more) == set(payloads), "work was lost"
    assert Counter(row.state for row in rows)["completed"] == len(done) + len(more)
    untouched = Counter(row.args[0] for row in rows if row.state in WAITING and row.worker_id is None)
    assert {payload: count for payload, count in untouched.items() if count > 1} == {}
    assert all(one.replaced_by_id is not None for one in rows if one.state == "cancelled")


@pytest.mark.torture
def test_two_rekeys_beside_producers_and_workers_leave_one_fingerprint_for_each_payload(handlers):
    """Jobs without a policy wait; then the handler declares one, which old and new jobs meet under."""
    declare(None)
    for number in range(60):
        a_job(args={"n": number % 20, "noise": number})
    handlers.unregister("t")
    policy = UniquePolicy(keys=["args"], args_keys=["n"], on_conflict="ignore")
    declare(policy)

    def change_policy(number):
        rekey(Job.objects.using("default"), cancel_duplicates=True)

    def produce(number):
        for payload in random.sample(range(20), 20):
            a_job(args={"n": payload, "noise": -1})

    def work(number):
        for _ in range(10):
            taken = Job.objects.filter(state="available").order_by("?").first()
            with suppress(AssertionError):  # somebody else was faster
                token = claim(taken)
                if lifecycle.complete(row(taken), timezone.now(), token=token) != 1:
                    raise ValueError(f"{taken} was cancelled while it ran")

    together([change_policy, change_policy, produce, produce, work])
    rekey(Job.objects.using("default"), cancel_duplicates=True)
    rows = audit()
    assert {one.args["n"] for one in rows if one.state in WAITING} | {
        one.args["n"] for one in rows if one.state == "completed"
    } == set(range(20))
    live = Counter(one.args["n"] for one in rows if one.state not in TERMINAL)
    assert {payload: count for payload, count in live.items() if count > 1} == {}
    assert all(one.holds_unique_key and one.unique == policy.to_dict() for one in rows if one.state not in TERMINAL)
    assert found() == {}
