"""Waiting for a database server, at a worker's start."""

from __future__ import annotations

import logging
import time

from django.db import InterfaceError, OperationalError, connections

from ..db.dialects import kind_of
from ..worker.outages import drop
from .arguments import does_not_answer, one_line

logger = logging.getLogger("django_ojs_unique.worker")

BETWEEN_TRIES = 0.5
"""Seconds between two attempts to connect to a database."""


def await_server(using: str, seconds: float) -> None:
    """Wait until the database server answers; log its errors meanwhile. Raises CommandError after ``seconds``.

    The wait has an end because no driver tells for sure whether a server is down or refuses the password.
    """
    connection, deadline, problem = connections[using], time.monotonic() + seconds, ""
    while kind_of(connection).is_server:
        try:
            connection.ensure_connection()
            break
        except (OperationalError, InterfaceError) as error:
            drop(using)
            if (left := deadline - time.monotonic()) <= 0:
                raise does_not_answer(using, error) from error
            if problem != (problem := one_line(error)):
                logger.warning("Database %r does not answer; waiting up to %.0f seconds: %s", using, left, problem)
            time.sleep(min(BETWEEN_TRIES, left))
    if problem:
        logger.warning("Database %r answers.", using)
