"""100,000 requests by one INSERT ... SELECT, until all are decided, beside `enqueue_many` of the same jobs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from multiprocessing import get_context

from django.db import connection

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.maintenance.inbox import decide
from django_ojs_unique.models import Job

from .turns import report as report_turns

JOBS = 100_000
ASK = """
    INSERT INTO django_ojs_unique_inbox (type, args)
    SELECT %s, jsonb_build_object('i', number) FROM generate_series(1, %s) AS number
"""


def report(rounds: int) -> None:
    """Print each comparison."""
    job("plain")(lambda i: None)
    job("unique", unique=UniquePolicy(keys=["type", "args"], on_conflict="ignore"))(lambda i: None)
    for type, deciders in (("plain", 1), ("plain", 2), ("unique", 1)):
        from_sql = partial(_from_sql, deciders=deciders)
        turns = [[_rate(_enqueue_many, type), _rate(from_sql, type)] for _ in range(rounds)]
        report_turns(f"{JOBS:,} {type} requests, INSERT included, deciders: {deciders}", turns, "0.80")
    _clear()


def _enqueue_many(type: str) -> None:
    Job.objects.enqueue_many(
        ({"type": type, "args": {"i": number}} for number in range(1, JOBS + 1)), each=lambda answer: None
    )


def _from_sql(type: str, deciders: int) -> None:
    with connection.cursor() as cursor:
        cursor.execute(ASK, [type, JOBS])
    connection.close()
    others = [get_context("fork").Process(target=_decide_all) for _ in range(1, deciders)]
    for other in others:
        other.start()
    _decide_all()
    for other in others:
        other.join()


def _decide_all() -> None:
    while decide(Job.objects.all()).count:
        pass


def _clear() -> None:
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_ojs_unique_job, django_ojs_unique_inbox")


def _rate(call: Callable[[str], None], type: str) -> float:
    _clear()
    begin = time.perf_counter()
    call(type)
    rate = JOBS / (time.perf_counter() - begin)
    assert Job.objects.count() == JOBS
    return rate
