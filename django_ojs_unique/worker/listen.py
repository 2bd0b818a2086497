"""Listen: be woken by an enqueue on PostgreSQL instead of asking again and again."""

from __future__ import annotations

import logging
import os
import select
from collections.abc import Callable
from functools import cache
from threading import Event, Thread
from typing import Any

from django.db import DatabaseError, InterfaceError, connections

from ..admission import CHANNEL
from ..conf import settings
from .outages import pause_after

logger = logging.getLogger("django_ojs_unique.worker")

STOP_SECONDS = 1.0


class Listener:
    """A thread with a connection of its own that calls ``wake(queue)`` for each notification.

    Where the database or its driver cannot notify, behind a pooler, and while the connection is lost, it does nothing:
    the worker asks at intervals all the same.
    """

    def __init__(self, using: str, wake: Callable[[str], None]) -> None:
        self._using = using
        self._wake = wake
        self._stopping = Event()
        self._pipe = os.pipe()
        self._thread = Thread(target=self._serve, name="ojs-listen", daemon=True)
        self.listening = False
        """Whether an enqueue would be heard just now."""

    def start(self) -> None:
        """Begin, if this database can notify and enqueues do."""
        if connections[self._using].vendor == "postgresql" and settings.notify:
            self._thread.start()

    def stop(self) -> None:
        """End, and close the connection."""
        self._stopping.set()
        os.write(self._pipe[1], b".")
        if self._thread.is_alive():
            self._thread.join(STOP_SECONDS)
        if not self._thread.is_alive():  # else it is connecting, and still reads them
            for end in self._pipe:
                os.close(end)

    def _serve(self) -> None:
        failures = 0
        while not self._stopping.is_set():
            connection = connections[settings.listen_databases.get(self._using, self._using)].copy()
            try:
                if not self._listen(connection):
                    return
            except (DatabaseError, InterfaceError, OSError, ValueError) as error:
                failures = 1 if self.listening else failures + 1
                if not self._stopping.is_set():
                    logger.warning("Lost the connection that listens on %r; trying again: %s", self._using, error)
            finally:
                self.listening = False
                connection.close()
            self._stopping.wait(pause_after(failures))

    def _listen(self, connection: Any) -> bool:
        """Pass on notifications until stopped or the connection is lost; return False where there can be none."""
        before = connection.settings_dict
        # A pool would get the connection back while it still listens.
        options = {name: value for name, value in before["OPTIONS"].items() if name != "pool"}
        connection.settings_dict = {**before, "OPTIONS": options, "CONN_MAX_AGE": None}
        connection.ensure_connection()
        driver = connection.connection
        if not hasattr(driver, "pgconn"):  # psycopg2
            return False
        if self._using not in settings.listen_databases and _is_pooled(connection):
            _report_pooler(self._using)
            return False
        with connection.cursor() as cursor:
            cursor.execute(f"LISTEN {CHANNEL}")
        self.listening = True
        self._wake("")  # for what came while nobody listened
        while not self._stopping.is_set():
            ready, _, _ = select.select([driver.fileno(), self._pipe[0]], [], [])
            if self._pipe[0] in ready:
                break
            with connection.wrap_database_errors:
                driver.pgconn.consume_input()
                while notification := driver.pgconn.notifies():
                    self._wake(notification.extra.decode())
        return True


def _is_pooled(connection: Any) -> bool:
    """Whether somebody answers in the server's place: a pooler gives its clients process ids of its own."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        return bool(cursor.fetchone()[0] != connection.connection.info.backend_pid)


@cache
def _report_pooler(using: str) -> None:
    logger.warning(
        "Database %r is reached through a connection pooler, where nothing can listen: polling. To be woken, add a"
        " direct connection to DATABASES and name it in OJS_UNIQUE['LISTEN_DATABASES'].",
        using,
    )
