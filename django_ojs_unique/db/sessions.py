"""Sessions: give each job database connections without traces of earlier jobs.

The drivers of PostgreSQL and SQLite report an open transaction. No driver reports ``SET`` or ``PREPARE``, and that of
MySQL does not report ``BEGIN``: so a `Session` reads each statement before it is executed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from threading import local
from typing import Any

from django.db import connections
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

from .statements import Effect, effects_of
from .transactions import open_here

logger = logging.getLogger("django_ojs_unique.worker")

_OPEN = {1, 2, 3}
"""The states of PostgreSQL's client library: active, in a transaction, in a failed transaction."""
_UNLOCK_ALL = {"postgresql": "SELECT pg_advisory_unlock_all()", "mysql": "DO RELEASE_ALL_LOCKS()"}


class Session:
    """Notes what was done to a connection's session since it was opened; it is one of its ``execute_wrappers``."""

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self.as_new()

    def as_new(self) -> None:
        """Forget what was done, because the connection is new."""
        self.has_begun = self._has_changed = False
        self.locks = 0

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        effects = effects_of(sql, self._connection)
        # The backend of django-tenants sets the search path anew with each cursor, so the next job does not find it.
        if effects and not getattr(self._connection, "_setting_search_path", False):
            self._note(effects, params)
        return execute(sql, params, many, context)

    @property
    def is_changed(self) -> bool:
        """Whether the next job would find changes of this one."""
        return self._has_changed or self.locks > 0

    @property
    def is_lost(self) -> bool:
        """Whether the driver's connection was closed, and Django does not know."""
        try:
            self.seems_open  # noqa: B018  # the drivers of SQLite and MySQL raise
        except Exception:
            return True
        return bool(getattr(self._connection.connection, "closed", False))  # PostgreSQL's

    @property
    def seems_open(self) -> bool:
        """Whether a transaction is open, as far as this process knows without a query."""
        raw: Any = self._connection.connection
        if raw is None:
            return False
        match self._connection.vendor:
            case "postgresql":
                return (getattr(raw, "pgconn", None) or raw.info).transaction_status in _OPEN  # `pgconn` is faster
            case "sqlite":
                return bool(raw.in_transaction)
            case "mysql":
                return self.has_begun or not raw.get_autocommit()
        return self._connection.in_atomic_block

    @property
    def is_open(self) -> bool:
        """Whether a transaction is open."""
        return self.seems_open and (self._connection.vendor != "mysql" or self._asks())

    def _asks(self) -> bool:
        raw: Any = self._connection.connection
        try:
            with raw.cursor() as cursor:
                cursor.execute("SELECT @@in_transaction")
                return bool(cursor.fetchone()[0])
        except Exception:  # MySQL has no such variable
            return self.has_begun or self._connection.in_atomic_block

    def _note(self, effects: Sequence[Effect], params: Any) -> None:
        for effect in effects:
            match effect:
                case Effect.BEGINS:
                    self.has_begun = True
                case Effect.ENDS:
                    self.has_begun = False
                case Effect.LOCKS:
                    self.locks += 1
                case Effect.UNLOCKS:
                    self.locks = max(self.locks - 1, 0)
                case Effect.UNLOCKS_ALL:
                    self.locks = 0
                case Effect.CONFIGURES:  # set_config(name, value, is_local)
                    self._has_changed = self._has_changed or not (params and list(params)[-1] is True)
                case Effect.CHANGES:
                    self._has_changed = True


class Share:
    """What one async run did on the connections that all async runs share."""

    def __init__(self) -> None:
        self.sessions: set[SharedSession] = set()
        self.is_over = False

    @property
    def leaves_something(self) -> bool:
        """Whether to call `renew`. Any thread may read this, even while other runs use the connections."""
        return any(
            session.is_lost or session.is_changed or (session.opener is self and session.seems_open)
            for session in self.sessions
        )


class SharedSession(Session):
    """A session that several async runs use in turn; it knows which of them opened its transaction or changed it."""

    opener: Share | None = None

    def as_new(self) -> None:
        super().as_new()
        self._block: Any = None
        self._changers: set[Share] = set()

    def __call__(self, execute: Callable[..., Any], sql: Any, params: Any, many: bool, context: Any) -> Any:
        share = _share.get()
        if self._is_another_transaction():
            self.opener = share
        if share is not None:
            share.sessions.add(self)
        return super().__call__(execute, sql, params, many, context)

    def _is_another_transaction(self) -> bool:
        """Whether the next statement begins a transaction, or is the first in one that the driver began by itself."""
        before, blocks = self._block, self._connection.atomic_blocks
        self._block = blocks[0] if blocks else None
        return not self.seems_open or self._block is not before or self.opener is None or self.opener.is_over

    def is_of_another(self, share: Share | None) -> bool:
        """Whether another run that has not ended opened its transaction, or relies on a change, such as a lock."""
        if self.is_lost:
            return False
        if self.seems_open:
            return self.opener not in (None, share) and not self.opener.is_over
        return self.is_changed and any(other is not share and not other.is_over for other in self._changers)

    def _note(self, effects: Sequence[Effect], params: Any) -> None:
        super()._note(effects, params)
        self._changers = {share for share in self._changers if self.is_changed and not share.is_over}
        if self.is_changed and (share := _share.get()) is not None:
            self._changers.add(share)


_watched = local()
_share: ContextVar[Share | None] = ContextVar("ojs_share", default=None)
_kept: ContextVar[frozenset[str] | None] = ContextVar("ojs_kept", default=None)


def watch(kind: type[Session] = Session) -> None:
    """From now on, note what this thread does on its connections through Django."""
    # The last of the receivers: what the project's own receivers do to a new connection belongs to its initial state.
    connection_created.connect(_begin, dispatch_uid="django_ojs_unique.db.sessions")
    _watched.kind = kind
    for connection in connections.all(initialized_only=True):
        _begin(connection)


@contextmanager
def watched() -> Iterator[None]:
    """Note what this thread does on its connections during the block; the block must call `renew`."""
    watch()
    try:
        yield
    finally:
        _watched.kind = None
        for connection in connections.all(initialized_only=True):
            if (session := _session(connection)) is not None:
                connection.execute_wrappers.remove(session)


@contextmanager
def keeping() -> Iterator[None]:
    """Let `renew` leave alone the connections on which the caller of the block has a transaction open."""
    token = _kept.set(frozenset(open_here()))
    try:
        yield
    finally:
        _kept.reset(token)


def keeps() -> bool:
    """Whether the connections belong to the caller of a `keeping` block."""
    return _kept.get() is not None


@contextmanager
def sharing() -> Iterator[Share]:
    """Yield the `Share` that notes what the block does on the connections of the async handlers."""
    share = Share()
    token = _share.set(share)
    try:
        yield share
    finally:
        _share.reset(token)
        share.is_over = True


def renew(share: Share | None = None, *, interrupted: bool = False) -> list[str]:
    """Close connections that are broken, changed or inside a transaction; keep the others, as connecting is slow.

    Return the aliases of the connections with an open transaction: what was written in it is undone.
    """
    left_open: list[str] = []
    kept = _kept.get() or ()
    for connection in connections.all(initialized_only=True):
        session = _session(connection)
        if connection.alias in kept:
            continue
        if isinstance(session, SharedSession) and session.is_of_another(share):
            continue
        try:
            is_open = (session or Session(connection)).is_open
            is_spoilt = (
                is_open
                or interrupted
                or connection.in_atomic_block
                or connection.errors_occurred
                or not connection.autocommit
                or getattr(connection.connection, "closed", False)
                or (session is not None and session.is_changed)
            )
        except Exception:  # the driver's connection is closed
            is_open, is_spoilt = False, True
        if is_open:
            left_open.append(connection.alias)
        if is_spoilt:
            with suppress(Exception):  # a connection that cannot be closed is dropped anyway
                _close(connection, is_open=is_open, locks=session is not None and session.locks > 0)
        elif connection.settings_dict["CONN_MAX_AGE"]:
            with suppress(Exception):
                connection.close_if_unusable_or_obsolete()
    return left_open


def renew_after_receivers(share: Share | None = None) -> None:
    """Call `renew` after receivers of signals, and log the transactions that they left open."""
    for alias in renew(share):
        logger.error(
            "A receiver of a signal left a transaction open on the database %r, so all that it wrote there is undone."
            " Write `with transaction.atomic():` in the receiver.",
            alias,
        )


def _begin(connection: BaseDatabaseWrapper, **kwargs: Any) -> None:
    kind: type[Session] | None = getattr(_watched, "kind", None)
    if kind is None:
        return
    if (session := _session(connection)) is None:
        # At the start of the list: if a connection is made inside an `execute_wrapper`, Django removes the last one at
        # the end of that.
        connection.execute_wrappers.insert(0, kind(connection))
    else:
        session.as_new()


def _session(connection: BaseDatabaseWrapper) -> Session | None:
    for wrapper in connection.execute_wrappers:
        if isinstance(wrapper, Session):
            return wrapper
    return None


def _close(connection: Any, *, is_open: bool, locks: bool) -> None:
    """Free the locks of a connection, then close it: otherwise the server frees them some time later."""
    raw, connection.in_atomic_block = connection.connection, False  # or Django keeps the closed connection
    with suppress(Exception):
        if is_open:
            raw.rollback()
        if locks and connection.vendor in _UNLOCK_ALL:
            with raw.cursor() as cursor:
                cursor.execute(_UNLOCK_ALL[connection.vendor])
    if getattr(raw, "_pool", None) is not None:
        raw.close()  # or the pool would give it to the next user
    connection.close()
    if connection.connection is not None:  # a database in memory is never closed
        connection.atomic_blocks, connection.savepoint_ids, connection.run_on_commit = [], [], []
        connection.needs_rollback = False
        connection.set_autocommit(True)
