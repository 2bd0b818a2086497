"""The order of claims with limits and fairness, against a reference in plain Python."""

from __future__ import annotations

import os
from collections import Counter
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_ojs_unique import Limit
from django_ojs_unique.execution import claim_limited
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.leases import requeue
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.limits import slots, waiting
from django_ojs_unique.models import Job, LimitOverride, LimitPartition, Slot

EXAMPLES = int(os.environ.get("OJS_LIMIT_EXAMPLES", "10"))
CUSTOMER, TENANT, TYPE = "args.customer", "meta.tenant", "type"


@dataclass
class Reference:
    """Whose turn it is: the whole rule, as a reader may want to have it."""

    numbers: dict[str, int]
    waiting: list[Any] = field(default_factory=list)
    active: list[Any] = field(default_factory=list)
    last: dict[str, str] = field(default_factory=dict)

    def claim(self, queues: list[str], count: int, *, sees_blocked: bool) -> list[Any]:
        """Return what is claimed.

        ``sees_blocked``: whether a job that must wait, and has the next turn in its queue, stands for the queue until
        it is tried. A job does so at the first claim that meets it, and then no more while its key has no slot.
        """
        chosen: list[Any] = []
        full: set[Any] = set()

        def blocked_by(job: Any) -> list[Any]:
            active = (*self.active, *chosen)
            used = Counter(key for each in active for key in keys(each) for _ in range(weight(each, key)))
            most = {key: self.numbers[key[0]] for key in keys(job)}
            return [key for key in most if key in full or used[key] + min(weight(job, key), most[key]) > most[key]]

        def stands(line: list[Any]) -> Any:
            jobs = [job for partition in line for job in partition]
            return rank(next((job for job in jobs if sees_blocked or not blocked_by(job)), jobs[0]))

        def take(job: Any) -> bool:
            blocked = blocked_by(job)
            full.update(blocked[:1])
            if not blocked:
                chosen.append(job)
                self.last[job.queue] = job.fair_partition or self.last.get(job.queue, "")
            return not blocked

        lines = [self.line(queue) for queue in queues]
        while len(chosen) < count and any(map(any, lines)):
            line = min(filter(any, lines), key=stands)
            partition = next(filter(None, line))
            is_taken = take(partition.pop(0))
            if is_taken and partition[:1] != [] and partition[0].fair_partition:
                line.append(line.pop(line.index(partition)))
        self.active += chosen
        self.waiting = [job for job in self.waiting if job not in chosen]
        return chosen

    def line(self, queue: str) -> list[list[Any]]:
        """Return the jobs that take no turns, then those of each partition, from the one after the last turn on."""
        partitions: dict[str, list[Any]] = {"": []}
        for job in sorted((job for job in self.waiting if job.queue == queue), key=rank):
            partitions.setdefault(job.fair_partition or "", []).append(job)
        last = self.last.get(queue, "")
        return [
            partitions.pop(""),
            *(
                partitions[partition]
                for partition in sorted(partitions, key=lambda partition: (partition <= last, partition))
            ),
        ]


def keys(job: Any) -> list[Any]:
    return [(limit["name"], limit["id"]) for limit in job.limits or ()]


def weight(job: Any, key: Any) -> int:
    return next(limit.get("weight", 1) for limit in job.limits if limit["id"] == key[1])  # type: ignore[no-any-return]


def rank(job: Any) -> Any:
    return -job.priority, job.enqueued_at, job.id


running = st.integers(1, 3)
counts = st.sampled_from([1, 1, 1, 2, 3, 7])


class Machine(RuleBasedStateMachine):
    """Jobs of a few customers and tenants come and go; each claim must take what the reference takes."""

    def __init__(self) -> None:
        super().__init__()
        claim_limited._turns.clear()
        self.reference = Reference({CUSTOMER: 1, TENANT: 3, TYPE: 5})
        for part, number in self.reference.numbers.items():
            LimitOverride.objects.set(part, running=number)

    @rule(
        customer=st.integers(1, 3),
        tenant=st.sampled_from("ab"),
        queue=st.sampled_from(["plain", "fair"]),
        priority=st.sampled_from([0, 0, 0, 1]),
        limits=st.sets(st.sampled_from([CUSTOMER, TENANT, TYPE])),
        weight=st.sampled_from([1, 1, 2]),
        times=st.integers(1, 6),
    )
    def enqueue(
        self, customer: int, tenant: str, queue: str, priority: int, limits: set[str], weight: int, times: int
    ) -> None:
        for _ in range(times):
            wanted = [Limit(key=[part], running=9, weight=weight if part != CUSTOMER else 1) for part in sorted(limits)]
            options: dict[str, Any] = {"queue": queue, "priority": priority, "meta": {"tenant": tenant}}
            job = Job.objects.enqueue("t", {"customer": customer}, limit=wanted, **options).job
            self.reference.waiting.append(Job.objects.get(pk=job.pk))

    @rule(count=counts, queues=st.sampled_from([["plain", "fair"], ["plain"], ["fair"]]))
    def claim(self, count: int, queues: list[str]) -> None:
        options: dict[str, Any] = {"types": None, "worker_id": "w", "lease": timedelta(hours=1)}
        found = list(claim(Job.objects.all(), queues=queues, limit=count, now=timezone.now(), **options))
        may_be = [deepcopy(self.reference), self.reference]
        wanted = [
            [job.pk for job in reference.claim(queues, count, sees_blocked=bool(number))]
            for number, reference in enumerate(may_be)
        ]
        assert [job.pk for job in found] in wanted
        self.reference = may_be[wanted.index([job.pk for job in found])]
        tokens = {job.pk: job.lease_token for job in found}
        for job in self.reference.active:
            job.lease_token = tokens.get(job.pk, job.lease_token)

    @rule(number=st.integers(0, 100), end=st.sampled_from(["done", "done", "requeue", "cancel"]))
    def end(self, number: int, end: str) -> None:
        if not self.reference.active:
            return
        job = self.reference.active.pop(number % len(self.reference.active))
        if end == "done":
            assert finalize(Job.objects.all(), [RunResult(job, at=timezone.now())])
        elif end == "cancel":
            Job.objects.get(pk=job.pk).cancel()
        else:
            assert requeue(Job.objects.all(), [job])[0] == 1
            self.reference.waiting.append(job)

    @rule(number=st.integers(0, 100))
    def cancel_one_that_waits(self, number: int) -> None:
        if self.reference.waiting:
            job = self.reference.waiting.pop(number % len(self.reference.waiting))
            Job.objects.get(pk=job.pk).cancel()

    @rule(part=st.sampled_from([CUSTOMER, TENANT, TYPE]), number=running)
    def change_the_number(self, part: str, number: int) -> None:
        LimitOverride.objects.set(part, running=number)
        self.reference.numbers[part] = number

    def teardown(self) -> None:
        for model in (Job, Slot, LimitPartition, LimitOverride):
            model.objects.all().delete()


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_each_claim_takes_what_the_reference_takes(settings, monkeypatch):
    settings.OJS_UNIQUE = {"FAIR_QUEUES": {"fair": ["meta.tenant"]}}
    for name in ("LEAST_HEADS", "LEAST_NEW"):  # with all jobs in view, the order is the reference's also across keys
        monkeypatch.setattr(waiting, name, 100)
    monkeypatch.setattr(slots, "HEAVY_PAUSE", timedelta(0))  # the reference needs no second to see who has gone
    monkeypatch.setattr(slots, "LONGEST_LEFT", timedelta(0))  # a claim of one queue leaves no slot to the other one
    options = hypothesis_settings(max_examples=EXAMPLES, stateful_step_count=40)
    run_state_machine_as_test(Machine, settings=options)  # type: ignore[no-untyped-call]
