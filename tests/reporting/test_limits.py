"""What the limits of jobs do now: the numbers in force, what runs, what waits, and what one job waits for."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import Limit, job
from django_ojs_unique.models import Job, LimitOverride, LimitPartition, Queue
from django_ojs_unique.reporting import limit_waits, limits, line
from django_ojs_unique.reporting.limit_waits import waits_for
from django_ojs_unique.reporting.limits import Numbers, partitions_of, waiting_partitions
from tests.support.limits import ONE, done, enqueue, take
from tests.support.secrets import SECRET, assert_hidden

pytestmark = pytest.mark.django_db(transaction=True)


def waits(id: Any) -> str:
    return " ".join(waits_for(Job.objects.get(pk=id), "default"))


def by_name() -> dict[str, Any]:
    return {one.name: one for one in limits.limits("default")}


# What one job waits for


def test_a_job_waits_for_a_look_then_for_a_slot_and_names_who_holds_it():
    first, second, third = enqueue(1), enqueue(1), enqueue(1)
    assert waits(first) == "No worker has looked at its limits yet. No job waits before it."
    assert waits(third) == "No worker has looked at its limits yet. 2 jobs wait before it."
    running = take()
    assert waits(first) == ""
    slot = f"Waits for a slot of args.n 1: 1 of 1 in use. Held by {first}."
    assert waits(second) == f"{slot} No job waits before it."
    assert waits(third) == f"{slot} 1 job waits before it."
    Job.objects.get(pk=first).cancel()
    assert waits(third) == f"{slot} 1 job waits before it."
    done(*running)
    assert waits(third) == "Waits for its turn of args.n 1: a slot is free. 1 job waits before it."


def test_those_of_other_queues_and_higher_priority_wait_before_it():
    enqueue(1), enqueue(1, queue="other")
    last = enqueue(1)
    enqueue(1, priority=5, queue="other"), enqueue(2, priority=5), enqueue(1)
    take(queues=["default", "other"]), take(queues=["default", "other"])
    assert Job.objects.filter(state="available", blocked_by=Job.objects.get(pk=last).blocked_by).count() == 4
    assert "2 jobs wait before it." in waits(last)


def test_the_numbers_of_an_operator_and_the_weight_count():
    heavy = Limit(key=["args.n"], running=4, weight=2)
    jobs = [enqueue(1, heavy) for _ in range(4)]
    LimitOverride.objects.set("args.n", running=3)
    take()
    take()
    said = f"Waits for a slot of args.n 1: 2 of 3 in use. Held by {jobs[0]}. It takes 2 slots. No job waits before it."
    assert waits(jobs[1]) == said


def test_a_job_counts_for_no_more_than_the_smallest_of_its_numbers_that_an_operator_has_set():
    enqueue(1, Limit(key=["args.n"], running=4)), enqueue(1, Limit(key=["args.n"], running=4))
    assert len(take()) == 2
    heavy = Limit(key=["args.n"], running=4, per_minute=8, weight=4)
    explained = Job.objects.explain("t", {"n": 1}, limit=heavy)
    assert limit_waits.would_meet(explained, "default")[0].startswith(
        "Would wait for a slot of args.n 1: 2 of 4 in use"
    )
    LimitOverride.objects.set("args.n", rate=2)
    assert limit_waits.would_meet(explained, "default")[0].startswith("Would have a slot of args.n 1: 2 of 4 in use")
    heavy_id = enqueue(1, heavy)
    assert [each.pk for each in take()] == [heavy_id]


def test_a_job_that_would_not_be_stored_meets_no_limit():
    Job.objects.enqueue("t", {"n": 1}, unique={})
    explained = Job.objects.explain("t", {"n": 1}, unique={}, limit=Limit(key=["args.n"], running=1))
    assert (explained.action, len(explained.limits)) == ("reject", 1)
    assert limit_waits.would_meet(explained, "default") == ()


def test_many_holders_are_not_all_named():
    limit = Limit(key=["args.n"], running=5)
    *holders, last = [enqueue(1, limit) for _ in range(6)]
    assert len(take()) == 5
    take()
    a, b, c, *_ = holders
    assert f"5 of 5 in use. Held by {a}, {b}, {c} and others." in waits(last)


@pytest.mark.usefixtures("no_time_passes")
def test_a_job_waits_for_a_rate_until_a_time():
    limit = Limit(key=["args.n"], per_minute=2)
    *_, last = [enqueue(1, limit) for _ in range(3)]
    now = timezone.now()
    assert len(take(now=now)) == 2
    take(now=now)
    said = waits(last)
    assert said.startswith("Waits for args.n 1: 2 of 2 have started in the last minute. The next may start at ")
    assert limit_waits.full(now + timedelta(minutes=1)) in said


def test_a_job_waits_for_the_turn_of_its_partition(settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["args.n"]}}
    *_, last = [enqueue(n, None) for n in (1, 2, 2, 2)]
    assert waits(last) == (
        "Waits for a turn of its partition in the fair queue default."
        " 2 jobs in its partition of the queue wait before it."
    )


def test_in_a_fair_queue_it_waits_for_a_slot_in_its_partition(settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"default": ["args.n"]}}
    limit = Limit(name="all", running=1)
    *_, last = [enqueue(n, limit) for n in (1, 1, 2, 2, 2)]
    for _ in range(3):
        take()
    is_first = Job.objects.get(state="active").args == {"n": 1}  # which fair partition is, depends on the claims before
    before = "2 jobs in its partition of the queue wait" if is_first else "1 job in its partition of the queue waits"
    assert waits(last).startswith("Waits for a slot of all: 1 of 1 in use. Held by ")
    assert waits(last).endswith(f" {before} before it.")
    (key,) = waiting_partitions("default", 10)
    assert (key.text, key.waiting) == ("all", 4)


def test_a_block_that_is_none_of_its_own_is_said():
    id = enqueue(1)
    Job._base_manager.filter(pk=id).update(blocked_by="k" + "0" * 32)
    assert "none of its own" in waits(id)


def test_others_wait_for_nothing():
    plain = Job.objects.enqueue("t").job.id
    later = enqueue(1, delay="PT1H")
    assert waits(plain) == waits(later) == ""


def test_a_job_waits_for_the_limit_of_its_queue():
    Queue.objects.limit("default", 2)
    first, second, third = (Job.objects.enqueue("t").job.id for _ in range(3))
    explained = Job.objects.explain("t")
    assert waits(third) == ""
    assert limit_waits.would_meet(explained, "default") == ()
    take(1), take(1)
    full = "Queue default is full: 2 of 2 jobs run."
    assert waits(first) == waits(second) == ""
    assert waits(third) == f"{full} No job waits before it."
    assert limit_waits.would_meet(explained, "default") == (full,)
    Job.objects.get(pk=first).cancel()
    assert waits(third) == f"{full} No job waits before it."  # its worker has not let go of it
    Queue.objects.limit("default", 3)
    assert waits(third) == ""


@pytest.mark.usefixtures("no_time_passes")
def test_a_job_waits_for_the_rate_of_its_queue():
    Queue.objects.rate_limit("default", 2)
    ids = [Job.objects.enqueue("t").job.id for _ in range(4)]
    slow = "Queue default starts at most 2 jobs in a second."
    assert [waits(id) for id in ids] == ["", "", f"{slow} 2 jobs wait before it.", f"{slow} 3 jobs wait before it."]
    assert limit_waits.would_meet(Job.objects.explain("t"), "default") == (slow,)
    Job.objects.filter(pk__in=ids[1:]).cancel()
    last = Job.objects.enqueue("t").job.id
    assert waits(last) == ""
    soon = timezone.now() + timedelta(seconds=30)
    Queue.objects.filter(name="default").update(window_started_at=soon, window_count=2)
    assert waits(last) == f"{slow} 1 job waits before it."


def test_what_waits_for_its_time_or_its_retry_says_that_its_queue_is_paused():
    later, soon = (enqueue(1, delay="PT1H") for _ in range(2))
    Job._base_manager.filter(pk=soon).update(state="retryable")
    Queue.objects.limit("default", 1)
    assert waits(later) == waits(soon) == ""
    Queue.objects.pause("default")
    assert waits(later) == waits(soon) == "Queue default is paused: no worker claims its jobs."
    Job.objects.filter(pk=later).cancel()
    assert waits(later) == ""


def test_a_job_at_which_no_worker_has_looked_says_which_of_its_limits_are_full():
    first = enqueue(1)
    take()
    second = enqueue(1, [Limit(key=["args.n"], running=1), Limit(name="free", running=1)])
    assert waits(second) == (
        "No worker has looked at its limits yet. Waits for a slot of args.n 1: 1 of 1 in use."
        f" Held by {first}. No job waits before it."
    )


def test_the_count_stops(monkeypatch):
    monkeypatch.setattr(line, "MOST_COUNTED", 2)
    *_, last = [enqueue(1) for _ in range(5)]
    assert "2 or more jobs wait before it." in waits(last)


def test_what_a_job_waits_for_takes_few_statements_whatever_waits(django_assert_max_num_queries):
    limit = Limit(key=["args.n"], running=1, per_hour=1)
    *_, last = [enqueue(1, limit) for _ in range(50)]
    take(), take()
    Queue.objects.limit("default", 1), Queue.objects.rate_limit("default", 1)
    row = Job.objects.get(pk=last)
    with django_assert_max_num_queries(17):
        assert waits_for(row, "default")


# What a job would wait for


def meets(n: Any = 1, limit: Any = ONE, **options: Any) -> str:
    return " ".join(limit_waits.would_meet(Job.objects.explain("t", {"n": n}, limit=limit, **options), "default"))


HAVE = "Would have a slot of args.n 1: 0 of 1 in use. No job waits before it."
TURN = "Would wait for its turn of args.n 1: a slot is free, 0 of 1 in use."


@pytest.mark.every_database
def test_it_would_have_a_slot_only_if_one_is_free_and_nobody_waits_before_it():
    assert meets() == HAVE
    enqueue(1), enqueue(1), enqueue(2)
    assert meets() == f"{TURN} 2 jobs wait before it.", "no worker has looked at their limits yet"
    runs = take()
    assert meets() == "Would wait for a slot of args.n 1: 1 of 1 in use. 1 job waits before it."
    enqueue(1)
    assert meets() == "Would wait for a slot of args.n 1: 1 of 1 in use. 2 jobs wait before it."
    done(*runs)
    assert meets() == f"{TURN} 2 jobs wait before it."
    assert meets(priority=1) == HAVE
    assert meets(2) == HAVE.replace("args.n 1", "args.n 2")


@pytest.mark.every_database
def test_a_rate_with_free_starts_is_said_to_be_free():
    limit = Limit(key=["args.n"], per_minute=2)
    free = "0 of 2 started in the last minute."
    assert meets(limit=limit) == f"Would have a slot of args.n 1: {free} No job waits before it."
    enqueue(1, limit)
    assert meets(limit=limit) == (f"Would wait for its turn of args.n 1: a slot is free, {free} 1 job waits before it.")
    enqueue(1, limit), take()
    assert meets(limit=limit).startswith("Would wait for a slot of args.n 1: 2 of 2 started in the last minute. No job")


@pytest.mark.every_database
def test_jobs_of_other_queues_wait_before_it_unless_these_are_paused():
    enqueue(1, queue="other"), enqueue(1, queue="other")
    Job._base_manager.filter(pk=enqueue(1)).update(limits="written manually")
    (run,) = take(queues=["other"])
    take(queues=["other"]), done(run)
    assert meets() == f"{TURN} 1 job waits before it."
    assert meets(queue="third") == f"{TURN} 1 job waits before it."
    Queue.objects.pause("other")
    assert meets() == HAVE


def test_jobs_that_it_would_replace_do_not_wait_before_it():
    enqueue(1, unique={"keys": ["type"], "on_conflict": "replace"})
    assert meets(unique={"keys": ["type"], "on_conflict": "replace"}) == HAVE
    assert meets() == f"{TURN} 1 job waits before it."


@pytest.mark.every_database
def test_jobs_of_a_fair_queue_take_turns_with_it(settings):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"fair": ["args.n"]}}
    limit = Limit(name="all", running=1)
    for n in (1, 2, 2):
        enqueue(n, limit, queue="fair")
    turns = (
        "Would wait for its turn of all: a slot is free, 0 of 1 in use. Others that wait for it, too, and take turns"
    )
    assert meets(9, limit, queue="fair") == meets(9, limit) == f"{turns}: 3."
    (run,) = take(queues=["fair"])
    take(queues=["fair"]), done(run), enqueue(1, limit)
    assert meets(9, limit, queue="fair") == f"{turns}: 3."
    assert meets(9, limit, queue="fair", priority=5) == f"{turns}: 3."


def test_a_job_that_would_be_scheduled_asks_later():
    enqueue(1)
    then = timezone.now() + timedelta(hours=1)
    assert meets(scheduled_at=then) == f"Would not ask for a slot before {limit_waits.full(then)}."
    assert meets(limit=None, scheduled_at=then) == ""


def test_nobody_is_said_to_be_first_if_not_all_jobs_were_looked_at(monkeypatch):
    monkeypatch.setattr(line, "MOST_NEW", 1)
    enqueue(2), enqueue(2, queue="other")
    assert meets() == f"{TURN} 0 or more jobs wait before it."


def test_what_a_job_would_wait_for_takes_few_statements_whatever_waits(django_assert_max_num_queries):
    limit = Limit(key=["args.n"], running=1, per_hour=1)
    for n in range(50):
        enqueue(n % 3, limit, queue=f"q{n}")
    explained = Job.objects.explain("t", {"n": 1}, limit=limit)
    with django_assert_max_num_queries(12):
        assert limit_waits.would_meet(explained, "default")


def test_of_a_free_slot_nobody_waits_for_a_job_waits_for_a_worker_only():
    enqueue(1)
    second = enqueue(1)
    runs = take()
    take(), done(*runs)
    assert waits(second) == "Waits for a worker: a slot of args.n 1 is free. No job waits before it."
    enqueue(1, priority=3)
    assert waits(second) == "Waits for its turn of args.n 1: a slot is free. 1 job waits before it."


# The limits by name


def test_each_limit_says_its_numbers_and_what_runs_and_waits():
    [enqueue(n) for n in (1, 1, 1, 2, 2, 3)]
    enqueue(1, Limit(name="mail", per_minute=100))
    take(), take()
    found = by_name()
    assert list(found) == ["args.n", "mail"]
    one, mail = found.values()
    assert (one.partitions, one.running, one.waiting, one.waiting_partitions) == (3, 3, 3, 2)
    assert (mail.partitions, mail.running, mail.waiting, mail.waiting_partitions) == (1, 1, 0, 0)
    assert [str(numbers) for numbers in (*one.numbers, *mail.numbers)] == ["1 at once", "100 per minute"]


def test_the_numbers_of_an_operator_are_in_force():
    enqueue(1, Limit(key=["args.n"], running=1, per_hour=5))
    take()
    LimitOverride.objects.set("args.n", rate=7)
    LimitOverride.objects.set("later", running=4)
    found = by_name()
    assert found["args.n"].given == (Numbers(1, 5, 3600),)
    assert found["args.n"].numbers == [Numbers(1, 7, 3600)]
    assert found["later"].numbers == [Numbers(4)]
    assert (found["later"].partitions, found["later"].running) == (0, 0)


def test_a_declared_limit_is_there_before_its_first_job(handlers):
    job("t", limit=Limit(key=["args.n"], running=2))(lambda n: None)
    assert by_name()["args.n"].given == (Numbers(2),)


def test_jobs_that_only_wait_say_the_numbers_too():
    enqueue(1), enqueue(1)
    (running,) = take()
    take()
    Job._base_manager.filter(pk=running.id).delete()
    assert by_name()["args.n"].given == (Numbers(1),)


def test_counts_stop(monkeypatch):
    monkeypatch.setattr(limits, "MOST_COUNTED", 2)
    monkeypatch.setattr(limits, "_COUNTED", limits._COUNTED.replace("10001", "3").replace("10000", "2"))
    for n in (1, 1, 1, 1, 2, 2, 3, 4):
        enqueue(n)
    take(), take()
    found = by_name()["args.n"]
    assert (found.partitions, found.waiting) == (3, 3)


def test_the_limits_take_few_statements_whatever_there_is():
    def count() -> int:
        with CaptureQueriesContext(connection) as queries:
            limits.limits("default")
        return len(queries)

    assert count() == 4
    enqueue(1), enqueue(1)
    take(), take()
    few = count()
    for n in range(40):
        enqueue(n, Limit(key=["args.n"], running=1, name=f"limit {n % 7}"), queue=f"q{n % 5}")
    take(40, queues=[f"q{n}" for n in range(5)])
    assert count() == few <= 7


# Their keys


def test_the_partitions_for_which_most_jobs_wait_come_first():
    for n in (1, 2, 2, 2, 3, 3):
        enqueue(n)
    enqueue(2, queue="other")
    take(queues=["default", "other"]), take(queues=["default", "other"])
    found = waiting_partitions("default", 10)
    assert [(key.text, key.waiting, key.running) for key in found] == [("args.n 2", 3, 0), ("args.n 3", 1, 0)]
    assert found[0].since is not None
    assert waits(found[0].first)
    assert len(waiting_partitions("default", 1)) == 1
    assert [(key.text, key.waiting, key.running) for key in partitions_of("default", "args.n", 10)] == [
        ("args.n 2", 3, 1),
        ("args.n 3", 1, 1),
        ("args.n 1", 0, 1),
    ]
    assert partitions_of("default", "other", 10) == []


def test_a_limit_says_when_jobs_may_wait_for_more_partitions_than_were_looked_at(monkeypatch):
    for n in (1, 1, 2, 2, 3, 3):
        enqueue(n)
    take(), take()
    one = by_name()["args.n"]
    assert (one.waiting_partitions, one.is_cut) == (3, False)
    monkeypatch.setattr(limits, "MOST_PARTITIONS", 2)
    one = by_name()["args.n"]
    assert (one.waiting_partitions, one.is_cut) == (2, True)
    assert [each.is_cut for each in waiting_partitions("default", 9)] == [True, True]


@pytest.mark.every_database
def test_a_cut_is_said_also_if_queues_share_the_partitions(monkeypatch):
    monkeypatch.setattr(limits, "MOST_PARTITIONS", 2)
    monkeypatch.setattr(limits, "_COUNTED", limits._COUNTED.replace("LIMIT 1000)", "LIMIT 2)"))
    for queue in ("default", "other"):
        for n in (1, 1, 2, 2):
            enqueue(n, queue=queue)
        take(queues=[queue]), take(queues=[queue])
    one = by_name()["args.n"]
    assert one.is_cut


@pytest.mark.every_database
@pytest.mark.parametrize(("bound", "names"), [("MOST_QUEUES", "q"), ("MOST_NAMES", "n"), ("MOST_COUNTED", "r")])
def test_a_cut_of_queues_names_and_runs_is_said(monkeypatch, bound, names):
    for number in (1, 2):
        queue = f"{names}{number}" if names == "q" else "default"
        enqueue(number, Limit(key=["args.n"], running=1, name=f"{names}{number}"), queue=queue)
        enqueue(number, Limit(key=["args.n"], running=1, name=f"{names}{number}"), queue=queue)
        take(queues=[queue])
    assert {one.is_cut for one in limits.limits("default")} == {False}
    monkeypatch.setattr(limits, bound, 1)
    assert {one.is_cut for one in limits.limits("default")} == {True}


def test_a_partition_for_which_nobody_waits_is_not_full_since_then():
    enqueue(1)
    take()
    LimitPartition.objects.update(full_since=timezone.now())
    (partition,) = partitions_of("default", "args.n", 10)
    assert (partition.running, partition.waiting, partition.since) == (1, 0, None)


def test_a_partition_whose_job_has_ended_meanwhile_is_left_out(monkeypatch):
    enqueue(1)
    take()
    monkeypatch.setattr(limits, "_jobs", lambda *given: [])
    assert partitions_of("default", "args.n", 10) == []


def test_a_run_counts_also_if_its_partition_has_no_row_any_more():
    enqueue(1)
    take()
    LimitPartition.objects.all().delete()
    assert by_name()["args.n"].running == 1


def test_a_partition_without_a_row_is_named_by_its_jobs():
    enqueue(1), enqueue(1)
    take(), take()
    LimitPartition.objects.all().delete()
    (key,) = waiting_partitions("default", 10)
    assert (key.name, key.text, key.since) == ("args.n", "args.n 1", None)


def test_without_limits_the_partitions_cost_one_statement(django_assert_num_queries):
    Job.objects.enqueue("t")
    with django_assert_num_queries(1):
        assert waiting_partitions("default", 10) == []


def test_redacted_values_are_in_no_text(handlers):
    @job("bank.pay", redact=["iban"], limit=Limit(key=["args.iban", "args/to/iban"], running=1))
    def pay(iban, to):
        pass

    ids = [pay.enqueue(iban=SECRET, to={"iban": SECRET}).job.id for _ in range(2)]
    take(), take()
    assert_hidden(waits(ids[1]))
    for found in (waiting_partitions("default", 10), partitions_of("default", "args.iban,args/to/iban", 10)):
        assert_hidden(str(found))
