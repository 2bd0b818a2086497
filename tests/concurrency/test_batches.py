"""Overlapping batches in all orders, beside single enqueues, workers, rollbacks and kill -9: every answer stays true.

``OJS_TORTURE_ROUNDS`` makes it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Sequence
from functools import partial
from multiprocessing.connection import wait
from typing import Any
from uuid import UUID

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.exceptions import JobIdTaken
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.unique.keys import HOLDING
from tests.support.audit import Answer, ask, assert_serial, audit
from tests.support.processes import PATIENCE, Child, Parent, together, wait_until_alone

from .test_isolation_levels import LEVELS, is_serialization_failure, late
from .test_torture import STATES, STRATEGIES, Player, Sorrow

pytestmark = pytest.mark.django_db(transaction=True)

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
RACERS, KEYS = 4, 12
PROCESSES, OPERATIONS, KILLS = 5, 12 * ROUNDS, 4 * ROUNDS
LARGEST = 25
UNIFORM, MIXED, KEYED = 8, 16, 24
"""Where the keys end that are used with the default states only, with any states, and as job keys."""


def seed() -> str:
    chosen = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={chosen}")
    return chosen


# Races at one barrier


def item(round_: int, key: int, policy: UniquePolicy) -> dict[str, Any]:
    return {"type": f"race.r{round_}.k{key}", "unique": policy}


def answers_of(items: Sequence[Any]) -> list[Answer]:
    given = []
    for asked, answer in zip(items, Job.objects.enqueue_many(items), strict=True):
        outcome = "duplicate" if answer.outcome == "rejected" else str(answer.outcome)
        given.append(Answer(outcome, answer.job.pk, frozenset(row.pk for row in answer.replaced), asked["unique"]))
    return given


def contender(policies: Sequence[UniquePolicy], chosen: str, round_: int) -> list[tuple[int, Answer]]:
    """Enqueue each key once, in an order of one's own."""
    dice = random.Random(f"{chosen}.{round_}")
    keys = dice.sample(range(KEYS), KEYS)
    return list(zip(keys, answers_of([item(round_, key, dice.choice(policies)) for key in keys]), strict=True))


def single(policies: Sequence[UniquePolicy], chosen: str, round_: int) -> list[tuple[int, Answer]]:
    dice = random.Random(f"{chosen}.{round_}")
    keys = dice.sample(range(KEYS), KEYS // 3)
    return [(key, ask(f"race.r{round_}.k{key}", unique=dice.choice(policies))) for key in keys]


@pytest.mark.torture
@pytest.mark.parametrize("strategies", [*[[strategy] for strategy in STRATEGIES], STRATEGIES], ids="+".join)
@pytest.mark.parametrize("states", [STATES[4], STATES[5]], ids=["incomplete", "all"])
def test_batches_that_share_their_keys_in_other_orders_answer_as_in_some_serial_order(states, strategies):
    chosen, rounds = seed(), 3
    policies = [UniquePolicy(on_conflict=strategy, states=states) for strategy in strategies]
    runs = [partial(contender, policies, f"{chosen}.{number}") for number in range(RACERS)]
    results = together([*runs, partial(single, policies, f"{chosen}.single")], rounds=rounds)
    rows = audit()
    for round_, given in enumerate(results):
        for key in range(KEYS):
            of_key = [answer for answers in given for number, answer in answers if number == key]
            stored = [row for row in rows if row.type == f"race.r{round_}.k{key}"]
            assert {answer.id for answer in of_key if answer.admitted} == {row.pk for row in stored}
            assert len([row for row in stored if row.state not in TERMINAL]) == 1
            assert_serial(of_key, stored)


def rewriter(mode: str, number: int, round_: int) -> list[tuple[int, str, UUID]]:
    """Append to each key's args, in an order of one's own."""
    keys = random.Random(f"{number}.{round_}").sample(range(KEYS), KEYS)
    items = [{"type": "t", "key": f"{round_}.{key}", "key_mode": mode, "args": [number]} for key in keys]
    return [
        (key, str(answer.outcome), answer.job.pk)
        for key, answer in zip(keys, Job.objects.enqueue_many(items), strict=True)
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("mode", "loser"), [("replace", "replaced"), ("unsafe_dedupe", "deduplicated")])
def test_batches_that_share_job_keys_in_other_orders_create_one_job_for_each_and_lose_no_args(mode, loser):
    results = together([partial(rewriter, mode, number) for number in range(RACERS)], rounds=3)
    rows = {row.key: row for row in audit()}
    assert Job.objects.count() == 3 * KEYS
    for round_, given in enumerate(results):
        for key in range(KEYS):
            of_key = [answer for answers in given for answer in answers if answer[0] == key]
            row = rows[f"{round_}.{key}"]
            assert {id for _, _, id in of_key} == {row.pk}
            assert Counter(outcome for _, outcome, _ in of_key) == {"created": 1, loser: RACERS - 1}
            assert sorted(row.args) == (list(range(RACERS)) if mode == "replace" else row.args[:1])


def same_ids(ids: Sequence[UUID], number: int, round_: int) -> list[str]:
    mine = random.Random(number).sample(ids, len(ids))
    return [str(answer.outcome) for answer in Job.objects.enqueue_many([{"type": "t", "id": id} for id in mine])]


@pytest.mark.slow
def test_batches_that_give_the_same_ids_in_other_orders_store_each_once():
    ids = [new_id() for _ in range(20)]
    (given,) = together([partial(same_ids, ids, number) for number in range(RACERS)])
    assert Counter(outcome for answers in given for outcome in answers) == {"created": 20, "invalid": 60}
    assert {row.pk for row in audit()} == set(ids)


# Torture


class Batcher(Player):
    """One process's play; all jobs of an operation carry its name."""

    def __init__(self, parent: Parent, chosen: str) -> None:
        super().__init__(parent, chosen)
        self.name = chosen

    def play(self, first: int) -> None:
        for number in range(first, OPERATIONS):
            self.events = []
            self.meta = {"operation": f"{self.name}.{number}"}
            self.parent.tell(("trying", self.meta["operation"]))
            kinds = [self.batch_alone, self.batch_in_transaction, self.one, self.work_a_little]
            self.random.choices(kinds, [6, 3, 2, 3])[0]()
            self.parent.tell(("done", number, self.events))

    def batch_alone(self) -> None:
        batch = self.batch()
        if self.random.random() < 0.3:
            try:
                result = Job.objects.enqueue_many(batch, mode="atomic")
            except DuplicateJob as error:
                if not error.existing_job._state.adding:  # else an earlier item, which is not stored, either
                    self.events.append(("answered", error.existing_job_id))
                return
        else:
            result = Job.objects.enqueue_many(batch)
        self.tell_of(batch, result)

    def batch_in_transaction(self) -> None:
        batch = self.batch()
        try:
            with transaction.atomic():
                self.tell_of(batch, Job.objects.enqueue_many(batch))
                if self.random.random() < 0.4:
                    raise Sorrow
        except Sorrow:
            self.events = []
        except OperationalError as error:
            if not is_serialization_failure(error):
                raise
            self.events = [("gave up", repr(error))]

    def one(self) -> None:
        for asked in self.batch()[:3]:
            try:
                result = Job.objects.enqueue(**asked)
            except DuplicateJob as error:
                self.events.append(("answered", error.existing_job_id))
            else:
                self.tell_of([asked], [result])

    def work_a_little(self) -> None:
        for _ in range(10):
            self.random.choice([self.claim, self.finalize, self.promote])(timezone.now())

    def batch(self) -> list[dict[str, Any]]:
        return [self.item(self.random.randrange(KEYED)) for _ in range(self.random.randint(1, LARGEST))]

    def item(self, key: int) -> dict[str, Any]:
        whole: dict[str, Any] = {"type": "torture", "args": {"key": key}, "meta": self.meta}
        if key >= MIXED:
            modes = ["replace", "preserve_run_at", "unsafe_dedupe"]
            return {**whole, "key": str(key), "key_mode": self.random.choice(modes)}
        states = self.random.choice(STATES) if key >= UNIFORM else STATES[4]
        strategy = self.random.choice(STRATEGIES)
        return {**whole, "unique": UniquePolicy(keys=["type", "args"], states=states, on_conflict=strategy)}

    def tell_of(self, batch: Sequence[Any], result: Any) -> None:
        for asked, answer in zip(batch, result, strict=True):
            match str(answer.outcome):
                case "created":
                    self.events.append(("admitted", answer.job.pk, asked["args"]["key"], []))
                case "replaced" if answer.replaced:
                    replaced = [row.pk for row in answer.replaced]
                    self.events.append(("admitted", answer.job.pk, asked["args"]["key"], replaced))
                case _:
                    self.events.append(("answered", answer.job.pk))


def play(parent: Parent, chosen: str, first: int) -> None:
    connection.ensure_connection()
    Batcher(parent, chosen).play(first)


class Life:
    """A child, how far it got, and what it said; another goes on when it is killed."""

    def __init__(self, start: Any, name: str) -> None:
        self._start, self._name = start, name
        self.done, self.trying = 0, ""
        self.events: list[tuple[Any, ...]] = []
        self.in_flight: set[str] = set()
        self.child: Child = start(play, name, 0)

    def take(self) -> bool:
        """Take one message; return False when there will be no more."""
        try:
            kind, message = self.child.pipe.recv()
        except (EOFError, OSError):
            self.in_flight.add(self.trying)
            return False
        if kind != "said":
            assert kind == "returned", message
            return False
        match message:
            case ("trying", operation):
                self.trying = operation
            case ("done", number, events):
                self.done = number + 1
                self.events += events
        return True

    def kill(self) -> None:
        self.child.kill()
        while self.take():
            pass
        self.done += 1
        self.child = self._start(play, self._name, self.done)


@pytest.mark.torture
def test_batches_lose_and_double_nothing_whatever_races_rolls_back_or_dies(start):
    chosen = seed()
    dice = random.Random(chosen)
    total = PROCESSES * OPERATIONS
    kills = sorted(dice.sample(range(total // 10, total * 9 // 10), KILLS), reverse=True)
    lives = [Life(start, f"{chosen}.{number}") for number in range(PROCESSES)]
    playing = list(lives)
    while playing:
        readable = wait([life.child.pipe for life in playing], PATIENCE)
        assert readable, "All children fell silent."
        playing = [life for life in playing if life.child.pipe not in readable or life.take()]
        if kills and playing and sum(life.done for life in lives) >= kills[-1]:
            kills.pop()
            dice.choice(playing).kill()
    wait_until_alone()
    check([event for life in lives for event in life.events], set().union(*(life.in_flight for life in lives)))


def check(events: Sequence[tuple[Any, ...]], in_flight: set[str]) -> None:
    rows = {row.pk: row for row in audit()}
    admitted = {id: (key, replaced) for kind, id, key, replaced in of_kind(events, "admitted")}
    answered = {id for _, id in of_kind(events, "answered")}
    given_up = [error for _, error in of_kind(events, "gave up")]
    assert admitted.keys() - rows.keys() == set(), "a committed job was lost"
    unknown = [row for row in rows.values() if row.pk not in admitted and row.meta["operation"] not in in_flight]
    assert [row for row in unknown if row.key is None or row.revision == 0] == [], "nobody was told of a stored job"
    assert answered - rows.keys() == set(), "an answer named a job that does not exist"
    for id, (key, replaced) in admitted.items():
        assert rows[id].args == {"key": key}
        for old in replaced:
            assert (rows[old].state, rows[old].replaced_by_id) == ("cancelled", id)
    for row in rows.values():
        if row.replaced_by_id in admitted:
            assert row.pk in admitted[row.replaced_by_id][1], "a replacement was not told whom it replaced"
    live = Counter(row.args["key"] for row in rows.values() if row.state not in TERMINAL)
    assert [key for key, count in live.items() if key < UNIFORM and count > 1] == []
    held = Counter(row.key for row in rows.values() if row.key is not None and row.state in HOLDING)
    assert [key for key, count in held.items() if count > 1] == []
    assert len(rows) > KEYED
    if connection.vendor == "sqlite":
        assert given_up == []
    print(f"{len(rows)} rows, {len(answered)} answers, {len(given_up)} transactions given up: {given_up[:1]}")


def of_kind(events: Sequence[tuple[Any, ...]], kind: str) -> list[tuple[Any, ...]]:
    return [event for event in events if event[0] == kind]


# Snapshots of the caller's transaction


def batch(options: dict[str, Any]) -> list[str]:
    return [str(answer.outcome) for answer in Job.objects.enqueue_many([{"type": "a"}, {"type": "t", **options}])]


LOSERS = [
    ({"unique": {}}, "rejected"),
    ({"unique": {"on_conflict": "ignore"}}, "deduplicated"),
    ({"unique": {"on_conflict": "replace"}}, "replaced"),
]


@pytest.mark.slow
@pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")
@pytest.mark.parametrize(("options", "outcome"), LOSERS, ids=[outcome for _, outcome in LOSERS])
@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_batch_never_doubles_a_job_that_the_callers_snapshot_cannot_see(start, level, options, outcome):
    child: Child = start(late, level, partial(batch, options))
    child.hear()
    Job.objects.enqueue("t", unique={})
    child.tell()
    assert child.result() == ("40001" if connection.vendor == "postgresql" else ["created", outcome])
    assert len([row for row in audit() if row.type == "t" and row.state not in TERMINAL]) == 1


@pytest.mark.slow
@pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")
@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_batch_rewrites_the_job_of_a_key_that_the_callers_snapshot_cannot_see(start, level):
    child: Child = start(late, level, partial(batch, {"key": "k", "args": [2]}))
    child.hear()
    Job.objects.enqueue("t", [1], key="k")
    child.tell()
    assert child.result() == ("40001" if connection.vendor == "postgresql" else ["created", "replaced"])
    (row,) = [row for row in audit() if row.key == "k"]
    assert row.args == ([1] if connection.vendor == "postgresql" else [1, 2])


def taken(id: UUID, options: dict[str, Any]) -> list[Any]:
    result = Job.objects.enqueue_many([{"type": "a"}, {"type": "t", "id": id, **options}])
    return [str(result[0].outcome), type(result[1].error)]


@pytest.mark.slow
@pytest.mark.skipif(not LEVELS, reason="SQLite knows one isolation level")
@pytest.mark.parametrize("options", [{}, {"unique": {}}, {"key": "k"}], ids=["plain", "policy", "key"])
@pytest.mark.parametrize("level", LEVELS[1:])
def test_a_batch_says_that_an_id_was_taken_after_the_callers_snapshot(start, level, options):
    id = new_id()
    child: Child = start(late, level, partial(taken, id, options))
    child.hear()
    Job.objects.enqueue("other", id=id)
    child.tell()
    assert child.result() == ("40001" if connection.vendor == "postgresql" else ["created", JobIdTaken])
