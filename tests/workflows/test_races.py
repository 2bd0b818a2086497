"""Many processes, one workflow: each step and each callback is enqueued once, and no end is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone

from django_ojs_unique import batch, chain, group, lifecycle
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.workflows.advance import advance_due
from tests.support.processes import Parent, together, wait_until_alone
from tests.support.workflows import advance, audit

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

PROCESSES = 6
ROUNDS = int(os.environ.get("OJS_WORKFLOW_ROUNDS", "6"))
IGNORE = {"keys": ["type", "args"], "on_conflict": "ignore"}
REPLACE = {"keys": ["type", "args"], "on_conflict": "replace"}


def t(*args: Any, **options: Any) -> dict[str, Any]:
    return {"type": "t", "args": list(args), **options}


def complete(limit: int = 1, *, advances: bool = True) -> int:
    """Claim jobs and complete them, each in a transaction of its own, and advance, as a worker does."""
    options: dict[str, Any] = {"types": ["t"], "worker_id": "w", "lease": timedelta(hours=1), "now": timezone.now()}
    jobs = list(claim(Job.objects.all(), queues=["default"], limit=limit, **options))
    for job in jobs:
        lifecycle.complete(Job.objects.filter(pk=job.pk), timezone.now(), token=job.lease_token, result=job.args)
    if advances:
        advance_due("default")
    return len(jobs)


def drain() -> list[Workflow]:
    while complete(100) or Job.objects.filter(awaited=True).exists():
        pass
    return audit()


def test_the_last_jobs_end_at_the_same_moment():
    for round_ in range(ROUNDS):
        batch([t(round_, n) for n in range(PROCESSES)], on_success=t("s", round_), on_complete=t("c", round_)).enqueue()
    together([lambda _: complete()] * PROCESSES, rounds=ROUNDS)
    workflows = drain()
    assert [workflow.state for workflow in workflows] == ["completed"] * ROUNDS
    assert Job.objects.count() == ROUNDS * (PROCESSES + 2)


def test_a_cancellation_beside_the_last_ends():
    """One of both wins; whoever loses changes nothing."""
    flows = [batch([t(n, m) for m in range(PROCESSES - 1)], on_complete=t("c", n)).enqueue() for n in range(ROUNDS)]

    def cancel(round_: int) -> bool:
        try:
            flows[round_].cancel()
        except InvalidTransition:
            return False
        return True

    together([cancel, *[lambda _: complete()] * (PROCESSES - 1)], rounds=ROUNDS)
    for workflow in drain():
        called = Job.objects.filter(workflow_id=workflow.pk, args__0="c").count()
        assert called == (workflow.called_back_at is not None)
        assert called or workflow.state == "cancelled"


def test_workflows_that_share_jobs_begin_and_end_at_once():
    """Stand-ins, replacements and creations meet the ends of the same jobs."""
    unique = [IGNORE, REPLACE]

    def work(index: int) -> Callable[[int], None]:
        def turn(round_: int) -> None:
            shared = [t(n % 3, unique=unique[(index + n) % 2]) for n in range(index, index + 3)]
            chain(group(shared), t("own", index, round_)).enqueue()
            complete(3)

        return turn

    together([work(index) for index in range(PROCESSES)], rounds=ROUNDS)
    workflows = [workflow for workflow in drain() if workflow.root_id is None]
    assert [workflow.state for workflow in workflows] == ["completed"] * (ROUNDS * PROCESSES)
    assert Job.objects.filter(args__0="own", state="completed").count() == ROUNDS * PROCESSES


def die_advancing(parent: Parent, after: int) -> bool:
    """kill -9 in front of the statement number ``after`` of advancing, or of the commit; else return True."""
    left = after

    def count(execute: Callable[..., Any], *arguments: Any) -> Any:
        nonlocal left
        if not left:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        return execute(*arguments)

    commit = connection.commit
    connection.commit = lambda: count(commit)
    with connection.execute_wrapper(count):
        advance()
    return True


@pytest.mark.parametrize("turn", range(4))
def test_a_kill_before_each_statement_of_advancing(start, turn):
    flow = chain(
        batch([t(1), t(2, unique=IGNORE)], on_success=t("s"), on_failure=t("f")), group([t(3), t(4)]), t("end")
    )
    after, survived = 0, False
    while not survived:
        workflow = flow.enqueue()
        for _ in range(turn):
            complete(2)
        assert complete(2, advances=False)
        child = start(die_advancing, after)
        child.process.join()
        survived = child.process.exitcode == 0
        wait_until_alone()
        drain()
        workflow.refresh_from_db()
        assert workflow.state == "completed"
        assert Job.objects.filter(state="completed").count() == Job.objects.count() == 6
        Job.objects.all().delete()
        Workflow.objects.all().delete()
        after += 1
    assert after > 10
