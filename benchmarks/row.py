"""What a job's row costs the server: a bare INSERT of it, compared with an INSERT into a lean table."""

from __future__ import annotations

import statistics
import time
import uuid
from collections.abc import Callable

import psycopg
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.enqueue.incoming import read
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.models import Job

from . import lean

POLICY = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
ROWS = 500
GOAL = 1.7

Insert = Callable[[int], None]


def report(dsn: str, rounds: int) -> None:
    """Print what one INSERT takes, prepared and planned each time, without the driver's work and without the disk."""
    client = lean.connect(dsn)
    client.execute("SET synchronous_commit = off")
    for is_prepared in (True, False):
        compare("prepared" if is_prepared else "planned each time", *inserts(client, is_prepared), rounds)


def inserts(client: psycopg.Connection, is_prepared: bool) -> tuple[Insert, Insert]:
    """Return the calls that insert into the lean table and into ours; our row has all that an enqueue writes."""
    dialect = dialect_of(Job.objects.using("default"))
    incoming = read(Request("noop", {"i": 0}, queue="default", unique=POLICY), Job, timezone.now())
    columns, values = dialect.table.written(incoming.values)
    ours = dialect.table.insert(columns)
    places = {name: columns.index(name) for name in ("id", "args", "fingerprint")}

    def row_of_lean(number: int) -> list[str]:
        return [str(uuid.uuid4()), f'{{"i": {number}}}', "\\x" + lean.fingerprint(number).hex()]

    def row_of_ours(number: int) -> list[str]:
        row = [value.isoformat() if hasattr(value, "isoformat") else str(value) for value in values]
        for place, value in zip(places.values(), row_of_lean(number), strict=True):
            row[place] = value.removeprefix("\\x")
        return row

    return (
        _call(client, f"lean_{is_prepared}", lean.INSERT.removesuffix(" RETURNING id"), row_of_lean, is_prepared),
        _call(client, f"ours_{is_prepared}", ours, row_of_ours, is_prepared),
    )


def _call(
    client: psycopg.Connection, name: str, sql: str, row: Callable[[int], list[str]], is_prepared: bool
) -> Insert:
    *parts, last = sql.split("%s")
    if not is_prepared:

        def insert(number: int) -> None:
            texts = [f"'{text}'" for text in row(number)]
            statement = "".join(part + text for part, text in zip(parts, texts, strict=True)) + last
            client.pgconn.exec_(statement.encode())

        return insert
    client.pgconn.prepare(name.encode(), ("".join(f"{part}${n}" for n, part in enumerate(parts, 1)) + last).encode())

    def insert_prepared(number: int) -> None:
        client.pgconn.exec_prepared(name.encode(), [text.encode() for text in row(number)])

    return insert_prepared


def compare(name: str, bare: Insert, ours: Insert, rounds: int) -> None:
    """Print the medians of both, and the ratio of our row to the lean one."""
    times: dict[Insert, list[float]] = {bare: [], ours: []}
    number = 0
    for _ in range(rounds + 1):
        for insert, taken in times.items():
            begin = time.perf_counter()
            for _ in range(ROWS):
                insert(number)
                number += 1
            taken.append((time.perf_counter() - begin) / ROWS * 1e6)
    (lean_us, ours_us) = (statistics.median(taken[1:]) for taken in times.values())
    ratio = ours_us / lean_us
    said = "met" if ratio <= GOAL else "MISSED"
    print(f"INSERT, {name:<18} lean {lean_us:6.1f} us  ours {ours_us:6.1f} us  ratio {ratio:.2f}  goal {GOAL} {said}")
