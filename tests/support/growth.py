"""What the operations of the hot paths and of the upkeep read on PostgreSQL, whatever the planner believes.

`situations` fills the table, with statistics that are true or not. `measure` runs each operation in a transaction that
is undone, and counts the blocks that it reads of the job table and its indexes: the same on every machine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import timedelta
from io import StringIO
from typing import Any
from unittest.mock import patch
from uuid import uuid4

from django.core.management import call_command
from django.db import connection, transaction
from django.utils import timezone

from django_ojs_unique import DuplicateJob, Limit, chain
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.execution.leases import extend, requeue
from django_ojs_unique.execution.queue_rules import queues_with_rules
from django_ojs_unique.execution.run_result import RunResult
from django_ojs_unique.maintenance import cron, superseded, timers
from django_ojs_unique.maintenance.due import look
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, Job
from django_ojs_unique.reporting import bounded, queues
from django_ojs_unique.unique.policy import UniquePolicy
from django_ojs_unique.worker.fronts import Fronts
from django_ojs_unique.worker.queues import waiting_queues
from django_ojs_unique.workflows.advance import advance_due
from tests.support.rows import insert

TABLE = Job._meta.db_table
HOT = "hot"
"""The type of a job that runs every minute: its finished jobs are a thirtieth of all."""
QUEUES = ["q0", "q1", "q2", "q3"]
LEASE = timedelta(minutes=5)
WINDOW = {"period": "P1D", "states": ["available", "active", "scheduled", "retryable", "pending", "completed"]}

_RELATIONS = (
    f"SELECT '{TABLE}'::regclass::oid AS oid"
    f" UNION ALL SELECT indexrelid FROM pg_index WHERE indrelid = '{TABLE}'::regclass"
)
_WAITING = """
INSERT INTO {table} (id, type, queue, args, state, priority, "unique", fingerprint, unique_states, created_at,
  enqueued_at)
SELECT gen_random_uuid(), 'waiting', 'q' || abs(n) %% 4, jsonb_build_object('n', n), 'available', abs(n) %% 3,
  '{policy}', encode(sha256(('waiting' || n)::bytea), 'hex'), {states}, moment, moment
FROM generate_series(%(first)s, %(last)s) AS n CROSS JOIN LATERAL (
  SELECT now() - interval '1 hour' + n * interval '1 millisecond' AS moment
) AS times
"""
_FINISHED = """
INSERT INTO {table} (id, type, queue, args, state, "unique", fingerprint, unique_states, created_at, enqueued_at,
  started_at, finished_at, attempt, window_ends_at)
SELECT gen_random_uuid(), CASE WHEN n %% 30 = 0 THEN '{hot}' ELSE 'done' END, 'q' || n %% 4, jsonb_build_object('n', n),
  CASE WHEN n %% 25 = 1 THEN 'discarded' WHEN n %% 25 = 2 THEN 'cancelled' ELSE 'completed' END, '{policy}',
  CASE WHEN n %% 30 = 0 THEN %(hot)s ELSE encode(sha256(('done' || n)::bytea), 'hex') END, 0,
  moment, moment, moment, moment + interval '1 second', 1, moment
FROM generate_series(%(first)s, %(last)s) AS n CROSS JOIN LATERAL (
  SELECT now() - interval '1 minute' - n * (interval '29 days' / %(last)s) AS moment
) AS times
"""


def raw(sql: str, parameters: Any = None) -> list[Any]:
    """Execute a statement; return its rows."""
    with connection.cursor() as cursor:
        cursor.execute(sql, parameters)
        return cursor.fetchall() if cursor.description else []


FEW = 10
"""How many jobs wait in a queue that is nearly empty."""
MOST = 100
"""How many rows a list looks at here, so that even a small table has more."""


def situations(waiting: int, finished: int) -> Iterator[str]:
    """Yield the name of each situation while it lasts: the planner's statistics, and how many jobs wait.

    The statistics are of an empty queue, of a full one, stale by a factor of a thousand, or there are none.
    """
    with without_autovacuum():
        raw(f"TRUNCATE {TABLE} CASCADE")
        forget_statistics()
        raw(f"ANALYZE {TABLE}")
        fill_waiting(1, FEW)
        yield from _after_vacuum(f"empty table, {FEW:,}")
        fill_waiting(FEW + 1, waiting)
        yield from _after_vacuum(f"empty table, {waiting:,}")
        raw(f"TRUNCATE {TABLE} CASCADE")
        fill_waiting(1, FEW)
        fill_finished(1, max(finished // 1000, 1))
        raw(f"ANALYZE {TABLE}")
        raw(f"DELETE FROM {TABLE} WHERE finished_at IS NOT NULL")
        fill_finished(1, finished)
        yield from _after_vacuum(f"stale, {FEW:,}")
        fill_waiting(FEW + 1, waiting)
        yield from _after_vacuum(f"stale, {waiting:,}")
        raw(f"ANALYZE {TABLE}")
        yield from _after_vacuum(f"full, {waiting:,}")
        raw(f"DELETE FROM {TABLE} WHERE finished_at IS NULL AND (args->>'n')::int > {FEW}")
        yield from _after_vacuum(f"full, {FEW:,}")
        forget_statistics()
        yield from _after_vacuum(f"none, {FEW:,}")
        fill_waiting(FEW + 1, waiting)
        yield from _after_vacuum(f"none, {waiting:,}")
        raw(f"DELETE FROM {TABLE} WHERE finished_at IS NULL")
        raw(f"VACUUM ANALYZE {TABLE}")
        fill_waiting(1, FEW)
        yield from _after_vacuum(f"empty, {FEW:,}")
        fill_waiting(FEW + 1, waiting)
        yield from _after_vacuum(f"empty, {waiting:,}")
        raw(f"TRUNCATE {TABLE} CASCADE")


def _after_vacuum(name: str) -> Iterator[str]:
    """Remove dead rows, with the statistics as they were; a new session has no plans of earlier statistics."""
    known = raw(f"SELECT oid, reltuples, relpages, relallvisible FROM pg_class WHERE oid IN ({_RELATIONS})")
    raw(f"VACUUM (INDEX_CLEANUP ON) {TABLE}")
    for oid, *values in known:
        raw("UPDATE pg_class SET reltuples = %s, relpages = %s, relallvisible = %s WHERE oid = %s", [*values, oid])
    connection.close()
    yield name


def fill_waiting(first: int, last: int) -> None:
    """Insert waiting unique jobs with these numbers."""
    policy = UniquePolicy()
    raw(_format(_WAITING, states=sum(state.bit for state in policy.states)), {"first": first, "last": last})


def fill_finished(first: int, last: int) -> None:
    """Insert finished unique jobs of a month with these numbers."""
    raw(_format(_FINISHED), {"first": first, "last": last, "hot": fingerprint_of(HOT)})


def work_off(jobs: int) -> None:
    """Let so many jobs come, run and complete before those that wait: their dead rows stay in the indexes."""
    for number in range(-jobs, 0, 1_000):
        fill_waiting(number, number + 999)
        theirs = f"state = %s AND finished_at IS NULL AND (args->>'n')::int BETWEEN {number} AND {number + 999}"
        raw(f"UPDATE {TABLE} SET state = 'active', started_at = now(), attempt = 1 WHERE {theirs}", ["available"])
        raw(
            f"UPDATE {TABLE} SET state = 'completed', finished_at = now(), unique_states = 0 WHERE {theirs}",
            ["active"],
        )


@contextmanager
def open_transaction(worked_off: int = 2_000) -> Iterator[None]:
    """Open a transaction in another session, and work off jobs beside it."""
    with closing(connection.copy()) as other, other.cursor() as cursor:
        cursor.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        cursor.execute("SELECT 1")
        work_off(worked_off)
        yield
        cursor.execute("ROLLBACK")


def fingerprint_of(type: str) -> str:
    """Return the fingerprint of jobs of a type under a policy of the type alone."""
    return Job.objects.explain(type, unique={"keys": ["type"]}).fingerprint


def _format(sql: str, **values: Any) -> str:
    import json

    policy = json.dumps(UniquePolicy(keys=["type"]).to_dict())
    for name, value in {"table": TABLE, "policy": policy, "hot": HOT, **values}.items():
        sql = sql.replace(f"{{{name}}}", str(value))
    return sql


@contextmanager
def without_autovacuum() -> Iterator[None]:
    """Keep the server from changing statistics and from removing dead rows by itself."""
    raw(f"ALTER TABLE {TABLE} SET (autovacuum_enabled = off)")
    try:
        yield
    finally:
        raw(f"ALTER TABLE {TABLE} RESET (autovacuum_enabled)")


def forget_statistics() -> None:
    """Leave the planner with what it believes of a new table."""
    raw(f"DELETE FROM pg_statistic WHERE starelid = '{TABLE}'::regclass")
    raw(f"UPDATE pg_class SET reltuples = -1, relpages = 0, relallvisible = 0 WHERE oid IN ({_RELATIONS})")


class _Undo(Exception):
    pass


@contextmanager
def undone() -> Iterator[None]:
    """Undo what the block writes."""
    try:
        with transaction.atomic():
            yield
            raise _Undo
    except _Undo:
        pass


def read_blocks() -> int:
    """Return how many blocks of the job table and its indexes this transaction has read."""
    ((found,),) = raw(f"SELECT sum(pg_stat_get_xact_blocks_fetched(oid)) FROM ({_RELATIONS}) AS relations")
    return int(found)


def measure() -> dict[str, int]:
    """Return the blocks that each operation reads."""
    return {name: blocks(name) for name in OPERATIONS}


def blocks(name: str) -> int:
    """Return the blocks that an operation reads: the fewest of three runs, as a run marks dead rows for the next."""
    return min(_blocks({**OPERATIONS, **LISTS}[name]) for _ in range(3))


def _blocks(prepare: Callable[[], Callable[[], Any]]) -> int:
    with undone():
        act = prepare()
        before = read_blocks()
        act()
        return read_blocks() - before


def enqueue(type: str, args: Any = None, **options: Any) -> None:
    """Enqueue; a rejection is an answer, too."""
    with suppress(DuplicateJob):
        Job.objects.enqueue(type, args, **options)


def _enqueue(type: str, args: Any = None, **options: Any) -> Callable[[], Any]:
    return lambda: lambda: enqueue(type, args, **options)


def _enqueue_many(items: list[dict[str, Any]]) -> Callable[[], Any]:
    return lambda: lambda: Job.objects.enqueue_many(items)


def _claim(
    limit: int,
    types: list[str] | None = None,
    fronts: Sequence[Any] = (),
    *,
    queues: Sequence[str] = QUEUES,
    with_rules: frozenset[str] | None = frozenset(),
) -> list[Any]:
    jobs = Job.objects.all()
    claimed = claim(
        jobs,
        queues=queues,
        types=types,
        limit=limit,
        worker_id="w",
        lease=LEASE,
        now=timezone.now(),
        with_rules=with_rules,
        fronts=fronts,
    )
    return list(claimed)


def _claims(limit: int, types: list[str] | None = None) -> Callable[[], Any]:
    def prepare() -> Callable[[], Any]:
        fronts = Fronts(Job.objects.all())
        fronts.look(QUEUES, types)
        return lambda: _claim(limit, types, fronts.of(QUEUES))

    return prepare


def _behind_unknown_types() -> Callable[[], Any]:
    for number in range(5):
        Job.objects.enqueue("known", {"n": number}, queue=QUEUES[number % 4])
    return _claims(10, ["known"])()


def _with_claimed(limit: int, act: Callable[[list[Any]], Any]) -> Callable[[], Any]:
    def prepare() -> Callable[[], Any]:
        held = _claim(limit)
        return lambda: act(held)

    return prepare


def _fail(held: list[Any]) -> None:
    error = {"type": "E", "code": "handler_error", "message": "no", "attempt": 1}
    finalize(Job.objects.all(), [RunResult(job, error=error, error_types=("E",)) for job in held])


def _some(**changes: Any) -> Callable[[], list[Any]]:
    """Give five waiting jobs other values, and return their ids."""

    def prepare() -> list[Any]:
        ids = [row.pk for row in Job._base_manager.filter(state="available", finished_at=None)[:5]]
        Job._base_manager.filter(pk__in=ids).update(**changes)
        return ids

    return prepare


def _upkeep(act: Callable[[Any, Any], Any], **changes: Any) -> Callable[[], Any]:
    def prepare() -> Callable[[], Any]:
        _some(**{name: value() if callable(value) else value for name, value in changes.items()})()
        return lambda: act(Job.objects.all(), timezone.now())

    return prepare


def _of_one(act: Callable[[Any], Any]) -> Callable[[], Any]:
    def prepare() -> Callable[[], Any]:
        job = Job.objects.get(pk=_some()()[0])
        return lambda: act(job)

    return prepare


def _ago() -> Any:
    return timezone.now() - timedelta(minutes=1)


def _replaced_often() -> Callable[[], Any]:
    """A hot key that replaces: its cancelled jobs are many, and one waits."""
    enqueue(HOT, unique={"keys": ["type"], "on_conflict": "replace"})
    return lambda: enqueue(HOT, unique={"keys": ["type"], "on_conflict": "replace"})


_HOT = {"keys": ["type"]}
_ARGS = {"keys": ["type", "args"]}
_PAST = {"run_at": _ago, "enqueued_at": None}

OPERATIONS: dict[str, Callable[[], Callable[[], Any]]] = {
    "enqueue, new": _enqueue("new", unique={}),
    "enqueue, new, replace": _enqueue("new", unique={"on_conflict": "replace"}),
    "enqueue, new within a window": _enqueue("new", unique=WINDOW),
    "enqueue, new of a hot key": _enqueue(HOT, unique=_HOT),
    "enqueue, ignored": lambda: _second("ignore"),
    "enqueue, rejected": lambda: _second("reject"),
    "enqueue, replacing": lambda: _second("replace"),
    "enqueue, replacing, of a hot key": _replaced_often,
    "enqueue, ignored within a window of a hot key": lambda: _again_within_a_window("ignore"),
    "enqueue, replacing within a window of a hot key": lambda: _again_within_a_window("replace"),
    "enqueue, key, new": _enqueue("new", key="k"),
    "enqueue, key, rewritten": lambda: _keyed(),
    "explain": lambda: lambda: Job.objects.explain(HOT, unique=_HOT),
    "enqueue_many, 100 new": _enqueue_many([{"type": "new", "args": {"n": n}, "unique": _ARGS} for n in range(100)]),
    "enqueue_many, 100 ignored": lambda: _many_again("ignore"),
    "enqueue_many, 100 replacing": lambda: _many_again("replace"),
    "enqueue_many, a plain and a throttled one of a hot key": _enqueue_many(
        [{"type": "new", "unique": _HOT}, {"type": HOT, "unique": {**_HOT, **WINDOW, "on_conflict": "ignore"}}]
    ),
    "claim, 1": _claims(1),
    "claim, 10": _claims(10),
    "claim, of types": _claims(10, ["waiting", "other"]),
    "claim, behind unknown types": lambda: _behind_unknown_types(),
    "queues that have jobs": lambda: lambda: waiting_queues(Job.objects.all()),
    "queues with rules": lambda: lambda: queues_with_rules(Job.objects.all(), QUEUES),
    "finalize, 5 completed": _with_claimed(
        5, lambda held: finalize(Job.objects.all(), [RunResult(job, result=None) for job in held])
    ),
    "finalize, 5 failed": _with_claimed(5, _fail),
    "extend 5 leases": _with_claimed(5, lambda held: extend(Job.objects.all(), held, LEASE)),
    "requeue 5": _with_claimed(5, lambda held: requeue(Job.objects.all(), held)),
    "promote 5": _upkeep(timers.promote, state="scheduled", **_PAST),
    "promote 5 that must look": _upkeep(
        superseded.promote, state="retryable", unique={"on_retry": "discard", "keys": ["type", "args"]}, **_PAST
    ),
    "look": _upkeep(look, state="scheduled", **_PAST),
    "look for queues": _upkeep(lambda jobs, now: look(jobs, now, dict.fromkeys(QUEUES)), state="scheduled", **_PAST),
    "rescue 5": _upkeep(timers.rescue, state="active", attempt=1, lease_token=uuid4, lease_expires_at=_ago),
    "expire 5": _upkeep(timers.expire, expires_at=_ago),
    "prune nothing": lambda: lambda: prune(Job.objects.all(), timezone.now() - timedelta(days=60)),
    "prune 5": lambda: _prune(),
    "cancel": _of_one(lambda job: job.cancel()),
    "retry a job of a hot key": lambda: _retry(),
    "limits: claim": lambda: _claim_by_rules(),
    "limits: finalize": lambda: _finalize_by_rules(),
    "fire periodic jobs": lambda: _fire(),
    "advance a workflow": lambda: _advance(),
    "limits: enqueue": _enqueue("new", limit=Limit(key=["type"], running=1)),
    "release a key": _of_one(lambda job: job.release_unique_key()),
}
LISTS: dict[str, Callable[[], Callable[[], Any]]] = {
    "list of an unknown type": lambda: lambda: _list("--type", "no"),
    "list of an unknown worker": lambda: lambda: _list("--worker", "w"),
    "list of a queue": lambda: lambda: _list("--state", "completed", "--queue", "no"),
    "list of a state": lambda: lambda: _list("--state", "discarded"),
    "list of a state since a moment": lambda: lambda: _list("--state", "completed", "--since", "PT1S"),
    "counts of a queue": lambda: lambda: _count(),
}
"""What reads `MOST` rows several times, each with its blocks of an index; PostgreSQL knows how many rows there are."""


def _ended(state: str = "completed", **fields: Any) -> Any:
    now = timezone.now()
    values = {"type": HOT, "finished_at": now, "created_at": now, "unique": UniquePolicy(keys=["type"]).to_dict()}
    return insert(**{**values, "fingerprint": fingerprint_of(HOT), "state": state, **fields})


def _again_within_a_window(strategy: str) -> Callable[[], Any]:
    _ended()
    return lambda: enqueue(HOT, unique={**_HOT, **WINDOW, "on_conflict": strategy})


def _retry() -> Callable[[], Any]:
    job = _ended("discarded")
    return lambda: job.retry()


def _limited() -> list[Any]:
    """Enqueue jobs of two keys, and claim one of each."""
    for number in range(10):
        limit = Limit(key=["type", "args.key"], running=1)
        Job.objects.enqueue("limited", {"key": number % 2, "n": number}, queue="l", limit=limit)
    return _claim(5, ["limited"], queues=["l"], with_rules=None)


def _claim_by_rules() -> Callable[[], Any]:
    finalize(Job.objects.all(), [RunResult(job, result=None) for job in _limited()])
    return lambda: _claim(5, ["limited"], queues=["l"], with_rules=None)


def _finalize_by_rules() -> Callable[[], Any]:
    held = _limited()
    return lambda: finalize(Job.objects.all(), [RunResult(job, result=None) for job in held])


def _fire() -> Callable[[], Any]:
    for number in range(5):
        CronJob.objects.define(f"c{number}", "* * * * *", "periodic", {"n": number}, unique={})
    CronJob.objects.update(next_run_at=timezone.now() - timedelta(minutes=2))
    return lambda: cron.tick("default", timezone.now())


def _advance() -> Callable[[], Any]:
    chain({"type": "step", "queue": "w"}, {"type": "step", "queue": "w"}).enqueue()
    finalize(Job.objects.all(), [RunResult(job, result=None) for job in _claim(1, ["step"], queues=["w"])])
    return lambda: advance_due("default")


def _prune() -> Callable[[], Any]:
    long_ago = timezone.now() - timedelta(days=100)
    for number in range(5):
        _ended(finished_at=long_ago, fingerprint=f"{number:064}")
    return lambda: prune(Job.objects.all(), timezone.now() - timedelta(days=60))


def _list(*arguments: str) -> None:
    with patch.multiple(bounded, MOST_LOOKED_AT=MOST, MOST_COUNTED=MOST):
        call_command("jobs", "list", *arguments, stdout=StringIO(), stderr=StringIO())


def _count() -> None:
    with patch.object(queues, "MOST_COUNTED", MOST):
        queues.counts("default", "q1")


def _second(strategy: str) -> Callable[[], Any]:
    enqueue("second", unique={"on_conflict": strategy})
    return lambda: enqueue("second", unique={"on_conflict": strategy})


def _keyed() -> Callable[[], Any]:
    enqueue("keyed", key="k")
    return lambda: enqueue("keyed", key="k")


def _many_again(strategy: str) -> Callable[[], Any]:
    items = [{"type": "m", "args": {"n": n}, "unique": {**_ARGS, "on_conflict": strategy}} for n in range(100)]
    Job.objects.enqueue_many(items)
    return lambda: Job.objects.enqueue_many(items)
