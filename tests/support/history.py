"""What the database itself saw: each change of a job's state, written down by a trigger in the same transaction."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

from django.db import connection

from django_ojs_unique.models import Job

TABLE = Job._meta.db_table
COLUMNS = "job, source, target, attempt, worker, expired"
VALUES = "NEW.id, OLD.state, NEW.state, NEW.attempt, NEW.worker_id, "
CREATE = {
    "postgresql": [
        "CREATE TABLE history (number bigserial PRIMARY KEY, job text, source text, target text, attempt int,"
        " worker text, expired boolean, at double precision DEFAULT extract(epoch FROM clock_timestamp()))",
        f"CREATE FUNCTION keep_history() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN INSERT INTO history ({COLUMNS})"
        f" VALUES ({VALUES} OLD.lease_expires_at < clock_timestamp()); RETURN NULL; END $$",
        f"CREATE TRIGGER keep_history AFTER UPDATE ON {TABLE} FOR EACH ROW WHEN (OLD.state <> NEW.state)"
        f" EXECUTE FUNCTION keep_history()",
    ],
    "mysql": [
        "CREATE TABLE history (number bigint AUTO_INCREMENT PRIMARY KEY, job text, source text, target text,"
        " attempt int, worker text, expired boolean, at double)",
        f"CREATE TRIGGER keep_history AFTER UPDATE ON {TABLE} FOR EACH ROW INSERT INTO history ({COLUMNS}, at)"
        f" SELECT {VALUES} OLD.lease_expires_at < UTC_TIMESTAMP(6), unix_timestamp(SYSDATE(6))"
        " FROM DUAL WHERE OLD.state <> NEW.state",
    ],
    "sqlite": [
        "CREATE TABLE history (number integer PRIMARY KEY AUTOINCREMENT, job text, source text, target text,"
        " attempt int, worker text, expired boolean,"
        " at real DEFAULT ((julianday('now') - 2440587.5) * 86400.0))",
        f"CREATE TRIGGER keep_history AFTER UPDATE ON {TABLE} WHEN OLD.state <> NEW.state BEGIN"
        f" INSERT INTO history ({COLUMNS}) VALUES ({VALUES}"
        " OLD.lease_expires_at < strftime('%Y-%m-%d %H:%M:%f', 'now')); END",
    ],
}
DROP = {
    "postgresql": [f"DROP TRIGGER keep_history ON {TABLE}", "DROP FUNCTION keep_history", "DROP TABLE history"],
    "mysql": ["DROP TRIGGER keep_history", "DROP TABLE history"],
    "sqlite": ["DROP TRIGGER keep_history", "DROP TABLE history"],
}


@dataclass(frozen=True)
class Move:
    """A change of state; ``expired`` says whether the lease that the row had before was over."""

    source: str
    target: str
    attempt: int
    worker: str | None
    expired: bool | None
    at: float

    @property
    def pid(self) -> int:
        assert self.worker is not None
        return int(self.worker.split(":")[1])


def keep_history() -> None:
    """Write down every move of every job from here on."""
    _execute(CREATE)


@contextmanager
def keeping_history() -> Iterator[None]:
    """Write down every move of every job that the block sees."""
    keep_history()
    try:
        yield
    finally:
        _execute(DROP)


def moves() -> dict[UUID, list[Move]]:
    """Return the moves of each job, in order."""
    found: dict[UUID, list[Move]] = defaultdict(list)
    with connection.cursor() as cursor:
        cursor.execute(f"SELECT {COLUMNS}, at FROM history ORDER BY number")
        for job, *values in cursor.fetchall():
            found[UUID(job)].append(Move(*values))
    return found


def _execute(statements: dict[str, list[str]]) -> None:
    with connection.cursor() as cursor:
        for statement in statements[connection.vendor]:
            cursor.execute(statement)
