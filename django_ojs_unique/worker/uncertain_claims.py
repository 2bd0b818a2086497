"""Uncertain claims: those that the database may or may not have committed, as their answer was lost."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db.models import QuerySet

from ..db.transactions import is_busy
from ..execution import leases
from .outages import DATABASE_FAILED

logger = logging.getLogger("django_ojs_unique.worker")


class UncertainClaims:
    """Remembers the tokens of claims that got no answer, and requeues their jobs; the attempt does not count.

    Without that, a claim that was committed while its answer was lost would cost its jobs an attempt and a lease. The
    server may commit it after a first check, so the check is repeated until its lease would have run out.
    """

    def __init__(self, jobs: QuerySet[Any], lease: timedelta) -> None:
        self._jobs = jobs
        self._lease = lease
        self._until: dict[UUID, float] = {}

    @contextmanager
    def claiming(self, token: UUID | None = None) -> Iterator[UUID]:
        """Yield the token for a claim, by default a new one, and keep it if there is no answer or it cannot be read."""
        token = token or uuid4()
        try:
            yield token
        except BaseException as error:
            # Busy is an answer: nothing was claimed.
            if not isinstance(error, DATABASE_FAILED) or not is_busy(error):
                self._until[token] = time.monotonic() + self._lease.total_seconds()
            raise

    def requeue(self) -> int:
        """Requeue the jobs that such claims have claimed by now; return how many."""
        requeued = leases.requeue_claims(self._jobs, self._until) if self._until else 0
        if requeued:
            logger.warning("Requeued %d jobs: the answer to their claim was lost.", requeued)
        now = time.monotonic()
        self._until = {token: until for token, until in self._until.items() if now < until}
        return requeued
