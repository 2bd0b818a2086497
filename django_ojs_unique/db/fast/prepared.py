"""A kept cursor of psycopg, which prepares its statements where that is safe."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from datetime import UTC
from typing import Any

import psycopg
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.postgresql.base import Cursor, ServerBindingCursor
from psycopg.pq import Format, PipelineStatus, TransactionStatus
from psycopg.types.datetime import TimestamptzLoader

from ..session_limits import is_pooled
from .cursors import Parameters, Plan

USES_BEFORE_PREPARING = 5
USES_OF_A_PLAN = 1000
"""After this many statements PostgreSQL makes new plans: a plan for an empty table would read the whole full table."""
SECONDS_OF_A_PLAN = 1.0
"""The age of the plans at which it makes new ones for a statement about many rows."""
NEVER_BY_ITSELF = 2**31
"""With this threshold, psycopg manages prepared statements, but prepares only those that ask for it."""
_TIMESTAMPTZ = psycopg.adapters.types["timestamptz"].oid
_FACTORIES: Any = (Cursor, ServerBindingCursor)


class PreparingCursor:
    """Prepares its statements after a few uses, unless a pooler answers instead of the server.

    A pooler may send the next statement to another session, which has prepared nothing. It tells its clients a process
    id that is not the server's: so it is recognised. A ``prepare_threshold`` in ``OPTIONS`` is the project's decision:
    None forbids preparing, a number allows it.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self.raw: Any = connection.connection
        self._connection = connection
        self._cursor = psycopg.Cursor(self.raw)
        if connection.timezone == UTC:
            # Django's own loader does the same, in Python.
            self._cursor.adapters.register_loader("timestamptz", TimestamptzLoader)
        self._uses = 0
        self._planned_at = float("-inf")
        options = connection.settings_dict["OPTIONS"]
        # A pool that resets its connections also discards what they have prepared.
        self._may_prepare = options.get("prepare_threshold", 0) is not None and "reset" not in _pool(options)
        self._asks_the_server = "prepare_threshold" not in options
        self._prepares = False

    def execute(
        self, sql: str, params: Parameters, overlap: Callable[[], Any] | None = None, plan: Plan = Plan.KEPT
    ) -> tuple[int, list[Any]]:
        """Execute one statement; return how many rows it changed or found, and the rows.

        ``overlap`` is called while the database works if the driver supports pipelines, and else before.
        """
        if self._may_prepare:
            self._uses += 1
            if self._uses == USES_BEFORE_PREPARING:
                self._prepare_from_now_on()
            elif self._uses % USES_OF_A_PLAN == 0 or (plan is Plan.FRESH and self._has_old_plans()):
                self._cursor.execute("DISCARD PLANS")
                self._planned_at = time.monotonic()
        execute = self._execute_prepared if self._prepares and plan is not Plan.ONCE else self._execute
        execute(sql, params, overlap)
        result = self._cursor.pgresult
        return self._cursor.rowcount, self._cursor.fetchall() if result is not None and result.ntuples else []

    def _execute_prepared(self, sql: str, params: Parameters, overlap: Callable[[], Any] | None) -> None:
        threshold = self.raw.prepare_threshold
        # Only for this statement: while it prepares, psycopg keeps the texts of the last hundred statements of anybody.
        self.raw.prepare_threshold = NEVER_BY_ITSELF
        try:
            self._execute(sql, params, overlap, prepare=True)
        except (psycopg.errors.FeatureNotSupported, psycopg.errors.InvalidSqlStatementName):
            # A column that it returns has got another type, or the project has discarded what was prepared.
            self._prepares = self._may_prepare = False
            if self.raw.info.transaction_status != TransactionStatus.IDLE:
                raise
            self._execute(sql, params)
        finally:
            self.raw.prepare_threshold = threshold

    def _execute(
        self, sql: str, params: Parameters, overlap: Callable[[], Any] | None = None, *, prepare: bool = False
    ) -> None:
        if overlap is not None and not psycopg.Pipeline.is_supported():
            overlap()
            overlap = None
        if overlap is None:
            self._cursor.execute(sql, params, prepare=prepare)
            return
        try:
            with self.raw.pipeline():  # it waits for the answer at its end
                self._cursor.execute(sql, params, prepare=prepare)
                overlap()
        except BaseException as error:
            if self.raw.info.pipeline_status == PipelineStatus.OFF:
                raise
            # Something interrupted the wait, such as a time limit. The driver can neither go on nor leave the pipeline,
            # and raises an error of its own about this.
            self._connection.close()
            interrupt = error.__context__
            if isinstance(error, psycopg.Error) and not isinstance(interrupt, psycopg.Error | None):
                raise interrupt from None
            raise

    def _has_old_plans(self) -> bool:
        return self._prepares and time.monotonic() > self._planned_at + SECONDS_OF_A_PLAN

    def _prepare_from_now_on(self) -> None:
        self._prepares = self._may_prepare = not (self._asks_the_server and is_pooled(self._connection))


def _pool(options: Mapping[str, Any]) -> Mapping[str, Any]:
    pool = options.get("pool")
    return pool if isinstance(pool, Mapping) else {}


def is_djangos(connection: Any) -> bool:
    """Whether the driver's connection is as Django made it: tracing libraries replace its class or its cursors."""
    raw: Any = connection.connection
    loader: Any = raw.adapters.get_loader(_TIMESTAMPTZ, Format.TEXT) if type(raw) is psycopg.Connection else None
    return loader is not None and raw.cursor_factory in _FACTORIES and loader.timezone == connection.timezone
