"""A batch whose jobs eight processes end at once, beside the same jobs outside of a workflow; and its creation."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Any

from django.db import connections
from django.utils import timezone

from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.workflows.advance import advance_due
from tests.support.processes import together

PROCESSES, JOBS, AT_ONCE = 8, 1000, 5


def report(rounds: int) -> None:
    """Print what a finalize takes, and what all of it takes, in and outside of a workflow."""
    created, finalizes, walls = [], [], []
    for _ in range(rounds):
        plain, in_batch = _turn(in_batch=False), _turn(in_batch=True)
        created.append((plain[0], in_batch[0]))
        finalizes.append((plain[1], in_batch[1]))
        walls.append((plain[2], in_batch[2]))
    for name, pairs, unit in (
        (f"enqueue {JOBS:,} jobs", created, "ms"),
        (f"one finalize of up to {AT_ONCE} jobs", finalizes, "ms"),
        (f"{PROCESSES} processes claim and finalize all, and advance", walls, "ms"),
    ):
        ratios = sorted(inside / outside for outside, inside in pairs)
        outside, inside = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:<50} outside {outside:8.2f} {unit}  in a batch {inside:8.2f} {unit}  ratio"
            f" {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
            flush=True,
        )


def _turn(*, in_batch: bool) -> tuple[float, float, float]:
    """Return the milliseconds of the enqueue, of one finalize, and of the work of all processes together."""
    Workflow.objects.all().delete()
    Job.objects.all().delete()
    items = [{"type": "t", "args": [number]} for number in range(JOBS)]
    begin = time.perf_counter()
    if in_batch:
        Workflow.objects.enqueue({"type": "batch", "jobs": items, "callbacks": {"on_success": {"type": "end"}}})
    else:
        Job.objects.enqueue_many(items)
    enqueued = time.perf_counter() - begin
    begin = time.perf_counter()
    (answers,) = together([lambda _: _work(in_batch)] * PROCESSES)
    wall = time.perf_counter() - begin
    if in_batch:
        while advance_due("default")[1]:
            pass
        assert Job.objects.filter(type="end").count() == 1
    assert Job.objects.filter(type="t", state="completed").count() == JOBS
    seconds = [second for answer in answers for second in answer]
    return enqueued * 1000, statistics.fmean(seconds) * 1000, wall * 1000


def _work(advances: bool) -> list[float]:
    """Do what a worker does with jobs that do nothing; return the seconds of each finalize."""
    jobs, seconds = Job.objects.all(), []
    options: dict[str, Any] = {"types": ["t"], "worker_id": "w", "lease": timedelta(minutes=1)}
    while claimed := list(claim(jobs, queues=["default"], limit=AT_ONCE, now=timezone.now(), **options)):
        left = [RunResult(job, result=1) for job in claimed]
        while left:  # a row that another claim has locked for a moment is left out
            begin = time.perf_counter()
            finalized = {id(finished) for finished, _ in finalize(jobs, left)}
            seconds.append(time.perf_counter() - begin)
            left = [finished for finished in left if id(finished) not in finalized]
        if advances:
            advance_due("default")
    connections.close_all()
    return seconds
