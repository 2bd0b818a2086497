"""Random workflows, with failures, cancellations, duplicates, retries, deletions and deaths between any statements."""

from __future__ import annotations

import contextlib
import os
from datetime import timedelta
from typing import Any

import pytest
from django.utils import timezone
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from django_ojs_unique import DuplicateJob, lifecycle
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job, SuppressedEnqueue, Workflow
from tests.support.workflows import advance, audit, dying

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

EXAMPLES = int(os.environ.get("OJS_WORKFLOW_EXAMPLES", "10"))
"""How many random histories to try."""
KEYS = {"keys": ["type", "args"]}
STRATEGIES: list[Any] = [None, None, *({**KEYS, "on_conflict": name} for name in ("ignore", "replace", "reject"))]

steps = st.builds(
    lambda number, unique, wait: {"type": "t", "args": [number], "unique": unique, "delay": wait},
    st.integers(0, 3),
    st.sampled_from(STRATEGIES),
    st.sampled_from([None, None, 3600]),
)


def compositions(members: Any) -> Any:
    several = st.lists(members, min_size=1, max_size=3)
    callbacks = st.dictionaries(st.sampled_from(["on_success", "on_failure", "on_complete"]), steps, min_size=1)
    return st.one_of(
        st.builds(lambda steps: {"type": "chain", "steps": steps}, several),
        st.builds(lambda jobs: {"type": "group", "jobs": jobs}, several),
        st.builds(lambda jobs, callbacks: {"type": "batch", "jobs": jobs, "callbacks": callbacks}, several, callbacks),
    )


flows = compositions(st.recursive(steps, compositions, max_leaves=5))
whole = st.integers(0, 10**6)


def one_of(rows: Any, number: int) -> Any:
    found = list(rows.order_by("pk"))
    return found[number % len(found)] if found else None


class Machine(RuleBasedStateMachine):
    """What callers, workers, operators and crashes do to workflows."""

    @rule(flow=flows)
    def enqueue(self, flow: Any) -> None:
        before = Workflow.objects.count()
        try:
            Workflow.objects.enqueue(flow)
        except DuplicateJob:
            assert Workflow.objects.count() == before

    @rule(number=whole, strategy=st.sampled_from(STRATEGIES[2:]))
    def enqueue_from_outside(self, number: int, strategy: Any) -> None:
        with contextlib.suppress(DuplicateJob):
            Job.objects.enqueue("t", [number % 4], unique=strategy, tags=["outside"])

    @rule(fails=st.booleans(), count=st.integers(1, 3))
    def work(self, fails: bool, count: int) -> None:
        for job in self._claim(count):
            self._finalize(job, fails=fails)

    @rule(count=st.integers(1, 2))
    def claim(self, count: int) -> None:
        self._claim(count)

    @rule(number=whole, fails=st.booleans())
    def finalize(self, number: int, fails: bool) -> None:
        if job := one_of(Job.objects.filter(state="active"), number):
            self._finalize(job, fails=fails)

    @rule()
    def advance(self) -> None:
        advance()

    @rule(after=st.integers(0, 40))
    def die_while_advancing(self, after: int) -> None:
        with dying(after):
            advance()

    @rule(number=whole, active=st.booleans())
    def cancel(self, number: int, active: bool) -> None:
        if workflow := one_of(Workflow.objects.all(), number):
            with contextlib.suppress(InvalidTransition):
                workflow.cancel(active=active)

    @rule(number=whole, after=st.integers(0, 40))
    def die_while_cancelling(self, number: int, after: int) -> None:
        with dying(after):
            self.cancel(number=number, active=True)

    @rule(number=whole)
    def cancel_a_job(self, number: int) -> None:
        if job := one_of(Job.objects.filter(finished_at=None), number):
            job.cancel()

    @rule(number=whole)
    def delete_a_job(self, number: int) -> None:
        if job := one_of(Job.objects.exclude(state="active"), number):
            job.remove()

    @rule(number=whole)
    def retry_a_job(self, number: int) -> None:
        if job := one_of(Job.objects.filter(lifecycle.unsuccessful()), number):
            with contextlib.suppress(DuplicateJob):
                job.retry()

    def teardown(self) -> None:
        """Let everything end, then look at every row."""
        try:
            is_left = True
            while is_left:
                lifecycle.retry_waiting(Job.objects.all(), timezone.now())
                for job in [*Job.objects.filter(state="active"), *self._claim(100)]:
                    self._finalize(job, fails=False)
                advance()
                is_left = Job.objects.filter(finished_at=None).exists() or Job.objects.filter(awaited=True).exists()
            audit()
        finally:
            Workflow.objects.all().delete()
            Job.objects.all().delete()
            SuppressedEnqueue.objects.all().delete()

    def _claim(self, count: int) -> Any:
        options: dict[str, Any] = {"types": ["t"], "worker_id": "w", "lease": timedelta(hours=1)}
        return claim(Job.objects.all(), queues=["default"], limit=count, now=timezone.now(), **options)

    def _finalize(self, job: Any, *, fails: bool) -> None:
        row, now = Job.objects.filter(pk=job.pk), timezone.now()
        if fails:
            lifecycle.discard(row, now, token=job.lease_token, errors=[])
        else:
            lifecycle.complete(row, now, token=job.lease_token, result=job.args)


def test_every_workflow_ends_whatever_happens():
    options = settings(max_examples=EXAMPLES, stateful_step_count=30)
    run_state_machine_as_test(Machine, settings=options)  # type: ignore[no-untyped-call]
