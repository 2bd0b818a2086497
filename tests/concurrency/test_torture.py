"""Eight processes race a hundred keys, roll back, work, and die by kill -9; then every row is audited.

``OJS_TORTURE_ROUNDS`` makes it longer, ``OJS_TORTURE_SEED`` repeats the choices of a run.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from datetime import timedelta
from multiprocessing.connection import wait
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import OperationalError, connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy, lifecycle
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.db.transactions import starting_over
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from tests.support.audit import audit
from tests.support.processes import PATIENCE, Child, Parent, wait_until_alone

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

ROUNDS = int(os.environ.get("OJS_TORTURE_ROUNDS", "1"))
PROCESSES, KEYS, KILLS = 8, 100, 8 * ROUNDS
OPERATIONS = 120 * ROUNDS
"""Per process."""
UNIFORM = 20
"""The first keys are only ever used with the default states and no period, and no hand touches their unique keys."""

STRATEGIES = ["reject", "ignore", "replace", "replace_except_schedule"]
STATES = [
    ["available"],
    ["available", "active"],
    ["scheduled"],
    ["completed", "cancelled", "discarded"],
    ["available", "active", "scheduled", "retryable", "pending"],
    ["available", "active", "scheduled", "retryable", "pending", "completed", "cancelled", "discarded"],
]
PERIODS = [None, "PT0.05S", "PT2S", "PT1H", "P1M"]


class Sorrow(Exception):
    """The caller rolls back."""


class Player:
    """One process's play: each operation is announced before it begins, and told after it was committed."""

    def __init__(self, parent: Parent, seed: str) -> None:
        self.parent = parent
        self.random = random.Random(seed)
        self.leases: list[tuple[UUID, UUID]] = []
        self.events: list[tuple[Any, ...]] = []

    def play(self, first: int) -> None:
        for number in range(first, OPERATIONS):
            self.events = []
            kinds = [self.enqueue_alone, self.enqueue_in_transaction, self.work]
            self.random.choices(kinds, [5, 2, 4])[0]()
            self.parent.tell(("done", number, self.events))

    def enqueue_alone(self) -> None:
        self.enqueue(self.random.randrange(KEYS), self.announce(1)[0])

    def enqueue_in_transaction(self) -> None:
        # In sorted order, so that two callers never wait for each other: that would be their own deadlock.
        keys = sorted(self.random.sample(range(KEYS), self.random.randint(1, 4)))
        ids = self.announce(len(keys))
        try:
            with transaction.atomic():
                for key, id in zip(keys, ids, strict=True):
                    self.enqueue(key, id)
                if self.random.random() < 0.3:
                    raise Sorrow
        except Sorrow:
            self.events = []
        except OperationalError as error:
            self.events = [("gave up", repr(error))]

    def announce(self, count: int) -> list[UUID]:
        ids = [new_id() for _ in range(count)]
        self.parent.tell(("trying", ids))
        return ids

    def enqueue(self, key: int, id: UUID) -> None:
        later = timezone.now() + timedelta(seconds=self.random.choice([-1, 0.02, 3600]))
        try:
            result = Job.objects.enqueue(
                "torture",
                {"key": key},
                id=id,
                scheduled_at=self.random.choice([None, None, later]),
                unique=self.policy(key),
            )
        except DuplicateJob as error:
            self.events.append(("answered", UUID(str(error.existing_job_id))))
            return
        if result.created:
            self.events.append(("admitted", result.job.pk, key, [row.pk for row in result.replaced]))
        else:
            self.events.append(("answered", result.job.pk))

    def policy(self, key: int) -> UniquePolicy:
        strategy = self.random.choice(STRATEGIES)
        if key < UNIFORM:
            return UniquePolicy(keys=["type", "args"], on_conflict=strategy)
        return UniquePolicy(
            keys=["type", "args"],
            states=self.random.choice(STATES),
            period=self.random.choice(PERIODS),
            on_conflict=strategy,
        )

    def work(self) -> None:
        moves = [self.claim, self.finalize, self.promote, self.cancel, self.release_unique_key]
        self.random.choices(moves, [5, 5, 2, 1, 1])[0](timezone.now())

    def any_in(self, state: str) -> UUID | None:
        ids = list(Job.objects.filter(state=state).order_by("id").values_list("pk", flat=True)[:50])
        return self.random.choice(ids) if ids else None

    def claim(self, now: Any) -> None:
        token, id = uuid4(), self.any_in("available")
        lease = timedelta(hours=1)
        if id and lifecycle.claim(Job.objects.filter(pk=id), now, worker_id="w", token=token, lease=lease):
            self.leases.append((id, token))

    def finalize(self, now: Any) -> None:
        if not self.leases:
            return
        id, token = self.leases.pop(self.random.randrange(len(self.leases)))
        rows = Job.objects.filter(pk=id)
        finalize = self.random.choice(["complete", "retry", "discard", "release"])
        moved = {
            "complete": lambda: lifecycle.complete(rows, now, token=token, result={"ok": True}),
            "retry": lambda: lifecycle.schedule_retry(rows, now, token=token, errors=[{"message": "no"}]),
            "discard": lambda: lifecycle.discard(rows, now, token=token, errors=[{"message": "no"}]),
            "release": lambda: lifecycle.requeue(rows, token=token),
        }[finalize]()
        if moved and finalize in ("complete", "discard"):
            self.events.append(("finished", id, "completed" if finalize == "complete" else "discarded"))

    def promote(self, now: Any) -> None:
        if id := self.any_in(self.random.choice(["scheduled", "retryable"])):
            lifecycle.promote(Job.objects.filter(pk=id), now)

    def cancel(self, now: Any) -> None:
        if id := self.any_in(self.random.choice(["available", "active", "scheduled", "retryable"])):
            self.parent.tell(("trying", [id]))
            if lifecycle.cancel(Job.objects.filter(pk=id), now):
                self.events.append(("cancelled", id))

    def release_unique_key(self, now: Any) -> None:
        if id := self.any_in("available"):
            row = Job.objects.get(pk=id)
            if row.args["key"] >= UNIFORM:
                starting_over("default", lambda: lifecycle.release_unique_keys(Job.objects.filter(pk=id)))


def play(parent: Parent, seed: str, first: int) -> None:
    connection.ensure_connection()
    Player(parent, seed).play(first)


class Log:
    """What the processes told of, and what was under way when one was killed."""

    def __init__(self) -> None:
        self.admitted: dict[UUID, tuple[int, list[UUID]]] = {}
        self.answered: set[UUID] = set()
        self.cancelled: set[UUID] = set()
        self.finished: dict[UUID, str] = {}
        self.gave_up: list[str] = []
        self.in_flight: set[UUID] = set()

    def take(self, events: list[tuple[Any, ...]]) -> None:
        for event in events:
            match event:
                case ("admitted", id, key, replaced):
                    self.admitted[id] = (key, replaced)
                case ("answered", id):
                    self.answered.add(id)
                case ("cancelled", id):
                    self.cancelled.add(id)
                case ("finished", id, state):
                    self.finished[id] = state
                case ("gave up", error):
                    self.gave_up.append(error)


class Life:
    """A child and how far it got; it is replaced when it is killed."""

    def __init__(self, start: Any, seed: str, first: int = 0) -> None:
        self.done, self.trying = first, []
        self.child: Child = start(play, f"{seed}.{first}", first)

    def take(self, log: Log) -> bool:
        """Take one message; return False when there will be no more."""
        try:
            kind, message = self.child.pipe.recv()
        except (EOFError, OSError):
            log.in_flight.update(self.trying)
            return False
        if kind != "said":
            assert kind == "returned", message
            return False
        match message:
            case ("trying", ids):
                self.trying = ids
            case ("done", number, events):
                self.done, self.trying = number + 1, []
                log.take(events)
        return True


def test_nothing_is_lost_or_doubled_whatever_races_rolls_back_or_dies(start):
    seed = os.environ.get("OJS_TORTURE_SEED") or str(random.SystemRandom().randrange(10**9))
    print(f"OJS_TORTURE_SEED={seed}")
    dice = random.Random(seed)
    total = PROCESSES * OPERATIONS
    kills = sorted(dice.sample(range(total // 20, total * 9 // 10), KILLS), reverse=True)
    log = Log()
    lives = {number: Life(start, f"{seed}.{number}") for number in range(PROCESSES)}
    while lives:
        readable = wait([life.child.pipe for life in lives.values()], PATIENCE)
        assert readable, "All children fell silent."
        for number, life in list(lives.items()):
            if life.child.pipe in readable and not life.take(log):
                del lives[number]
        if kills and lives and sum(life.done for life in lives.values()) >= kills[-1]:
            kills.pop()
            number = dice.choice(sorted(lives))
            lives[number] = killed(lives[number], log, start, f"{seed}.{number}")
    wait_until_alone()
    check(log)


def killed(life: Life, log: Log, start: Any, seed: str) -> Life:
    """kill -9, hear what was said before, and let another go on from there, past the operation that died."""
    life.child.kill()
    while life.take(log):
        pass
    return Life(start, seed, life.done + 1)


def check(log: Log) -> None:
    rows = {row.pk: row for row in audit()}
    known = log.admitted.keys() | log.in_flight
    assert log.admitted.keys() - rows.keys() == set(), "a committed job was lost"
    assert rows.keys() - known == set(), "a job was stored that nobody was told of"
    assert log.answered - rows.keys() == set(), "an answer named a job that does not exist"
    for id, state in log.finished.items():
        assert rows[id].state == state
    for id, (key, replaced) in log.admitted.items():
        assert rows[id].args == {"key": key}
        for old in replaced:
            assert (rows[old].state, rows[old].replaced_by_id) == ("cancelled", id)
    for row in rows.values():
        if row.state == "cancelled" and row.replaced_by_id is None:
            assert row.pk in log.cancelled | log.in_flight, "a job was cancelled by nobody"
        elif row.replaced_by_id in log.admitted:
            assert row.pk in log.admitted[row.replaced_by_id][1], "a replacement was not told whom it replaced"
    live = Counter(row.args["key"] for row in rows.values() if row.state not in TERMINAL)
    assert {key: count for key, count in live.items() if key < UNIFORM and count > 1} == {}
    assert len(rows) > KEYS
    if connection.vendor != "mysql":  # InnoDB locks gaps between keys, so that even sorted transactions may deadlock
        assert log.gave_up == []
    print(f"{len(rows)} rows, {len(log.answered)} answers, {len(log.gave_up)} transactions given up: {log.gave_up[:1]}")
