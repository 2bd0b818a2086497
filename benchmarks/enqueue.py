"""One client: a new unique job per call, and a duplicate per call."""

from __future__ import annotations

import hashlib
import json
import uuid
from typing import Any

import psycopg
from django.db import connection
from django.test import override_settings
from psycopg.types.json import Jsonb

from django_ojs_unique import UniquePolicy
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.models import Job

from . import lean
from .turns import Turns

POLICY = UniquePolicy(keys=["type", "queue", "args"], on_conflict="ignore")


def report(dsn: str, turns: Turns, finished: int) -> None:
    """Print each comparison."""
    insert = bare_loop(dsn)
    turns.compare("new job, beside a lean table", lean.insert_one(dsn), new_job, "0.65")
    empty = turns.compare("new job", insert, new_job, "0.80")
    with override_settings(OJS_UNIQUE={"RECORD_SUPPRESSED": False}):
        turns.compare("duplicate, not recorded", lambda _: insert(0), lambda _: new_job(0), "0.55")
    turns.compare("duplicate, recorded", lambda _: insert(0), lambda _: new_job(0), "0.40")
    fill(finished)
    full = turns.compare(f"new job, {finished:,} finished ones in the table", insert, new_job, "-")
    print(f"cost of a new job with {finished:,} finished ones: {empty / full:.2f} times that with none  goal 1.10")


def new_job(number: int) -> object:
    """Enqueue through the package."""
    return Job.objects.enqueue("noop", {"i": number}, unique=POLICY)


def bare_loop(dsn: str) -> Any:
    """Return a call that inserts the same row with psycopg alone: a prepared statement, one transaction per row."""
    client = psycopg.connect(dsn, autocommit=True, prepare_threshold=2)
    cursor = client.cursor()
    fixed = Job(type="noop", queue="default", args={"i": 0}, unique=POLICY.to_dict(), fingerprint="0")
    fixed.unique_states = frozenset(POLICY.states)
    fixed.enqueued_at = fixed.created_at
    columns, values = dialect_of(Job.objects.all()).table.written(fixed.__dict__)
    sql = (
        f"INSERT INTO django_ojs_unique_job ({', '.join(map(connection.ops.quote_name, columns))})"
        f" VALUES ({', '.join(['%s'] * len(columns))}) ON CONFLICT DO NOTHING RETURNING id"
    )
    places = {name: columns.index(name) for name in ("id", "args", "fingerprint")}

    def insert(number: int) -> object:
        args = {"i": number}
        text = json.dumps(["noop", "default", args], sort_keys=True, separators=(",", ":"))
        values[places["id"]] = uuid.uuid4()
        values[places["args"]] = Jsonb(args)
        values[places["fingerprint"]] = hashlib.sha256(text.encode()).hexdigest()
        return cursor.execute(sql, values).fetchone()

    return insert


def fill(finished: int) -> None:
    """Fill the table with finished jobs; one in a hundred has the same fingerprint, `hot_key`."""
    with connection.cursor() as cursor:
        cursor.execute("DELETE FROM django_ojs_unique_job")
        cursor.execute(
            "INSERT INTO django_ojs_unique_job (id, type, queue, args, state, created_at, enqueued_at, started_at,"
            ' finished_at, fingerprint, unique_states, "unique")'
            " SELECT gen_random_uuid(), 'noop', 'default', jsonb_build_object('old', n), 'completed',"
            " now(), now(), now(), now(),"
            " CASE WHEN n %% 100 = 0 THEN %s ELSE encode(sha256(n::text::bytea), 'hex') END, 0, '{}'"
            " FROM generate_series(1, %s) n",
            [hot_key(), finished],
        )
        cursor.execute("VACUUM ANALYZE django_ojs_unique_job")


def hot_key() -> str:
    """Return the fingerprint of the first new job of a turn."""
    return str(Job.objects.explain("noop", {"i": 0}, unique=POLICY).fingerprint)
