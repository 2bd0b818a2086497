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
from django_ojs_unique.admission import _table
from django_ojs_unique.models import Job

from .turns import Turns

POLICY = UniquePolicy(keys=["type", "queue", "args"], on_conflict="ignore")


def report(dsn: str, turns: Turns, finished: int) -> None:
    """Print each comparison."""
    insert = bare_loop(dsn)
    turns.compare("new job", insert, new_job, "0.50")
    with override_settings(OJS_UNIQUE={"RECORD_SUPPRESSED": False}):
        turns.compare("duplicate, not recorded", lambda _: insert(0), lambda _: new_job(0), "0.40")
    turns.compare("duplicate, recorded", lambda _: insert(0), lambda _: new_job(0), "0.20")
    growth(turns, finished)


def new_job(number: int) -> object:
    """Enqueue through the package."""
    return Job.objects.enqueue("noop", {"i": number}, unique=POLICY)


def bare_loop(dsn: str) -> Any:
    """Return a call that inserts the same row with psycopg alone, prepared, one transaction each."""
    client = psycopg.connect(dsn, autocommit=True, prepare_threshold=2)
    cursor = client.cursor()
    fixed = Job(type="noop", queue="default", args={"i": 0}, unique=POLICY.to_dict(), fingerprint="0")
    fixed.guarded_states = frozenset(POLICY.states)
    fixed.enqueued_at = fixed.created_at
    columns, values = _table(Job, "postgresql").row(fixed, connection)
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


def growth(turns: Turns, finished: int) -> None: ...
