"""Settle: write down what became of the runs, fenced by their lease tokens."""

from __future__ import annotations

import logging
import random
from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Any

from django.db import transaction
from django.db.models import QuerySet

from .. import lifecycle
from .run import Finished

logger = logging.getLogger("django_ojs_unique.worker")

ERRORS_KEPT = 10


def settle(jobs: QuerySet[Any], finished: Iterable[Finished]) -> Counter[str]:
    """Settle a batch in one transaction; return how many were ``completed``, ``retried``, ``discarded`` or ``refused``.

    A run is refused when its job is no longer held under its token: it was cancelled or replaced, or its lease ran out.
    """
    outcomes: Counter[str] = Counter()
    plain: dict[Any, list[Finished]] = defaultdict(list)
    others: list[Finished] = []
    for run in finished:
        if run.error is None and run.result is None:
            plain[run.job.lease_token].append(run)
        else:
            others.append(run)
    with transaction.atomic(using=jobs.db):
        for token, runs in plain.items():
            held = jobs.filter(pk__in=sorted(run.job.pk for run in runs))
            completed = lifecycle.complete(held, max(run.at for run in runs), token=token)
            outcomes["completed"] += completed
            _refuse(outcomes, len(runs) - completed)
        for run in sorted(others, key=lambda run: run.job.pk):
            outcome, moved = _settle_one(jobs, run)
            outcomes[outcome] += moved
            _refuse(outcomes, 1 - moved)
    return +outcomes


def _settle_one(jobs: QuerySet[Any], run: Finished) -> tuple[str, int]:
    job = run.job
    row, token = jobs.filter(pk=job.pk), job.lease_token
    if run.error is None:
        return "completed", lifecycle.complete(row, run.at, token=token, result=run.result)
    policy = job.retry_policy
    again = policy.allows(job.attempt) and not policy.gives_up_on(*run.error_types)
    errors = [*job.errors, {**run.error, "retryable": again}]
    if not again:
        return "discarded", lifecycle.discard(row, run.at, token=token, errors=errors[-ERRORS_KEPT:])
    delay = policy.delay(job.attempt, random.random())
    errors[-1]["retry_delay_ms"] = round(delay.total_seconds() * 1000)
    return "retried", lifecycle.retry(row, run.at + delay, token=token, errors=errors[-ERRORS_KEPT:])


def _refuse(outcomes: Counter[str], count: int) -> None:
    if count:
        outcomes["refused"] += count
        logger.warning("%d result(s) refused: the job was cancelled or replaced, or its lease ran out.", count)
