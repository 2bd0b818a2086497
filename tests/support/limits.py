"""Enqueue jobs with limits, claim them as a worker would, and let their runs end."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.utils import timezone

from django_ojs_unique import Limit
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.lifecycle import write
from django_ojs_unique.maintenance.timers import rescue
from django_ojs_unique.models import Job

LEASE = timedelta(seconds=30)
ONE = Limit(key=["args.n"], running=1)


def enqueue(n: Any, limit: Any = ONE, **options: Any) -> Any:
    return Job.objects.enqueue("t", {"n": n}, limit=limit, **options).job.id


def take(count: int = 10, **options: Any) -> list[Any]:
    rules: dict[str, Any] = {"queues": ["default"], "types": None, "now": timezone.now(), **options}
    return list(claim(Job.objects.all(), limit=count, worker_id="w", lease=LEASE, **rules))


def ids(jobs: Iterable[Any]) -> list[UUID]:
    return [each.id for each in jobs]


def done(*jobs: Any) -> None:
    assert len(finalize(Job.objects.all(), [RunResult(each, at=timezone.now()) for each in jobs])) == len(jobs)


def fail(run: Any) -> None:
    finalize(Job.objects.all(), [RunResult(run, error={"type": "E", "message": ""}, at=timezone.now())])


def lose(id: UUID) -> None:
    """Let the job's worker be silent for too long, and another one take the job back."""
    write(Job.objects.filter(pk=id), lease_expires_at=timezone.now() - timedelta(hours=1))
    assert rescue(Job.objects.all(), timezone.now()) == 1
