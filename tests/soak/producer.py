"""A producer: ``python -m tests.soak.producer SEED [siege]``.

It enqueues until SIGTERM and writes down what it was answered.

An answer is written after its commit only. When the commit failed, nobody knows whether it happened: such an enqueue
counts as ``ambiguous``, which the judge holds to nothing.
"""

from __future__ import annotations

import random
import signal
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any, ClassVar
from uuid import uuid4

import django
from django.db import DatabaseError, InterfaceError, connection, transaction

from . import NARROW
from .logs import LEASE, write

PAUSE = 0.1
"""Seconds between two actions, on average."""


class RollBack(Exception):
    """Ends a transaction on purpose."""


class Producer:
    """Takes one action at a time, chosen by its dice."""

    pause = PAUSE

    def __init__(self, seed: str) -> None:
        from django_ojs_unique.models import Job

        self.dice = random.Random(seed)
        self.jobs = Job.objects
        self.mine: list[Any] = []
        self.stopped = False
        self.actions: dict[Callable[[], None], int] = {
            self.one: 60,
            self.many: 8,
            self.block: 12,
            self.cancel: 6,
            self.remove: 3,
        }

    def run(self) -> None:
        while not self.stopped:
            action = self.dice.choices(list(self.actions), list(self.actions.values()))[0]
            try:
                action()
            except (DatabaseError, InterfaceError):
                write("answers", answer="ambiguous")
                connection.close()
            time.sleep(self.dice.expovariate(1 / self.pause))

    def item(self) -> dict[str, Any]:
        """Return the arguments of an enqueue."""
        dice = self.dice
        seconds = dice.choices([0, 0.05, 0.4, LEASE * 1.5, LEASE * 2.5], [60, 25, 10, 3, 2])[0]
        args: dict[str, Any] = {"seconds": seconds, "number": dice.randrange(6)}
        item: dict[str, Any] = {"args": args, "id": uuid4(), "priority": dice.choice([0, 0, 5, -5])}
        if dice.random() < 0.15:
            args["fails"] = dice.randrange(1, 3)
        if dice.random() < 0.1:
            item["queue"] = NARROW
        if dice.random() < 0.15:
            item["scheduled_at"] = soon(dice.random() * 4)
        kind = dice.random()
        if kind < 0.4:
            item["type"] = dice.choice(["plain.thread", "plain.async", "plain.database"])
        elif kind < 0.7:
            strategy = dice.choice(["reject", "ignore", "replace", "replace_except_schedule"])
            item["unique"] = {"keys": ["type", "args"], "args_keys": ["number"], "on_conflict": strategy}
            item["type"] = "unique.policy"
        elif kind < 0.8:
            item["type"] = "unique.period"
        else:
            mode = dice.choice(["replace", "preserve_run_at", "unsafe_dedupe"])
            item |= {"type": "unique.key", "key": f"order-{args['number']}", "key_mode": mode}
        return item

    def one(self) -> None:
        self.note([self.enqueue(self.item())])

    def enqueue(self, item: dict[str, Any]) -> tuple[str, Any]:
        from django_ojs_unique import DuplicateJob

        try:
            result = self.jobs.enqueue(**item)
        except DuplicateJob as error:
            return "duplicate", error.existing_job_id
        return str(result.outcome), result.job.pk

    def many(self) -> None:
        items = [self.item() for _ in range(self.dice.randrange(2, 15))]
        answers = self.jobs.enqueue_many(items, mode="partial")
        self.note([("duplicate" if each.error else str(each.outcome), each.job.pk) for each in answers])

    def block(self) -> None:
        """Enqueue in a transaction that does other things in between, and is rolled back now and then."""
        items = [self.item() for _ in range(self.dice.randrange(1, 4))]
        rolls_back, pause = self.dice.random() < 0.3, self.dice.choice([0, 0, 0.05, 0.3])
        answers = []
        try:
            with transaction.atomic():
                for item in items:
                    answers.append(self.enqueue(item))
                time.sleep(pause)
                if rolls_back:
                    raise RollBack
        except RollBack:
            self.note([("rolled back", item["id"]) for item in items])
        else:
            self.note(answers)

    def cancel(self) -> None:
        from django_ojs_unique.exceptions import InvalidTransition

        if not self.mine:
            return
        id = self.dice.choice(self.mine)
        write("answers", answer="cancelling", job=id)  # before, as nobody may be left to say so afterwards
        # Others stay: a producer that is stopped in the middle excuses what happens to ``unique.*`` only, and a period
        # is judged by jobs that are never cancelled.
        job = self.jobs.filter(pk=id, type__in=["unique.policy", "unique.key"]).first()
        if job is not None:
            try:
                job.cancel()
            except InvalidTransition:
                return

    def remove(self) -> None:
        key = f"order-{self.dice.randrange(6)}"
        write("answers", answer="removing", key=key)
        self.jobs.remove(key=key)

    def note(self, answers: list[tuple[str, Any]]) -> None:
        for answer, id in answers:
            write("answers", answer=answer, job=id)
            if answer in ("created", "replaced"):
                self.mine = [*self.mine[-20:], id]


class Besieger(Producer):
    """Enqueues jobs that leave things behind, and some that do not, slowly enough for the workers to keep pace."""

    pause = 3 * PAUSE
    kinds: ClassVar = {
        "plain.thread": 20,
        "plain.async": 12,
        "plain.database": 8,
        "limit.plain": 3,
        "limit.async": 3,
        "limit.atomic": 2,
        **dict.fromkeys(["limit.swallows", "limit.blocks", "limit.async.swallows"], 0.5),
        **dict.fromkeys(["leave.transaction", "leave.autocommit", "leave.exit", "leave.async.exit"], 2),
        **dict.fromkeys(["leave.thread", "leave.executor", "leave.program", "leave.process"], 2),
        **dict.fromkeys(["leave.promise", "leave.async"], 2),
    }

    def item(self) -> dict[str, Any]:
        kind = self.dice.choices([*self.kinds], [*self.kinds.values()])[0]
        args = {"seconds": self.dice.choice([0, 0.05, 0.4])} if kind.startswith("plain.") else {}
        return {"type": kind, "args": args, "id": uuid4()}


def soon(seconds: float) -> Any:
    from django.utils import timezone

    return timezone.now() + timedelta(seconds=seconds)


def main(seed: str, siege: str = "") -> None:
    django.setup()
    producer = Besieger(seed) if siege else Producer(seed)

    def stop(*_: Any) -> None:
        producer.stopped = True

    signal.signal(signal.SIGTERM, stop)
    producer.run()


if __name__ == "__main__":
    main(*sys.argv[1:])
