"""What limits cost: a thousand keys beside jobs without limits, and claims past blocked keys and their jobs."""

from __future__ import annotations

import statistics
import time
from datetime import timedelta
from typing import Any

from django.db import connection
from django.utils import timezone

from django_ojs_unique import Limit, job
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.models import Job, LimitPartition, Slot
from django_ojs_unique.worker import Worker

JOBS, PARTITIONS, AT_ONCE = 10_000, 1_000, 200
FEW, MANY, CLAIMS = 100, 100_000, 50
FULL_KEYS = 20_000
LEASE = timedelta(minutes=1)
PER_KEY = Limit(key=["args.n"], running=1)


def report(rounds: int) -> None:
    """Print rates of claims and of whole workers with and without limits, and what a claim past a blocked key takes."""
    job("limits.nothing")(lambda n: None)
    _warm_up()
    for name, measure in (
        (f"claim and finalize, {AT_ONCE} at a time", _claims),
        ("one worker", _worker),
    ):
        plain, limited = zip(*((measure(None), measure(PER_KEY)) for _ in range(rounds)), strict=True)
        ratios = sorted(one / other for one, other in zip(limited, plain, strict=True))
        print(
            f"{name:<40} without {statistics.median(plain):8,.0f}/s"
            f"  {PARTITIONS:,} partitions {statistics.median(limited):8,.0f}/s"
            f"  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
            flush=True,
        )
    few, many = zip(*((_blocked(FEW), _blocked(MANY)) for _ in range(rounds)), strict=True)
    ratios = sorted(one / other for one, other in zip(many, few, strict=True))
    print(
        f"{'a claim past one blocked key':<40} {FEW:,} wait {statistics.median(few):.2f} ms  {MANY:,} wait"
        f" {statistics.median(many):.2f} ms  ratio {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})",
        flush=True,
    )
    few_keys, many_keys = _blocked(FEW, FEW), _blocked(FULL_KEYS, FULL_KEYS)
    print(
        f"{'a claim past blocked keys':<40} {FEW:,} keys {few_keys:.2f} ms  {FULL_KEYS:,} keys {many_keys:.2f} ms"
        f"  ratio {many_keys / few_keys:.2f}"
    )


def _warm_up() -> None:
    _fill(1_000, PER_KEY)
    _drain()


def _fill(count: int, limit: Any, keys: int = PARTITIONS) -> None:
    for model in (Job, Slot):
        model.objects.all().delete()
    LimitPartition.objects.update(full_at=None)  # the rows stay, as those of customers do
    Job.objects.enqueue_many({"type": "limits.nothing", "args": {"n": n % keys}, "limit": limit} for n in range(count))
    _vacuum()


def _vacuum() -> None:
    """Vacuum, as the server does by itself after a while: what was deleted and updated costs the claims no time."""
    with connection.cursor() as cursor:
        cursor.execute("VACUUM ANALYZE")


def _drain() -> int:
    jobs, done = Job.objects.all(), 0
    options: dict[str, Any] = {"types": ["limits.nothing"], "worker_id": "w", "lease": LEASE, "limit": AT_ONCE}
    while claimed := list(claim(jobs, queues=["default"], now=timezone.now(), **options)):
        done += len(finalize(jobs, [RunResult(each, at=timezone.now()) for each in claimed]))
    return done


def _claims(limit: Any) -> float:
    _fill(JOBS, limit)
    begin = time.perf_counter()
    assert _drain() == JOBS
    return JOBS / (time.perf_counter() - begin)


def _worker(limit: Any) -> float:
    _fill(JOBS, limit)
    begin = time.perf_counter()
    assert Worker(concurrency=8).run(drain=True).completed == JOBS
    return JOBS / (time.perf_counter() - begin)


def _blocked(waiting: int, keys: int = 1) -> float:
    """Return the milliseconds of a claim of one job past blocked keys for which so many wait."""
    _fill(waiting + keys, PER_KEY, keys=keys)
    jobs = Job.objects.all()
    options: dict[str, Any] = {"types": ["limits.nothing"], "worker_id": "w", "lease": LEASE, "queues": ["default"]}
    while Job.objects.filter(blocked_by="0", state="available").exists():
        claim(jobs, limit=AT_ONCE, now=timezone.now(), **options)
    _vacuum()
    others = [{"type": "limits.nothing", "args": {"n": -n}, "limit": PER_KEY} for n in range(1, CLAIMS + 1)]
    Job.objects.enqueue_many(others)
    seconds = []
    for _ in range(CLAIMS):
        begin = time.perf_counter()
        assert len(claim(jobs, limit=1, now=timezone.now(), **options)) == 1
        seconds.append(time.perf_counter() - begin)
    return statistics.median(seconds) * 1000
