"""Heartbeat: let operators and their probes see that a worker lives. `claimed_runs` extends its leases."""

from __future__ import annotations

import json
import logging
import os
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from django.db import transaction

from ..db.locking import unlocked
from ..db.transactions import starting_over
from ..models import WorkerProcess

logger = logging.getLogger("django_ojs_unique.worker")


class HealthFile:
    """A small JSON file that is rewritten while the worker and its database work, and removed when the worker stops.

    A probe checks its age: ``find PATH -mmin -1`` prints nothing once it is older than a minute.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)

    def write(self, **facts: Any) -> None:
        """Write it in one step, so that no reader sees half of it."""
        new = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            new.write_text(json.dumps(facts) + "\n")
            new.replace(self._path)
        except OSError as error:  # a full disk must not stop the worker; the file grows old
            logger.error("Cannot write the health file: %s", error)

    def remove(self) -> None:
        """Remove it."""
        with suppress(OSError):
            self._path.unlink(missing_ok=True)


def say_hello(using: str, worker_id: str, now: datetime, **facts: Any) -> str:
    """Write the worker's row: its id, its ``facts``, and ``now`` as its heartbeat.

    Return the directive of an operator: a `WorkerProcess.Directive`, or "".
    """
    rows = WorkerProcess.objects.using(using)
    if not starting_over(using, lambda: rows.filter(id=worker_id).update(heartbeat_at=now, **facts)):
        row = WorkerProcess(**{"hostname": "", "started_at": now, "heartbeat_at": now, **facts, "id": worker_id})
        starting_over(using, lambda: rows.bulk_create([row], ignore_conflicts=True))  # two calls may come at once
    return rows.filter(id=worker_id).values_list("directive", flat=True).first() or ""


def say_goodbye(using: str, worker_id: str) -> None:
    """Remove the worker's row, unless it is locked: then it is removed after a day."""
    rows = WorkerProcess.objects.using(using).filter(id=worker_id)
    with transaction.atomic(using=using):
        if unlocked(rows).first() is not None:
            rows.delete()
