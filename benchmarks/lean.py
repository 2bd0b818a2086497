"""A lean table: ten columns and one partial unique index. The rest of our row's cost is the price of its features."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Callable
from typing import Any

import psycopg
from psycopg.types.json import Jsonb

TABLE = """
CREATE TABLE lean (
  id uuid PRIMARY KEY, kind text NOT NULL, queue text NOT NULL, state smallint NOT NULL DEFAULT 0,
  priority smallint NOT NULL DEFAULT 0, attempt smallint NOT NULL DEFAULT 0, args jsonb NOT NULL, fingerprint bytea,
  run_at timestamptz NOT NULL DEFAULT now(), created_at timestamptz NOT NULL DEFAULT now()
);
CREATE UNIQUE INDEX lean_fingerprint ON lean (fingerprint) WHERE state < 2;
"""
INSERT = (
    "INSERT INTO lean (id, kind, queue, args, fingerprint) VALUES (%s, 'noop', 'default', %s, %s)"
    " ON CONFLICT (fingerprint) WHERE state < 2 DO NOTHING RETURNING id"
)
INSERT_MANY = (
    "INSERT INTO lean (id, kind, queue, args, fingerprint) SELECT id, 'noop', 'default', args::jsonb, fingerprint"
    " FROM unnest(%s::uuid[], %s::text[], %s::bytea[]) AS row (id, args, fingerprint)"
    " ON CONFLICT (fingerprint) WHERE state < 2 DO NOTHING"
)


def connect(dsn: str) -> psycopg.Connection:
    """Connect as the bare loops do, and make the table."""
    client = psycopg.connect(dsn, autocommit=True, prepare_threshold=2)
    client.execute("DROP TABLE IF EXISTS lean")
    client.execute(TABLE)
    return client


def fingerprint(number: int) -> bytes:
    """Return the fingerprint of the job with this number."""
    text = json.dumps(["noop", "default", {"i": number}], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).digest()


def insert_one(dsn: str) -> Callable[[int], Any]:
    """Return a call that inserts one row: a prepared statement, a transaction of its own."""
    cursor = connect(dsn).cursor()

    def insert(number: int) -> Any:
        return cursor.execute(INSERT, (uuid.uuid4(), Jsonb({"i": number}), fingerprint(number))).fetchone()

    return insert


def insert_many(dsn: str, count: int, part: int) -> Callable[[int], None]:
    """Return a call that inserts ``count`` new rows, ``part`` of them in each transaction."""
    client = connect(dsn)

    def insert(turn: int) -> None:
        for start in range(turn * count, (turn + 1) * count, part):
            numbers = range(start, start + part)
            rows = [(uuid.uuid4(), json.dumps({"i": number}), fingerprint(number)) for number in numbers]
            with client.transaction():
                client.execute(INSERT_MANY, [list(column) for column in zip(*rows, strict=True)])

    return insert
