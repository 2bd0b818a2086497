"""Find out whether the database answers, without waiting long for one that does not."""

from __future__ import annotations

import time
from threading import Thread

from django.db import Error, connections

PATIENCE_SECONDS = 5.0
"""How many seconds the database may take to answer."""

_started = time.monotonic()
_pings: dict[str, Ping] = {}


def uptime() -> int:
    """Return the seconds since this process loaded the API."""
    return int(time.monotonic() - _started)


def answers(using: str, within: float = PATIENCE_SECONDS) -> bool:
    """Whether a database accepts a connection and answers a query ``within`` seconds.

    A separate thread asks on its own connection, and there is at most one such thread for a database. So a server that
    hangs costs each caller ``within`` seconds, and the process one thread.
    """
    ping = _pings.get(using)
    if ping is None or not ping.is_alive():
        ping = _pings[using] = Ping(using)
        ping.start()
    ping.join(within)
    return ping.answered


class Ping(Thread):
    """Sends one query to a database."""

    def __init__(self, using: str) -> None:
        super().__init__(name=f"ojs-health-{using}", daemon=True)
        self.using = using
        self.answered = False

    def run(self) -> None:
        try:
            with connections[self.using].cursor() as cursor:
                cursor.execute("SELECT 1")
                self.answered = cursor.fetchone() is not None
        except Error:
            pass
        finally:
            connections[self.using].close()
