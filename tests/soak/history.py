"""Tables for the judge: what triggers saw of each change of a job's row, and what the logs say."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connection

from django_ojs_unique.models import Job

JOBS = Job._meta.db_table
OPERATIONS = ("INSERT", "UPDATE", "DELETE")
KINDS = {
    "operation": "varchar(6)",
    "job": "varchar(36)",
    "type": "varchar(255)",
    "job_key": "varchar(512)",
    "replaced_by": "varchar(36)",
    "fingerprint_before": "varchar(64)",
    "fingerprint": "varchar(64)",
    "source": "varchar(9)",
    "target": "varchar(9)",
    "attempt_before": "integer",
    "attempt": "integer",
    "max_attempts": "integer",
    "worker": "varchar(255)",
    "token_before": "varchar(36)",
    "token": "varchar(36)",
    "lease_before": "double precision",
    "expires_at": "double precision",
    "created_at": "double precision",
    "at": "double precision",
}
"""Moments are seconds since 1970 by the database's clock; ``worker`` and what ends in ``before`` are of the old row."""
TABLES = {
    "soak_history": {"number": "bigint", **KINDS},
    "soak_answers": {"answer": "varchar(20)", "job": "varchar(36)", "job_key": "varchar(512)"},
    "soak_runs": {
        "job": "varchar(36)",
        "token": "varchar(36)",
        "attempt": "integer",
        "pid": "integer",
        "began": "double precision",
        "ended": "double precision",
    },
    "soak_faults": {
        "worker": "varchar(255)",
        "job": "varchar(36)",
        "type": "varchar(255)",
        "began": "double precision",
        "ended": "double precision",
    },
}
INDEXES = [("soak_history", "job"), ("soak_history", "token_before"), ("soak_answers", "job"), ("soak_runs", "token")]
NUMBERED = {
    "postgresql": "bigserial PRIMARY KEY",
    "mysql": "bigint AUTO_INCREMENT PRIMARY KEY",
    "sqlite": "integer PRIMARY KEY AUTOINCREMENT",
}
NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6)) / 1e6",
    "sqlite": "(julianday('now') - 2440587.5) * 86400.0",
}
EPOCH = {
    "postgresql": "extract(epoch FROM {})",
    "mysql": "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', {}) / 1e6",
    "sqlite": "(julianday({}) - 2440587.5) * 86400.0",
}


def create() -> None:
    """Make the tables, and the triggers that fill the first one."""
    vendor = connection.vendor
    for table, columns in TABLES.items():
        kinds = {**columns, **({"number": NUMBERED[vendor]} if "number" in columns else {})}
        _execute(f"CREATE TABLE {table} ({', '.join(f'{name} {kind}' for name, kind in kinds.items())})")
    for table, column in INDEXES:
        _execute(f"CREATE INDEX {table}_{column} ON {table} ({column})")
    inserts = {operation: _insert(operation) for operation in OPERATIONS}
    if vendor == "postgresql":
        cases = " ".join(f"IF TG_OP = '{operation}' THEN {insert}; END IF;" for operation, insert in inserts.items())
        _execute(
            f"CREATE FUNCTION soak_keep() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {cases} RETURN NULL; END $$"
        )
        inserts = {" OR ".join(OPERATIONS): "EXECUTE FUNCTION soak_keep()"}
    for number, (operation, insert) in enumerate(inserts.items()):
        body = f"BEGIN {insert}; END" if vendor == "sqlite" else insert
        _execute(f"CREATE TRIGGER soak_keep_{number} AFTER {operation} ON {JOBS} FOR EACH ROW {body}")


def drop() -> None:
    """Undo what `create` did."""
    vendor = connection.vendor
    for number in range(1 if vendor == "postgresql" else len(OPERATIONS)):
        _execute(f"DROP TRIGGER soak_keep_{number}{f' ON {JOBS}' if vendor == 'postgresql' else ''}")
    if vendor == "postgresql":
        _execute("DROP FUNCTION soak_keep")
    for table in TABLES:
        _execute(f"DROP TABLE {table}")


def fill(table: str, rows: Iterable[dict[str, Any]]) -> None:
    """Insert rows; a column that one leaves out is NULL."""
    names = [name for name in TABLES[table] if name != "number"]
    values = [[row.get(name) for name in names] for row in rows]
    with connection.cursor() as cursor:
        marks = ", ".join(["%s"] * len(names))
        cursor.executemany(f"INSERT INTO {table} ({', '.join(names)}) VALUES ({marks})", values)


def stored(id: Any) -> str | None:
    """Return a UUID as the triggers see it."""
    if id is None:
        return None
    return str(Job._meta.pk.get_db_prep_value(UUID(str(id)), connection))


def _insert(operation: str) -> str:
    present = "OLD" if operation == "DELETE" else "NEW"
    quote = connection.ops.quote_name

    def old(column: str) -> str:
        return "NULL" if operation == "INSERT" else f"OLD.{column}"

    def new(column: str) -> str:
        return "NULL" if operation == "DELETE" else f"NEW.{column}"

    def epoch(moment: str) -> str:
        return moment if moment == "NULL" else EPOCH[connection.vendor].format(moment)

    values = {
        "operation": f"'{operation}'",
        "job": f"{present}.id",
        "type": f"{present}.type",
        "job_key": f"{present}.{quote('key')}",
        "replaced_by": f"{present}.replaced_by_id",
        "fingerprint_before": old("fingerprint"),
        "fingerprint": new("fingerprint"),
        "source": old("state"),
        "target": new("state"),
        "attempt_before": old("attempt"),
        "attempt": new("attempt"),
        "max_attempts": f"{present}.max_attempts",
        "worker": old("worker_id"),
        "token_before": old("lease_token"),
        "token": new("lease_token"),
        "lease_before": epoch(old("lease_expires_at")),
        "expires_at": epoch(f"{present}.expires_at"),
        "created_at": epoch(f"{present}.created_at"),
        "at": NOW[connection.vendor],
    }
    return f"INSERT INTO soak_history ({', '.join(KINDS)}) VALUES ({', '.join(values[name] for name in KINDS)})"


def _execute(statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
