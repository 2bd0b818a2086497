"""What a job's row costs the server: one bare INSERT of it, beside one of a lean table.

The loops run inside the server, so that neither a driver nor the network nor a commit makes the ratio look better.
"""

from __future__ import annotations

import json
import statistics
import time

import psycopg

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Job

from . import lean

POLICY = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
ROWS = 2_000
GOAL = 1.7
TABLE = Job._meta.db_table
FINGERPRINT = "encode(sha256((random()::text)::bytea), 'hex')"

LEAN = (
    "INSERT INTO lean (id, kind, queue, args, fingerprint)"
    """ VALUES (gen_random_uuid(), 'noop', 'default', '{"i": 5}', sha256((random()::text)::bytea))"""
    " ON CONFLICT DO NOTHING"
)


def report(dsn: str, rounds: int) -> None:
    """Print what one INSERT takes, for our table and for tables that lack one thing each."""
    client = lean.connect(dsn)
    statements = {"lean": LEAN, "ours": insert(TABLE), **variants(client)}
    for is_planned in (False, True):
        print("planned each time" if is_planned else "planned once, as an enqueue's")
        for name, (taken, ratio) in measure(client, statements, is_planned, rounds).items():
            said = "" if name != "ours" else f"  goal {GOAL} " + ("met" if ratio <= GOAL else "MISSED")
            print(f"  {name:<44} {taken:6.1f} us  {ratio:.2f} times the lean row{said}", flush=True)


def insert(table: str, *, has_policy: bool = True) -> str:
    """Return the INSERT of all that an enqueue writes."""
    values = {
        "id": "gen_random_uuid()",
        "type": "'noop'",
        "queue": "'default'",
        "args": """'{"i": 5}'""",
        "state": "'available'",
        "unique": f"'{json.dumps(POLICY.to_dict())}'",
        "fingerprint": FINGERPRINT,
        "unique_states": "31",
        "created_at": "now()",
        "enqueued_at": "now()",
    }
    if not has_policy:
        del values["unique"]
    names = ", ".join(f'"{name}"' for name in values)
    return f"INSERT INTO {table} ({names}) VALUES ({', '.join(values.values())}) ON CONFLICT DO NOTHING"


def variants(client: psycopg.Connection) -> dict[str, str]:
    """Make copies of our table that lack something; return an INSERT for each."""
    found = {"ours, without the policy": insert(TABLE, has_policy=False)}
    indexes = client.execute("SELECT indexname, indexdef FROM pg_indexes WHERE tablename = %s", [TABLE]).fetchall()
    promise = {f"{TABLE}_pkey", "ojs_unique_key"}
    left_out = {name: {name} for name, _ in indexes if name not in promise}
    left_out["all but the primary key and the unique key"] = set(left_out)
    for number, (name, names) in enumerate(left_out.items()):
        copy = f"copy_{number}"
        client.execute(f"CREATE TABLE {copy} (LIKE {TABLE} INCLUDING DEFAULTS)")
        for index, sql in indexes:
            if index not in names:
                client.execute(
                    sql.replace(f"INDEX {index} ", f"INDEX {copy}_{index} ").replace(f"public.{TABLE}", copy)
                )
        found[f"ours, without {name}"] = insert(copy)
    return found


def measure(
    client: psycopg.Connection, statements: dict[str, str], is_planned: bool, rounds: int
) -> dict[str, tuple[float, float]]:
    """Return the median microseconds of each statement, and how many times the first one's they are."""
    taken: dict[str, list[float]] = {name: [] for name in statements}
    for _ in range(rounds):
        for name, sql in statements.items():
            step = f"EXECUTE $sql${sql}$sql$" if is_planned else sql
            begin = time.perf_counter()
            client.execute(f"DO $do$ BEGIN FOR n IN 1..{ROWS} LOOP {step}; END LOOP; END $do$")
            taken[name].append((time.perf_counter() - begin) / ROWS * 1e6)
    medians = {name: statistics.median(times) for name, times in taken.items()}
    return {name: (median, median / medians["lean"]) for name, median in medians.items()}
