"""Appends by key race claims, failures, removals, rollbacks and kill -9: no item is lost or doubled (S4-24, S4-32).

``OJS_TORTURE_ROUNDS`` makes it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from multiprocessing.connection import wait
from typing import Any

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique.db.fields import new_id
from django_ojs_unique.db.transactions import is_transient, starting_over
from django_ojs_unique.exceptions import InvalidTransition, JobIdTaken
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import prune, timers
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from tests.support.audit import audit
from tests.support.jobs import elsewhere
from tests.support.processes import PATIENCE, Child, Parent, together, wait_until_alone, wait_until_blocked

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
APPENDERS, WORKERS, KILLS, OPERATIONS = 4, 2, 4 * ROUNDS, 25 * ROUNDS
KEYS = ["c", "f", "g"]
"""In the order of their fingerprints, and of their turns, so that callers and batches seldom wait for each other."""
MODES = ["replace", "preserve_run_at"]
SNAPSHOT = pytest.mark.skipif(connection.vendor != "mysql", reason="only InnoDB goes on with an old snapshot")


def add(items: list[Any], key: str = "k", mode: str = "replace", **options: Any) -> Any:
    return Job.objects.enqueue("t", items, key=key, key_mode=mode, **options)


def take(limit: int = 10, lease: timedelta = timedelta(hours=1)) -> list[Any]:
    """Claim as a worker does."""
    jobs = Job.objects.all()
    options = {"queues": ["default"], "types": ["t"], "limit": limit, "worker_id": "w", "lease": lease}
    return starting_over("default", lambda: list(claim(jobs, now=timezone.now(), **options)))


def complete(job: Any) -> str:
    ((_, finalized),) = starting_over("default", lambda: finalize(Job.objects.all(), [RunResult(job)]))
    return str(finalized)


def holders() -> list[Any]:
    return [job for job in Job.objects.filter(key__isnull=False) if job.holds_unique_key]


# The torture


class Player:
    """One process's play: what it tries is announced before it begins, what it did is told after the commit."""

    def __init__(self, parent: Parent, seed: str) -> None:
        self.parent = parent
        self.random = random.Random(seed)

    def play(self, first: int) -> None:
        for number in range(first, OPERATIONS):
            self.parent.tell(("done", number, *self.operate(number)))

    def operate(self, number: int) -> tuple[str, Any]:
        raise NotImplementedError


class Appender(Player):
    """Adds arrays, alone, many at once, and in transactions of which some are rolled back."""

    def __init__(self, parent: Parent, seed: str) -> None:
        super().__init__(parent, seed)
        self.name = seed

    def operate(self, number: int) -> tuple[str, Any]:
        # In sorted order: that two callers wait for each other is their own deadlock.
        keys = sorted(self.random.choices(KEYS, k=self.random.randint(1, 4)))
        additions = [
            {
                "type": "t",
                "args": [f"{self.name}.{number}.{place}.{i}" for i in range(self.random.randint(1, 3))],
                "key": key,
                "key_mode": self.random.choice(MODES),
                "scheduled_at": self.random.choice([None, None, timezone.now() + timedelta(milliseconds=5)]),
            }
            for place, key in enumerate(keys)
        ]
        way = self.random.choice([self.alone, self.many, self.in_transaction, self.many_in_transaction])
        if way == self.alone:
            additions = additions[:1]
        items = [item for addition in additions for item in addition["args"]]
        self.parent.tell(("trying", items))
        try:
            committed = way(additions)
        except OperationalError as error:
            if way in (self.alone, self.many) or not is_transient(error):
                raise  # whoever has no transaction of his own never hears of a deadlock
            return "gave up", repr(error)
        return ("added", items) if committed else ("rolled back", items)

    def alone(self, additions: list[dict[str, Any]]) -> bool:
        Job.objects.enqueue(**additions[0])
        return True

    def many(self, additions: list[dict[str, Any]]) -> bool:
        answers = Job.objects.enqueue_many(additions, mode=self.random.choice(["partial", "atomic"]))
        assert [answer.error for answer in answers] == [None] * len(additions)
        return True

    def in_transaction(self, additions: list[dict[str, Any]]) -> bool:
        with transaction.atomic():
            for addition in additions:
                Job.objects.enqueue(**addition)
            return self.commits()

    def many_in_transaction(self, additions: list[dict[str, Any]]) -> bool:
        with transaction.atomic():
            Job.objects.enqueue_many(additions)
            return self.commits()

    def commits(self) -> bool:
        if self.random.random() < 0.3:
            transaction.set_rollback(True)
            return False
        return True


class Worker(Player):
    """Claims, and completes, fails, requeues or forgets what it has; maintains. A deadlock is tried again."""

    def operate(self, number: int) -> tuple[str, Any]:
        now, jobs = timezone.now(), Job.objects.all()
        starting_over("default", lambda: timers.promote(jobs, now))
        starting_over("default", lambda: timers.rescue(jobs, now))
        forgets = self.random.random() < 0.2
        runs = take(self.random.randint(1, 3), timedelta(seconds=-1) if forgets else timedelta(hours=1))
        if forgets:
            return "forgot", None
        if runs and self.random.random() < 0.2:
            starting_over("default", partial(requeue, jobs, [runs.pop()]))
        ended = [
            RunResult(job)
            if self.random.random() < 0.5
            else RunResult(job, error={"message": "no"}, retry_after=timedelta())
            for job in runs
        ]
        finalized = []
        while ended:  # a row that an append has locked is left for the next time
            finalized += starting_over("default", partial(finalize, jobs, ended))
            done = {run.job.pk for run, _ in finalized}
            ended = [run for run in ended if run.job.pk not in done]
        return "ran", [(run.job.pk, run.job.args) for run, outcome in finalized if outcome == "completed"]


class Remover(Player):
    """Removes and cancels now and then; it is not killed, as then nobody would know what it removed."""

    def operate(self, number: int) -> tuple[str, Any]:
        if self.random.random() < 0.1 and (job := Job.objects.filter(key__in=KEYS).order_by("-id").first()):
            with suppress(InvalidTransition, Job.DoesNotExist):
                job.cancel()
        if self.random.random() < 0.3:
            removed = Job.objects.remove(key=self.random.choice(KEYS))
            if removed is not None and removed.state != "active":
                return "removed", (removed.pk, removed.args)
        return "nothing", None


def play(parent: Parent, player: type[Player], seed: str, first: int) -> None:
    connection.ensure_connection()
    player(parent, seed).play(first)


class Log:
    """What the processes told of, and what was under way when one was killed."""

    def __init__(self) -> None:
        self.told: dict[str, list[Any]] = {}
        self.in_flight: list[list[str]] = []

    def items(self, kind: str) -> set[str]:
        return {item for items in self.told.get(kind, []) for item in items}


class Life:
    """A child and how far it got; it is replaced when it is killed."""

    def __init__(self, start: Any, player: type[Player], seed: str, first: int = 0) -> None:
        self.player, self.done = player, first
        self.trying: list[str] = []
        self.child: Child = start(play, player, f"{seed}.{first}", first)

    def take(self, log: Log) -> bool:
        """Take one message; return False when there will be no more."""
        try:
            kind, message = self.child.pipe.recv()
        except (EOFError, OSError):
            log.in_flight.append(self.trying)
            return False
        if kind != "said":
            assert kind == "returned", message
            return False
        match message:
            case ("trying", items):
                self.trying = items
            case ("done", number, kind, said):
                self.done, self.trying = number + 1, []
                log.told.setdefault(kind, []).append(said)
        return True


@pytest.mark.torture
@pytest.mark.parametrize((), [pytest.param(id="S4-24-S4-32")])
def test_no_item_is_lost_or_doubled_whoever_appends_claims_rolls_back_or_dies(start):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    players = [Remover, *[Appender] * APPENDERS, *[Worker] * WORKERS]
    kills = sorted(dice.sample(range(len(players) * OPERATIONS * 3 // 4), KILLS), reverse=True)
    log = Log()
    lives = {number: Life(start, player, f"{seed}.{number}") for number, player in enumerate(players)}
    while lives:
        readable = wait([life.child.pipe for life in lives.values()], PATIENCE)
        assert readable, "All children fell silent."
        for number, life in list(lives.items()):
            if life.child.pipe in readable and not life.take(log):
                del lives[number]
        mortal = sorted(number for number, life in lives.items() if life.player is not Remover)
        if kills and mortal and sum(life.done for life in lives.values()) >= kills[-1]:
            kills.pop()
            number = dice.choice(mortal)
            lives[number] = killed(lives[number], log, start, f"{seed}.{number}")
        assert max(Counter(job.key for job in holders()).values(), default=0) <= 1
    wait_until_alone()
    check(log)


def killed(life: Life, log: Log, start: Any, seed: str) -> Life:
    """kill -9, hear what was said before, and let another go on from there, past the operation that died."""
    life.child.kill()
    while life.take(log):
        pass
    return Life(start, life.player, seed, life.done + 1)


def check(log: Log) -> None:
    rows = {row.pk: row for row in audit()}
    removed = dict(log.told.get("removed", []))
    assert not removed.keys() & rows.keys()
    found = Counter(item for args in [*removed.values(), *(row.args for row in rows.values())] for item in args)
    assert {item: count for item, count in found.items() if count > 1} == {}, "an item was doubled"
    added, in_flight = log.items("added"), {item for items in log.in_flight for item in items}
    assert added - found.keys() == set(), "a committed item was lost"
    assert found.keys() - added - in_flight == set(), "an item is there that was rolled back"
    for items in log.in_flight:
        assert len({item in found for item in items}) <= 1, "a transaction was committed in part"
    for runs in log.told.get("ran", []):
        for id, args in runs:
            assert (rows[id].state, rows[id].args) == ("completed", args), "what ran is not what is on record"
    for key in KEYS:
        mine = [row for row in rows.values() if row.key == key and row.state not in TERMINAL]
        assert len(mine) <= 1
    counts = {kind: len(said) for kind, said in log.told.items()}
    print(f"{len(rows)} rows, {len(found)} items, {counts}, gave up: {log.told.get('gave up', [])[:1]}")


# Races, one at a time


@pytest.mark.slow
@pytest.mark.parametrize((), [pytest.param(id="S4-24-appenders")])
def test_appends_of_many_processes_all_arrive():
    def append(name: int, number: int) -> None:
        add([f"{name}.{number}"], f"k{number % 2}", MODES[name % 2])

    together([partial(append, name) for name in range(6)], rounds=10)
    jobs = audit()
    assert {job.key for job in jobs} == {"k0", "k1"}
    assert sorted(item for job in jobs for item in job.args) == sorted(f"{n}.{r}" for n in range(6) for r in range(10))
    assert sum(job.revision for job in jobs) == 6 * 10 - 2


@pytest.mark.slow
@pytest.mark.parametrize((), [pytest.param(id="S4-32-holders")])
def test_of_first_adds_at_once_one_creates():
    for outcomes in together([lambda number: str(add([1], f"k{number}").outcome)] * 6, rounds=8):
        assert Counter(outcomes) == {"created": 1, "replaced": 5}
    assert len(audit()) == 8


@pytest.mark.slow
@pytest.mark.parametrize("mode", [pytest.param(mode, id=f"S4-11-race-{mode}") for mode in MODES])
def test_an_append_and_a_claim_at_once(mode):
    """Either the job runs with the new item, or another one waits with it."""
    rounds = 10
    for number in range(rounds):
        add(["old"], f"k{number}")
    answers = together([lambda number: add(["new"], f"k{number}", mode).created, lambda _: take(1)], rounds=rounds)
    claimed = {job.pk: job for _, jobs in answers for job in jobs}
    for number in range(rounds):
        (holder,) = [job for job in holders() if job.key == f"k{number}"]
        assert holder.args in (["old", "new"], ["new"])
    jobs = audit()
    assert Counter(item for job in jobs for item in job.args) == {"old": rounds, "new": rounds}
    for job in jobs:
        if job.pk in claimed:
            assert claimed[job.pk].args == job.args, "a job was rewritten while it ran"
        assert (job.key is None) == (job.args == ["old"])


@pytest.mark.slow
def test_of_removals_at_once_one_has_the_job():
    rounds = 8
    jobs = [add([1], f"k{number}").job.pk for number in range(rounds)]

    def remove(number: int) -> Any:
        removed = Job.objects.remove(key=f"k{number}")
        return removed and removed.pk

    for job, answers in zip(jobs, together([remove] * 4, rounds=rounds), strict=True):
        assert sorted(answers, key=str) == sorted([job, None, None, None], key=str)
    assert audit() == []


@pytest.mark.slow
def test_an_append_and_a_removal_at_once():
    rounds = 10
    for number in range(rounds):
        add(["old"], f"k{number}")

    def remove(number: int) -> Any:
        return Job.objects.remove(key=f"k{number}").args

    answers = together([lambda number: str(add(["new"], f"k{number}").outcome), remove], rounds=rounds)
    left = {job.key: job.args for job in audit()}
    for number, (outcome, removed) in enumerate(answers):
        serial = {"created": (["old"], ["new"]), "replaced": (["old", "new"], None)}[outcome]
        assert (removed, left.get(f"k{number}")) == serial


@pytest.mark.slow
def test_an_append_and_a_cancellation_at_once():
    rounds = 10
    jobs = [add(["old"], f"k{number}").job for number in range(rounds)]
    answers = together(
        [lambda number: str(add(["new"], f"k{number}").outcome), lambda number: jobs[number].cancel()], rounds=rounds
    )
    cancelled = Job.objects.in_bulk([job.pk for job in jobs])
    for job, (outcome, _) in zip(jobs, answers, strict=True):
        assert cancelled[job.pk].state == "cancelled"
        assert cancelled[job.pk].args == (["old"] if outcome == "created" else ["old", "new"])
    assert len(audit()) == rounds + sum(outcome == "created" for outcome, _ in answers)


@pytest.mark.slow
def test_an_append_and_the_pruning_of_the_failed_job_at_once():
    rounds, past = 10, timezone.now() - timedelta(days=400)
    for number in range(rounds):
        add(["old"], f"k{number}")
    Job._base_manager.update(state="discarded", finished_at=past, attempt=1)
    together(
        [lambda number: add(["new"], f"k{number}"), lambda _: prune.prune(Job.objects.all(), timezone.now(), 1)],
        rounds=rounds,
    )
    jobs = audit()
    assert sorted(job.key for job in jobs) == sorted(f"k{number}" for number in range(rounds))
    assert all(job.state == "available" and job.args in (["new"], ["old", "new"]) for job in jobs)


@contextmanager
def before_the_lock(act: Callable[[], Any]) -> Iterator[None]:
    """Call ``act`` once, before the next statement that locks jobs; at once on SQLite, which locks sooner."""
    done = connection.vendor == "sqlite"
    if done:
        act()

    def wrapper(execute: Any, sql: str, params: Any, many: bool, context: Any) -> Any:
        nonlocal done
        if not done and "FOR UPDATE" in sql and Job._meta.db_table in sql:
            done = True
            act()
        return execute(sql, params, many, context)

    with connection.execute_wrapper(wrapper):
        yield
    assert done


def test_a_job_that_completes_while_it_is_removed_stays_on_record():
    """What is found without locks may have ended by the time the lock is there."""
    job = add([1]).job
    (running,) = take()
    with before_the_lock(lambda: elsewhere(partial(complete, running))):
        assert Job.objects.remove(key="k") is None
    assert [(row.pk, row.state) for row in audit()] == [(job.pk, "completed")]


def let_go_and_pause(parent: Parent, commits: bool) -> Any:
    """Append to a running job in a transaction, which ends when the parent says so."""
    with transaction.atomic():
        successor = add(["new"]).job
        parent.tell()
        parent.hear()
        if not commits:
            transaction.set_rollback(True)
    return successor.pk


def remover(parent: Parent) -> Any:
    removed = Job.objects.remove(key="k")
    return removed and (removed.pk, removed.state)


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
def test_a_removal_that_meets_an_append_to_a_running_job_finds_who_holds_the_key(start, commits):
    """The key passes from one row to another, and is held at every moment: an answer of None would be wrong."""
    old = add(["old"]).job.pk
    take()
    appender = start(let_go_and_pause, commits)
    appender.hear()
    removing = start(remover)
    wait_until_blocked(1)
    appender.tell()
    new = appender.result()
    assert removing.result() == ((new, "available") if commits else (old, "active"))
    assert Job.objects.filter(key="k").count() == 0


def append_and_pause(parent: Parent, commits: bool) -> None:
    with transaction.atomic():
        add(["theirs"])
        parent.tell()
        parent.hear()
        if not commits:
            transaction.set_rollback(True)


def appender(parent: Parent) -> str:
    return str(add(["mine"]).outcome)


@pytest.mark.slow
@pytest.mark.parametrize("commits", [True, False])
@pytest.mark.parametrize("before", [[], ["old"]], ids=["created", "rewritten"])
def test_an_append_waits_for_a_long_transaction_and_meets_what_it_left(start, before, commits):
    if before:
        add(before)
    theirs = start(append_and_pause, commits)
    theirs.hear()
    mine = start(appender)
    wait_until_blocked(1)
    theirs.tell()
    theirs.result()
    assert mine.result() == ("replaced" if before or commits else "created")
    (job,) = audit()
    assert job.args == [*before, *(["theirs"] if commits else []), "mine"]


@pytest.mark.parametrize("snapshot", [True, False])
def test_in_a_transaction_that_has_read_before_an_append_loses_nothing(snapshot):
    """On MariaDB the reads of a transaction show its beginning; the append sees the row as it is."""
    if connection.vendor == "sqlite":
        pytest.skip("SQLite refuses to write after others did: the caller begins anew")
    add([1])
    with transaction.atomic():
        if snapshot:
            assert Job.objects.get().args == [1]
        elsewhere(lambda: add([2]))
        assert add([3]).job.args == [1, 2, 3]
        assert [str(r.outcome) for r in Job.objects.enqueue_many([{"type": "t", "args": [4], "key": "k"}])] == [
            "replaced"
        ]
    assert Job.objects.get().args == [1, 2, 3, 4]


@SNAPSHOT
def test_in_an_old_snapshot_a_key_that_is_newly_held_is_met():
    with transaction.atomic():
        assert Job.objects.count() == 0
        held = elsewhere(lambda: add([1]).job.pk)
        result = add([2])
        assert (str(result.outcome), result.job.pk, result.job.args) == ("replaced", held, [1, 2])


@SNAPSHOT
def test_in_an_old_snapshot_a_key_that_is_newly_held_is_removed():
    with transaction.atomic():
        assert Job.objects.count() == 0
        held = elsewhere(lambda: add([1]).job.pk)
        removed = Job.objects.remove(key="k")
        assert removed is not None
        assert removed.pk == held
    assert audit() == []


@SNAPSHOT
@pytest.mark.parametrize("bulk", [False, True], ids=["single", "bulk"])
def test_in_an_old_snapshot_an_id_that_is_newly_taken_is_told(bulk):
    id = new_id()
    with transaction.atomic():
        assert Job.objects.count() == 0
        elsewhere(lambda: Job.objects.enqueue("other", id=id).created)
        if bulk:
            (answer,) = Job.objects.enqueue_many([{"type": "t", "args": [1], "key": "k", "id": id}])
            assert isinstance(answer.error, JobIdTaken)
        else:
            with pytest.raises(JobIdTaken):
                add([1], id=id)


@pytest.mark.skipif(connection.vendor != "postgresql", reason="these levels end a transaction only on PostgreSQL")
@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
@pytest.mark.parametrize("what", ["add", "many", "remove"])
def test_in_a_strict_transaction_an_append_to_a_row_that_has_changed_is_a_serialization_failure(level, what):
    add([1])
    act = {
        "add": lambda: add([3]),
        "many": lambda: Job.objects.enqueue_many([{"type": "t", "args": [3], "key": "k"}]),
        "remove": lambda: Job.objects.remove(key="k"),
    }[what]

    @transaction.atomic
    def act_on_what_has_changed() -> None:
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
        assert Job.objects.get().args == [1]
        elsewhere(lambda: add([2]))
        act()

    with pytest.raises(OperationalError) as failure:
        act_on_what_has_changed()
    assert failure.value.__cause__.sqlstate == "40001"
    assert Job.objects.get().args == [1, 2]
