"""PostgreSQL: conflicts are skipped, a batch is one statement, and an enqueue wakes the workers."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from datetime import datetime, timedelta
from functools import cache
from operator import attrgetter
from typing import Any
from uuid import UUID

from django.apps import apps
from django.db import models

from ..conf import settings
from ..ojs.states import INCOMPLETE, JobState
from ..unique.policy import UniquePolicy, Window
from .constraints import finished, unfinished_or_holding
from .dialect import FEW_ROWS, ClaimRequest, Dialect, Front, LookUp, as_it_is
from .fast.cursors import KeptCursor, Plan, execute
from .fast.rows import RowReader, UnreadRows
from .inserts import CHANNEL, TO_JSON, Row, bare_array, kept
from .sessions import Session
from .transactions import is_callers

_HEX = attrgetter("hex")
_READ_COMMITTED = 2
"""The driver's number of PostgreSQL's default isolation level; those of stricter ones are higher."""
LARGEST_STATEMENT = 2**25
"""In characters: PostgreSQL takes up to a gigabyte, but holds each statement in memory several times."""

# Written as joins, these statements were slow for batches of some sizes: the planner chose to read the whole table.
_CLAIM = """
UPDATE {table} AS job SET
  state = 'active', unique_states = {unique_states_if_active}, attempt = job.attempt + 1, started_at = %(now)s,
  worker_id = %(worker_id)s, lease_token = %(token)s, unconfirmed = %(unconfirmed)s,
  progress = NULL, progress_note = NULL{blocked_by},
  lease_expires_at = least(
    statement_timestamp()
      + coalesce(%(forced_ms)s::bigint, job.visibility_timeout_ms, %(lease_ms)s::bigint) * interval '1 millisecond',
    CASE WHEN %(timed)s THEN %(now)s + job.timeout_ms * interval '1 millisecond' END
  )
WHERE job.id = ANY(ARRAY({chosen})) RETURNING {columns}
"""
_WAITS = "queue = queue.name AND state = 'available' AND blocked_by = '' AND finished_at IS NULL"
_HAS_TYPE = "(%(types)s::text[] IS NULL OR type = ANY(%(types)s::text[]))"
_FIRST_OF_QUEUES = """
  WITH queue AS MATERIALIZED (
    SELECT queue.* FROM unnest(%(queues)s::text[], %(rooms)s::int[]{fronts})
      WITH ORDINALITY AS queue (name, room{front}, number) LEFT JOIN {queues} AS rule ON rule.name = queue.name
    WHERE rule.paused_at IS NULL AND rule.concurrency_limit IS NULL AND rule.max_per_second IS NULL
  ){shares}
  SELECT next.id FROM queue{with_share} CROSS JOIN LATERAL (
    SELECT id, priority, enqueued_at {may_start} LIMIT {room} FOR UPDATE SKIP LOCKED
  ) AS next ORDER BY next.priority DESC, next.enqueued_at, next.id LIMIT %(limit)s
"""
_MAY_START = """
    FROM {table} WHERE {waits} AND {has_type}{behind}
      AND (expires_at IS NULL OR expires_at > %(now)s OR started_at IS NOT NULL)
    ORDER BY priority DESC, enqueued_at, id
"""
_SHARES = """, share AS MATERIALIZED (
    SELECT number, count(*) FROM (
      SELECT number FROM queue CROSS JOIN LATERAL (
        SELECT id, priority, enqueued_at {may_start} LIMIT queue.room
      ) AS next ORDER BY next.priority DESC, next.enqueued_at, next.id LIMIT %(limit)s
    ) AS first GROUP BY number
  )
"""
"""How many of the first jobs each queue has. A claim locks as many, and one more in case others have locked these."""
_FROM_MANY = {
    "{shares}": _SHARES,
    "{with_share}": " LEFT JOIN share ON share.number = queue.number",
    "{room}": "least(queue.room, 1 + coalesce(share.count, 0))",
}
_FROM_ONE = {"{shares}": "", "{with_share}": "", "{room}": "queue.room"}
_CHOSEN_JOBS = """
  SELECT id FROM {table} WHERE id = ANY(%(ids)s::uuid[]) AND state = 'available'
    AND revision = (%(revisions)s::int[])[array_position(%(ids)s::uuid[], id)] FOR UPDATE SKIP LOCKED
"""
_AT_FRONTS = {
    "{fronts}": ", %(priorities)s::int[], %(since)s::timestamptz[]",
    "{front}": ", priority, since",
    "{behind}": " AND priority = queue.priority AND enqueued_at >= queue.since",
}
_BLOCKS = " + ".join(f"pg_stat_get_xact_blocks_fetched('{name}'::regclass)" for name in ("{table}", "ojs_job_live"))
_COST_OF_FIRSTS = f"""
SELECT ({_BLOCKS}) - earlier.blocks, statement_timestamp()
FROM (SELECT {_BLOCKS} AS blocks) AS earlier CROSS JOIN LATERAL (
  SELECT count(*) FROM unnest(%(queues)s::text[]) AS queue (name) CROSS JOIN LATERAL (
    SELECT FROM {{table}} WHERE {{waits}} AND {{has_type}} ORDER BY priority DESC, enqueued_at, id LIMIT 1
  ) AS first WHERE earlier.blocks >= 0
) AS looks
"""
"""The blocks are those that this session has read since it last told the server, about once a second."""
_FRONTS_OF_QUEUES = """
SELECT queue.name, front.priority, front.enqueued_at
FROM unnest(%(queues)s::text[]) AS queue (name) CROSS JOIN LATERAL (
  WITH RECURSIVE step AS (
    (SELECT priority, enqueued_at FROM {table} WHERE {waits} AND {has_type}
    ORDER BY priority DESC, enqueued_at, id LIMIT 1)
    UNION ALL
    SELECT next.priority, next.enqueued_at FROM step CROSS JOIN LATERAL (
      SELECT priority, enqueued_at FROM {table} WHERE {waits} AND {has_type} AND priority < step.priority
      ORDER BY priority DESC, enqueued_at, id LIMIT 1
    ) AS next
  ) SELECT * FROM step LIMIT {most}
) AS front
"""
_MOST_PRIORITIES = 20
"""Of a queue: the fronts of the highest ones are read."""
_BEGINS: dict[Any, str] = {Window.DUE: "coalesce(found.scheduled_at, found.created_at)"}
"""The SQL of `UniquePolicy.begins`, where it is not ``created_at``."""
_NEW_BLOCK = ", blocked_by = (%(blocks)s::text[])[array_position(%(ids)s::uuid[], job.id)]"
_COMPLETE = """
UPDATE {table} AS job SET
  state = 'completed', unique_states = {unique_states_if_completed}, finished_at = run.at, result = run.result::jsonb,
  skipped = NULLIF(run.skipped, ''), lease_token = NULL, lease_expires_at = NULL, unconfirmed = NULL
FROM unnest(
  %(ids)s::uuid[], %(tokens)s::uuid[], %(at)s::timestamptz[], %(results)s::text[], %(skipped)s::text[]
) AS run (id, token, at, result, skipped) CROSS JOIN LATERAL (
  SELECT id FROM {table} WHERE id = run.id AND lease_token = run.token AND state = 'active'
  LIMIT 1 FOR UPDATE SKIP LOCKED
) AS held WHERE job.id = held.id RETURNING job.id
"""


class PostgreSQL(Dialect):
    """PostgreSQL.

    `claim` and `complete` do to each row what `lifecycle.claim` and `lifecycle.complete` do; a test compares the rows.
    """

    name = "postgresql"
    mechanism = (
        "partial unique index on fingerprint while the state is one of the row's unique states; ON CONFLICT DO NOTHING"
    )
    can_notify = True
    lets_rivals_in = True
    has_lateral = True
    claims_at_once = True
    finds_fronts = True
    keeps_unicode_in_json = True

    @staticmethod
    def select_texts(texts: Sequence[str]) -> tuple[str, list[Any]]:
        return "SELECT unnest(%s::text[])", [list(texts)]  # many parts would be compiled, for seconds

    @property
    def repeats_reads(self) -> bool:  # type: ignore[override]
        return bool((self.connection.isolation_level or 0) > _READ_COMMITTED)  # type: ignore[attr-defined]

    @staticmethod
    def among(column: str, values: Sequence[str]) -> tuple[str, list[Any]]:
        return f"{column} = ANY(%s::text[])", [bare_array(values)]

    def decides_at_once(self, policy: UniquePolicy) -> bool:
        # While the statement runs, another job may be enqueued, run and finish. It has released its unique key then, so
        # the constraint does not stop this insert. A policy that counts finished jobs must stop it.
        return INCOMPLETE.issuperset(policy.states)

    def read_anew(self) -> None:
        if self.repeats_reads and not is_callers(self.connection):
            with self.connection.cursor() as cursor:
                cursor.execute("SET TRANSACTION ISOLATION LEVEL READ COMMITTED")

    def find(self, rows: Any, fingerprints: Sequence[str], ended: Sequence[str]) -> Any:
        # A few index look-ups for each fingerprint: with old statistics, a plain query would read the whole table.
        newest_first = rows.filter(finished()).order_by("-created_at", "-pk")
        parts = [rows.filter(unfinished_or_holding()), *(newest_first.filter(state=state) for state in ended)]
        selects, parameters = [], [list(fingerprints)]
        for number, part in enumerate(parts):
            sql, values = part.extra(where=["fingerprint = wanted.name"]).query.sql_with_params()
            selects.append(f"({sql} {'LIMIT 1' if number else 'OFFSET 0'})")
            parameters += values
        return rows.model._default_manager.using(rows.db).raw(
            "SELECT found.* FROM unnest(%s::text[]) AS wanted (name)"
            f" CROSS JOIN LATERAL ({' UNION ALL '.join(selects)}) AS found",
            parameters,
        )

    def wake(self, queues: Collection[str]) -> None:
        if queues and settings.notify:
            with self.connection.cursor() as cursor:
                cursor.execute("SELECT pg_notify(%s, q) FROM unnest(%s::text[]) AS q", [CHANNEL, sorted(queues)])

    def claim(self, wanted: ClaimRequest, overlap: Callable[[], Any] | None = None) -> UnreadRows:
        many = len(wanted.fronts or wanted.rooms) > 1
        reader, statement = self._claim(wanted.fields, wanted.blocks is not None, bool(wanted.fronts), many)
        lease_ms = wanted.lease // timedelta(milliseconds=1)
        _, rows = execute(
            self,
            statement,
            {
                "now": wanted.now,
                "worker_id": wanted.worker_id,
                "token": wanted.token,
                "lease_ms": lease_ms,
                "forced_ms": lease_ms if wanted.is_forced else None,
                "queues": [front.queue for front in wanted.fronts] or list(wanted.rooms),
                "rooms": [wanted.rooms[front.queue] for front in wanted.fronts] or list(wanted.rooms.values()),
                "priorities": [front.priority for front in wanted.fronts],
                "since": [front.since for front in wanted.fronts],
                "timed": wanted.is_timed,
                "unconfirmed": wanted.is_unconfirmed or None,
                "types": None if wanted.types is None else list(wanted.types),
                "limit": wanted.limit,
                "ids": None if wanted.blocks is None else bare_array([id.hex for id in wanted.blocks]),
                "blocks": None
                if wanted.blocks is None
                else bare_array([block or '""' for block in wanted.blocks.values()]),
                "revisions": bare_array(map(str, wanted.revisions)),
            },
            overlap,
            _plan_for(wanted.limit if wanted.blocks is None else len(wanted.blocks)),
        )
        return UnreadRows(reader, rows)

    @kept
    def _claim(
        self, fields: tuple[str, ...], is_chosen: bool, at_fronts: bool, from_many: bool
    ) -> tuple[RowReader, str]:
        """Return the reader of the claimed rows, and the statement that claims them."""
        reader = RowReader(self.model, self.connection, fields)
        columns = ", ".join(f'job."{column}"' for column in reader.columns)
        parts = {"{chosen}": _CHOSEN_JOBS, "{blocked_by}": _NEW_BLOCK}
        if not is_chosen:
            parts = {"{chosen}": _FIRST_OF_QUEUES, "{blocked_by}": "", **(_FROM_MANY if from_many else _FROM_ONE)}
            parts |= {"{may_start}": _MAY_START, **(_AT_FRONTS if at_fronts else dict.fromkeys(_AT_FRONTS, ""))}
        text = _CLAIM
        for place, part in parts.items():
            text = text.replace(place, part)
        return reader, _statement(text, self.model).replace("{columns}", columns)

    def blocks_read(self) -> str:
        return _statement(_BLOCKS, self.model)

    def cost_of_firsts(self, queues: Collection[str], types: Collection[str] | None) -> tuple[int, datetime]:
        _, ((blocks, began),) = execute(self, _statement(_COST_OF_FIRSTS, self.model), _arrays(queues, types))
        return blocks, began

    def fronts(self, queues: Collection[str], types: Collection[str] | None) -> list[Front]:
        statement = _statement(_FRONTS_OF_QUEUES, self.model)
        _, rows = execute(self, statement, _arrays(queues, types), plan=Plan.ONCE)
        return [Front(*row) for row in rows]

    def complete(self, runs: Sequence[Any]) -> set[UUID]:
        results = [None if run.result is None else TO_JSON(run.result) for run in runs]
        skipped = [run.skipped for run in runs]
        parameters = {
            # Texts: of a list, the driver would look at each value.
            "ids": bare_array([run.job.id.hex for run in runs]),
            "tokens": bare_array([run.job.lease_token.hex for run in runs]),
            "at": bare_array([run.at.isoformat() for run in runs]),
            "results": results if any(results) else None,
            "skipped": skipped if any(skipped) else None,
        }
        _, rows = execute(self, _statement(_COMPLETE, self.model), parameters, plan=_plan_for(len(runs)))
        return {id for (id,) in rows}

    def condition_of(self, constraint: str) -> str:
        with self.connection.cursor() as cursor:
            cursor.execute(
                "SELECT pg_get_expr(indpred, indrelid) FROM pg_index WHERE indexrelid = to_regclass(%s) AND indisvalid",
                [constraint],
            )
            (sql,) = cursor.fetchone() or ("FALSE",)
        return str(sql or "TRUE")

    def inserts_alone(self) -> bool:
        self.connection.ensure_connection()  # before, its autocommit is not known
        return self._is_alone()

    def insert_new(self, jobs: Sequence[Row], overlap: Callable[[], Any] | None = None) -> Collection[UUID] | None:
        available = {job["queue"] for job in jobs if job["state"] == JobState.AVAILABLE} if settings.notify else ()
        statement, parameters = self.table.insert_arrays_and_wake(jobs, sorted(available))
        if _is_too_large(parameters):
            return None
        _, ((ids,),) = execute(self, statement, parameters, overlap, Plan.ONCE)
        return {job["id"] for job in jobs} if ids is None else ids

    def records_at_once(self, policy: UniquePolicy) -> bool:
        # For a period of months the start of the window is only a bound for the query: the caller must judge the job.
        return policy.duration is None or isinstance(policy.duration, timedelta)

    def find_and_record(self, wanted: LookUp, records: Dialect, record: Row) -> Any | None:
        query, parameters = self._duplicate(wanted)
        columns, values = records.table.written(record)
        states, after = [str(state) for state in wanted.policy.states], wanted.created_after
        begins = "" if after is None else _BEGINS.get(wanted.policy.window, "found.created_at")
        statement = records.table.find_and_insert(query, columns, begins, self._is_alone())
        parameters += [*values, states, record["created_at"], *filter(None, [after])]
        return self._read(statement, parameters, wanted.full_row)

    def _is_alone(self) -> bool:
        """Whether the next statement is a transaction of its own; the driver knows of all, Django only of its own."""
        is_open = self.connection.in_atomic_block or not self.connection.autocommit
        return not is_open and not Session(self.connection).seems_open

    def new_cursor(self) -> KeptCursor | None:
        try:
            from .fast.prepared import PreparingCursor, is_djangos
        except ImportError:  # psycopg2
            return None
        return PreparingCursor(self.connection) if is_djangos(self.connection) else None

    def placeholder(self, field: Any) -> str:
        # Without a type, a parameter of a SELECT would be text. The assignment to the column checks the length.
        return f"%s::{field.db_type(self.connection).partition('(')[0]}"

    def adapter(self, field: Any) -> Callable[[Any], Any]:
        match field:
            case models.JSONField():
                return TO_JSON
            case models.UUIDField():
                return _HEX
            case models.DateTimeField():
                return as_it_is
        return super().adapter(field)

    def _wakes_workers(self, job: Row) -> bool:
        return bool(job["state"] == JobState.AVAILABLE and settings.notify)

    def _insert_some(self, rows: Sequence[Row], *, unless_live: bool) -> int:
        if len(rows) == 1 and not unless_live:
            return super()._insert_some(rows, unless_live=False)
        statement, parameters = self.table.insert_arrays(rows, unless_live=unless_live)
        if _is_too_large(parameters) and len(rows) > 3:
            half = len(rows) // 2
            return sum(self._insert_some(some, unless_live=unless_live) for some in (rows[:half], rows[half:]))
        return execute(self, statement, parameters)[0]


def _arrays(queues: Collection[str], types: Collection[str] | None) -> dict[str, Any]:
    return {"queues": list(queues), "types": None if types is None else list(types)}


def _plan_for(rows: int) -> Plan:
    return Plan.KEPT if rows <= FEW_ROWS else Plan.FRESH


def _is_too_large(parameters: Sequence[Any]) -> bool:
    return sum(len(text) for text in parameters if isinstance(text, str)) > LARGEST_STATEMENT


@cache
def _statement(text: str, model: type[models.Model]) -> str:
    def unique_states_in(state: JobState) -> str:
        return f"CASE WHEN job.unique_states & {state.bit} = {state.bit} THEN job.unique_states ELSE 0 END"

    return (
        text.replace("{waits}", _WAITS)
        .replace("{has_type}", _HAS_TYPE)
        .replace("{most}", str(_MOST_PRIORITIES))
        .replace("{table}", f'"{model._meta.db_table}"')
        .replace("{queues}", f'"{apps.get_model("django_ojs_unique", "Queue")._meta.db_table}"')
        .replace("{unique_states_if_active}", unique_states_in(JobState.ACTIVE))
        .replace("{unique_states_if_completed}", unique_states_in(JobState.COMPLETED))
    )
