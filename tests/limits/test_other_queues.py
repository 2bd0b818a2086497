"""A limit keeps its order over queues, and over the pools of a worker."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique import Limit, job
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.claim_limited import Share
from django_ojs_unique.limits import slots
from django_ojs_unique.limits.slots import LONGEST_LEFT
from django_ojs_unique.models import Job, LimitPartition, Queue
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.worker import Worker
from tests.support.limits import done, ids
from tests.support.processes import Parent, until

pytestmark = pytest.mark.django_db(transaction=True)

ONE = Limit(name="one", running=1)
LATER = LONGEST_LEFT + timedelta(seconds=1)


def enqueue(queue: str, limit: Any = ONE, type: str = "t", **options: Any) -> Any:
    return Job.objects.enqueue(type, queue=queue, limit=limit, **options).job.id


def take(*queues: str, count: int = 10, now: Any = None, types: Any = None, **options: Any) -> list[Any]:
    return list(
        claim(
            Job.objects.all(),
            queues=queues,
            types=types,
            limit=count,
            worker_id="w",
            lease=timedelta(seconds=60),
            now=now or timezone.now(),
            **options,
        )
    )


@pytest.fixture
def runs():
    """Return a run of the queue f that has the one slot, for which a job of g and then one of f wait."""
    enqueue("f")
    (running,) = take("f")
    enqueue("g")
    assert take("g") == []
    enqueue("f")
    assert take("f") == []
    return running


def test_an_older_job_of_another_queue_goes_first(runs):
    done(runs)
    assert take("f") == []
    (older,) = take("g")
    done(older)
    assert [run.queue for run in take("f")] == ["f"]


def test_a_job_of_higher_priority_goes_first(runs):
    urgent = enqueue("h", priority=50)
    assert take("h") == []
    done(runs)
    assert take("g") == take("f") == []
    assert ids(take("h")) == [urgent]


def test_a_claim_of_both_queues_takes_the_older_job(runs):
    done(runs)
    assert [run.queue for run in take("f", "g")] == ["g"]


def test_light_jobs_of_another_queue_do_not_pass_a_heavy_one():
    light, heavy = Limit(name="memory", running=4), Limit(name="memory", running=4, weight=4)
    for _ in range(4):
        enqueue("light", light)
    running = take("light")
    enqueue("heavy", heavy)
    assert take("heavy") == []
    for _ in range(3):
        enqueue("light", light)
    for run in running:
        assert take("light") == take("heavy") == []
        done(run)
    (run,) = take("heavy")
    assert take("light") == []
    done(run)
    assert len(take("light")) == 3


def test_a_slot_is_not_left_for_ever_to_a_queue_without_a_worker(runs):
    done(runs)
    assert take("f") == []
    assert take("f", now=timezone.now() + LONGEST_LEFT / 2) == []
    (newer,) = take("f", now=timezone.now() + LATER)
    enqueue("f")
    done(newer)
    (newer,) = take("f", now=timezone.now() + LATER)  # at once: nobody has come meanwhile
    enqueue("f")
    done(newer)
    assert [run.queue for run in take("g")] == ["g"]


def test_the_order_holds_again_once_a_worker_has_come(runs):
    done(runs)
    assert take("f") == []
    (newer,) = take("f", now=timezone.now() + LATER)
    first, _ = enqueue("g"), enqueue("f")
    done(newer)
    (older,) = take("g")
    assert take("f") == []
    done(older)
    assert take("f", now=timezone.now() + LATER) == []
    assert ids(take("g")) == [first]


@pytest.mark.parametrize("end", ["cancel", "expire", "pause"])
def test_a_job_that_cannot_start_is_left_no_slot(runs, end):
    waits = Job.objects.get(queue="g")
    if end == "cancel":
        waits.cancel()
    elif end == "expire":
        Job.objects.filter(pk=waits.pk).update(expires_at=timezone.now() - timedelta(seconds=1))
    else:
        Queue.objects.pause("g")
    done(runs)
    assert [run.queue for run in take("f")] == ["f"]
    assert ("g" in (LimitPartition.objects.get().queues or [])) is (end == "pause")


def test_a_partition_forgets_the_queues_in_which_nothing_waits(runs):
    assert LimitPartition.objects.get().queues == ["f", "g"]
    done(runs)
    for queue in "gf":
        (run,) = take(queue)
        done(run)
    enqueue("f")
    assert len(take("f")) == 1
    partition = LimitPartition.objects.get()
    assert (partition.queues, partition.full_since, partition.left_since) == (None, None, None)


def test_who_gets_the_slot_is_woken_once(runs, monkeypatch):
    woken = []
    dialect = type(dialect_of(Job.objects.all()))
    monkeypatch.setattr(dialect, "wake", lambda self, queues: woken.extend(queues))
    done(runs)
    now = timezone.now()
    for _ in range(3):
        assert take("f", now=now) == []
    assert woken == ["g"]


def test_a_claim_for_a_test_regards_only_the_jobs_that_it_runs(runs, handlers):
    job("t")(lambda: None)
    done(runs)
    assert [ran.job.queue for ran in run_jobs(queues="f")] == ["f"]


@pytest.mark.parametrize("order", ["pf", "fp"])
@pytest.mark.parametrize("plain_first", [True, False])
def test_a_fair_queue_and_another_one_never_wait_for_each_other(settings, order, plain_first):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"f": ["meta.tenant"]}}
    enqueue("p")
    (run,) = take("p")
    added = [("p", "-")] if plain_first else []
    added += [("f", "a"), ("f", "a"), ("p", "-"), ("f", "b"), ("p", "-"), ("f", "b"), ("f", "a")]
    for queue, tenant in added:
        enqueue(queue, meta={"tenant": tenant})
        take(queue)
    done(run)
    for _ in added:
        found = [run for queue in (*order, *order) for run in take(queue)]
        assert len(found) == 1
        done(*found)
    assert not Job.objects.exclude(state="completed").exists()


class TestSharesOfAClaim:
    """One claim of a worker takes plain jobs and those with an async handler, of each as many as it has room for."""

    def take(self, plain: int, coroutines: int, **options: Any) -> list[Any]:
        also = [Share(["async"], coroutines)] if coroutines else []
        return [run.args[0] for run in take("q", types=["plain"], count=plain, also=also, **options)]

    def enqueue(self, types: str, limit: Any = None, **options: Any) -> None:
        for number, letter in enumerate(types):
            type = {"p": "plain", "a": "async"}[letter]
            enqueue("q", limit and Limit(name="l", running=limit), type=type, args=[number], **options)

    def test_the_first_job_gets_the_slot_whatever_its_type(self):
        self.enqueue("ppa", 1)
        enqueue("q", Limit(name="l", running=1), type="async", args=[9], priority=50)
        assert self.take(5, 5) == [9]
        assert self.take(5, 5) == []

    def test_jobs_of_both_go_in_their_order(self):
        self.enqueue("paap", 3)
        assert self.take(5, 5) == [0, 1, 2]

    def test_each_share_is_kept_to(self):
        self.enqueue("aaapppa", 9)
        assert self.take(1, 2) == [0, 1, 3]

    def test_no_slot_is_left_to_a_share_that_is_full(self):
        self.enqueue("aap", 2)
        assert self.take(1, 1) == [0, 2]
        assert Job.objects.get(args=[1]).state == "available"

    def test_no_slot_is_left_to_types_without_a_share(self):
        self.enqueue("ap", 1)
        assert self.take(1, 0) == [1]

    @pytest.mark.parametrize("limit", [None, 200])
    def test_jobs_behind_many_of_a_full_share_are_found(self, limit):
        Queue.objects.limit("q", 500)
        self.enqueue("a" * 60 + "pp", limit)
        assert self.take(2, 3) == [*((0, 1, 2, 60, 61) if limit else (60, 61, 0, 1, 2))]

    def test_a_fair_partition_takes_its_turn_with_a_job_that_there_is_room_for(self, settings):
        settings.OJS_UNIQUE = {"FAIR_QUEUES": {"q": ["meta.tenant"]}}
        self.enqueue("aap", meta={"tenant": "a"})
        self.enqueue("ppp", meta={"tenant": "b"})
        assert self.take(3, 1) == [0, 0, 2, 1]

    def test_a_limited_queue_gives_no_more_than_it_may(self):
        Queue.objects.limit("q", 3)
        self.enqueue("ppaaa")
        assert self.take(2, 2) == [0, 1, 2]

    def test_a_queue_is_not_forgotten_by_a_round_for_one_share(self):
        """The jobs of the other share were not read: that they wait must stay known."""
        self.enqueue("ppp", 3)
        holders = take("q", types=["plain"])
        self.enqueue("p" * 12 + "a", 3)
        assert self.take(1, 1) == []
        done(*holders)
        assert self.take(1, 1) == [0, 12]
        assert LimitPartition.objects.get().queues == ["q"]


def work(parent: Parent, log: str, queues: list[str], drain: bool) -> None:
    """Be a worker of some queues; each handler writes its number when it starts."""
    file = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)

    @job("plain")
    def plain(n: int) -> None:
        os.write(file, f"{n}\n".encode())

    @job("async")
    async def coroutine(n: int) -> None:
        os.write(file, f"{n}\n".encode())

    parent.tell("ready")
    Worker(queues=queues, concurrency=3).run(drain=drain)


@pytest.mark.torture
@pytest.mark.parametrize("heavy", [1, 2])
def test_workers_of_other_queues_and_types_start_jobs_in_their_order(start, tmp_path, monkeypatch, heavy):
    monkeypatch.setattr(slots, "LONGEST_LEFT", timedelta(hours=1))  # on a busy machine, no worker is too late
    light, heavies = Limit(name="m", running=2, weight=1), Limit(name="m", running=2, weight=2)
    enqueue("f", heavies)
    (holder,) = take("f")
    order = []
    for n in range(24):
        is_heavy = heavy == 2 and n % 4 == 3
        queue, type = "fgh"[n % 3], ("plain", "async")[n // 3 % 2]
        enqueue(queue, heavies if is_heavy or heavy == 1 else light, type=type, args=[n], priority=n % 2)
        order.append((-(n % 2), n, is_heavy or heavy == 1))
    log = tmp_path / "log"
    for queue in ("f", "g", "h", "h"):
        start(work, str(log), [queue], False).hear()
    until(lambda: Job.objects.filter(blocked_by__gt="k", state="available").count() == 24, "all wait for a slot")
    done(holder)
    until(lambda: not Job.objects.filter(finished_at=None).exists(), "all have run")
    started = [int(line) for line in log.read_text().split()]
    for place, (_, n, is_alone) in enumerate(order := sorted(order)):
        if is_alone:
            assert started.index(n) == place
    assert sorted(started) == list(range(24))


@pytest.mark.torture
@pytest.mark.parametrize("queues", [["f", "g", "h", "i"], ["fghi"] * 2])
def test_drains_of_queues_that_share_a_limit_leave_nothing(start, tmp_path, queues):
    for n in range(24):
        enqueue("fghi"[n % 4], type=("plain", "async")[n // 4 % 2], args=[n])
    workers = [start(work, str(tmp_path / "log"), list(some), True) for some in queues]
    for worker in workers:
        assert worker.hear() == "ready"
    for worker in workers:
        worker.result()
    assert not Job.objects.exclude(state="completed").exists()
