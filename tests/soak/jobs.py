"""Handlers that write down each start and end, with the token of the lease under which they run.

Types ``plain.*`` have no uniqueness. Of ``unique.*``, at most one unfinished job of a fingerprint may be there;
``unique.period`` also counts finished ones, for `PERIOD_SECONDS`.
"""

from __future__ import annotations

import asyncio
import time

from django_ojs_unique import JobContext, UniquePolicy, job
from django_ojs_unique.models import Job

from . import PERIOD_SECONDS, RETRY
from . import leaving as leaving  # which declares more
from .logs import written

STATES = ["available", "active", "scheduled", "retryable", "pending", "completed"]


def work(context: JobContext, seconds: float = 0, fails: int = 0, number: int = 0) -> None:
    with written(context):
        time.sleep(seconds)
        if context.attempt <= fails:
            raise ValueError("now and then")


@job("plain.async", takes_context=True, retry=RETRY)
async def asynchronous(context: JobContext, seconds: float = 0, fails: int = 0, number: int = 0) -> None:
    with written(context):
        await asyncio.sleep(seconds)
        if context.attempt <= fails:
            raise ValueError("now and then")


@job("plain.database", takes_context=True, retry=RETRY)
def looks(context: JobContext, seconds: float = 0, fails: int = 0, number: int = 0) -> None:
    with written(context):
        Job.objects.filter(pk=context.job_id).get()
        time.sleep(seconds)


job("plain.thread", takes_context=True, retry=RETRY)(work)
job("unique.policy", takes_context=True, retry=RETRY)(work)
job("unique.key", takes_context=True, retry=RETRY)(work)
job(
    "unique.period",
    takes_context=True,
    retry=RETRY,
    unique=UniquePolicy(
        keys=["type", "args"],
        args_keys=["number"],
        period=f"PT{PERIOD_SECONDS}S",
        states=STATES,
        on_conflict="ignore",
    ),
)(work)
