"""Whether the database answers, asked so that a dead one cannot hold the one who asks."""

from __future__ import annotations

import time
from threading import Thread

from django.db import Error, connections

PATIENCE_SECONDS = 5.0
"""How long the database may take to answer."""

_started = time.monotonic()
_pings: dict[str, Ping] = {}


def uptime() -> int:
    """Return the seconds since this process loaded the API."""
    return int(time.monotonic() - _started)


def answers(using: str, within: float = PATIENCE_SECONDS) -> bool:
    """Whether a database accepts a connection and answers a query within some seconds.

    Asked on a connection of its own in a thread of its own, of which there is never more than one for a database: a
    server that hangs costs each caller ``within`` seconds, and the process one thread.
    """
    ping = _pings.get(using)
    if ping is None or not ping.is_alive():
        ping = _pings[using] = Ping(using)
        ping.start()
    ping.join(within)
    return ping.answered


class Ping(Thread):
    """Asks a database one question."""

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
