"""Many unique jobs at once: `enqueue_many` beside the bare driver's multi-row insert of the same rows."""

from __future__ import annotations

import hashlib
import json
import resource
import time
import uuid
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import psycopg
from django.db import connection
from django.test import override_settings
from tqdm import tqdm

from django_ojs_unique import UniquePolicy
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.models import Job

from . import lean
from .turns import Call
from .turns import report as report_turns

POLICY = UniquePolicy(keys=["type", "queue", "args"], on_conflict="ignore")
JOBS = 10_000
PART = 1_000


def report(dsn: str, rounds: int) -> None:
    """Print each comparison."""
    insert = bare_insert(dsn)
    compare("distinct, beside a lean table", lean.insert_many(dsn, JOBS, PART), distinct, rounds)
    compare("distinct", insert, distinct, rounds)
    for note, recorded in ((", recorded", True), (", not recorded", False)):
        with override_settings(OJS_UNIQUE={"RECORD_SUPPRESSED": recorded}):
            compare(f"duplicates of stored jobs{note}", insert, duplicates, rounds)
            compare(f"each twice in the batch{note}", insert, pairs, rounds)


def compare(name: str, bare: Call, batch: Callable[[int], Iterator[dict[str, Any]]], rounds: int) -> None:
    """Print the rates of a bare insert of 10,000 rows and of a batch of 10,000 items."""
    with connection.cursor() as cursor:
        cursor.execute("TRUNCATE django_ojs_unique_job, django_ojs_unique_suppressedenqueue")
    Job.objects.enqueue_many(distinct(0))
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE django_ojs_unique_job")  # as autovacuum does to a table that is in use
    turns = []
    for number in range(1, rounds + 1):
        turns.append([rate(bare, number), rate(partial(enqueue, batch), number)])
    report_turns(f"{JOBS:,} jobs, {name}", turns, "0.70")


def distinct(number: int) -> Iterator[dict[str, Any]]:
    """Yield new jobs."""
    return items(range(number * JOBS, (number + 1) * JOBS))


def duplicates(number: int) -> Iterator[dict[str, Any]]:
    """Yield jobs that are stored already."""
    return items(range(JOBS))


def pairs(number: int) -> Iterator[dict[str, Any]]:
    """Yield new jobs, each twice."""
    return items(count // 2 for count in range(2 * number * JOBS, 2 * number * JOBS + JOBS))


def enqueue(batch: Callable[[int], Iterator[dict[str, Any]]], number: int) -> None:
    """Enqueue a batch, with a result for each job."""
    assert len(Job.objects.enqueue_many(batch(number))) == JOBS


def items(numbers: Any) -> Iterator[dict[str, Any]]:
    """Yield specifications as callers write them."""
    return ({"type": "noop", "args": {"i": number}, "unique": POLICY} for number in numbers)


def rate(call: Call, number: int) -> float:
    """Return jobs per second."""
    begin = time.perf_counter()
    call(number)
    return JOBS / (time.perf_counter() - begin)


def bare_insert(dsn: str) -> Call:
    """Return a call that inserts the rows with psycopg alone: columns that vary as arrays, 1000 rows a transaction."""
    client = psycopg.connect(dsn, autocommit=True)
    fixed = Job(type="noop", queue="default", args={"i": 0}, unique=POLICY.to_dict(), fingerprint="0")
    fixed.unique_states = frozenset(POLICY.states)
    fixed.enqueued_at = fixed.created_at
    columns, values = dialect_of(Job.objects.all()).table.written(fixed.__dict__)
    arrays = {"id": "uuid[]", "args": "text[]", "fingerprint": "text[]"}
    constants = {name: value for name, value in zip(columns, values, strict=True) if name not in arrays}
    types = {field.column: field.db_type(connection) for field in Job._meta.concrete_fields}
    quote = connection.ops.quote_name
    sql = (
        f"INSERT INTO django_ojs_unique_job ({', '.join(map(quote, [*arrays, *constants]))})"
        f" SELECT id, args::jsonb, fingerprint, {', '.join(f'%s::{types[name]}' for name in constants)}"
        f" FROM unnest({', '.join(f'%s::{type}' for type in arrays.values())}) AS row (id, args, fingerprint)"
        " ON CONFLICT DO NOTHING"
    )

    def insert(_: int) -> None:
        for _ in range(0, JOBS, PART):
            rows = [row(uuid.uuid4()) for _ in range(PART)]
            with client.transaction():
                client.execute(sql, [*constants.values(), *map(list, zip(*rows, strict=True))])

    return insert


def row(id: uuid.UUID) -> tuple[uuid.UUID, str, str]:
    """Return the columns that vary: id, args and fingerprint."""
    args = json.dumps({"i": str(id)})
    text = json.dumps(["noop", "default", args], sort_keys=True, separators=(",", ":"))
    return id, args, hashlib.sha256(text.encode()).hexdigest()


def report_memory(jobs: int) -> None:
    """Print the peak memory while an iterator of many items is enqueued, after a tenth of them and at the end."""
    peaks = []
    progress = tqdm(total=jobs, unit="job", disable=None)
    for start in range(0, jobs, jobs // 10):
        Job.objects.enqueue_many(items(range(start, start + jobs // 10)), each=lambda answer: progress.update())
        peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
    progress.close()
    print(f"peak memory of {jobs:,} jobs: {peaks[0]:.1f} MiB at a tenth, {peaks[-1]:.1f} MiB at the end")
