"""Listen: let enqueues on PostgreSQL wake the worker, so that it polls less often."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from functools import cache
from selectors import EVENT_READ, DefaultSelector
from threading import Event
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from ..conf import settings
from ..db.dialects import kind_of
from ..db.inserts import CHANNEL
from ..db.session_limits import is_pooled
from .outages import Outages
from .threads import WatchedThread

logger = logging.getLogger("django_ojs_unique.worker")

STOP_SECONDS = 1.0


class Listener:
    """A thread with a connection of its own that calls ``wake(queue)`` for each notification.

    It does nothing where the database or its driver cannot notify, behind a pooler, and while the connection is lost:
    the worker polls anyway.
    """

    def __init__(self, using: str, wake: Callable[[str], None]) -> None:
        self._using = using
        self._wake = wake
        self._stopping = Event()
        self._sockets: tuple[socket.socket, socket.socket] | None = None
        self._thread = WatchedThread("ojs-listen", self._serve)
        self.listening = False
        """Whether notifications arrive now."""

    @property
    def is_alive(self) -> bool:
        """Whether no exception has ended the thread, if there is one."""
        return not self._thread.died

    def start(self) -> None:
        """Start the thread, if this database can notify and `NOTIFY` is on."""
        if kind_of(connections[self._using]).can_notify and settings.notify:
            self._sockets = socket.socketpair()
            self._thread.start()

    def stop(self) -> None:
        """End the thread, and close the connection."""
        self._stopping.set()
        if self._sockets is None:
            return
        self._sockets[1].send(b".")
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():  # else it is still connecting, and will read what was sent
            for one in self._sockets:
                one.close()

    def _serve(self) -> None:
        outages = Outages(self._using, "Lost the connection that listens on %r; trying again")
        while not self._stopping.is_set():
            connection = connections[settings.listen_databases.get(self._using, self._using)].copy()
            try:
                if not self._listen(connection):
                    return
            except (DatabaseError, InterfaceError, OSError, ValueError) as error:
                if self.listening:
                    outages.answered()
                if not self._stopping.is_set():
                    outages.failed(error)
            finally:
                self.listening = False
                connection.close()
            self._stopping.wait(outages.pause)

    def _listen(self, connection: Any) -> bool:
        """Pass on notifications until stopped or the connection is lost; return False if there can be none."""
        before = connection.settings_dict
        # A pool would get the connection back while it still listens.
        options = {name: value for name, value in before["OPTIONS"].items() if name != "pool"}
        connection.settings_dict = {**before, "OPTIONS": options, "CONN_MAX_AGE": None}
        connection.ensure_connection()
        driver = connection.connection
        if not hasattr(driver, "pgconn"):  # psycopg2
            return False
        if self._using not in settings.listen_databases and is_pooled(connection):
            _report_pooler(self._using)
            return False
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        assert self._sockets is not None
        signalled, _ = self._sockets
        self.listening = True
        self._wake("")  # for enqueues before this listened
        with DefaultSelector() as selector:  # `select()` knows no files beyond the first 1,024
            for readable in (driver.fileno(), signalled):
                selector.register(readable, EVENT_READ)
            while not self._stopping.is_set():
                if any(key.fileobj is signalled for key, _ in selector.select()):
                    break
                with connection.wrap_database_errors:
                    driver.pgconn.consume_input()
                    while notification := driver.pgconn.notifies():
                        self._wake(notification.extra.decode())
        return True


@cache
def _report_pooler(using: str) -> None:
    logger.warning(
        "Database %r is reached through a connection pooler, where nothing can listen: polling. To be woken, add a"
        " direct connection to DATABASES and name it in OJS_UNIQUE['LISTEN_DATABASES'].",
        using,
    )
