"""What operators say about a queue. Queues exist without a row; only one that is, or was, paused or limited has one."""

from __future__ import annotations

from typing import Any

from django.db import models, router
from django.utils import timezone

from ..exceptions import InvalidRequest
from ..ojs.names import queue_name
from ..transactions import starting_over

HIGHEST_LIMIT = 2**31 - 1


class QueueQuerySet(models.QuerySet["Queue"]):
    """Queues. Each of these may be said twice, and by many at once; a name that is no queue's raises InvalidRequest."""

    def pause(self, name: str) -> bool:
        """Let no worker take jobs of the queue; those that run go on. Return False when it was paused already."""
        return self._change(self._row(name).filter(paused_at=None), name, paused_at=timezone.now())

    def resume(self, name: str) -> bool:
        """Let workers take jobs of the queue again. Return False when it was not paused."""
        return self._change(self._row(name).exclude(paused_at=None), paused_at=None)

    def limit(self, name: str, limit: int | None) -> bool:
        """Let at most ``limit`` jobs of the queue run at once, over all workers; None: any number.

        Return False when that was the limit already. Raises InvalidRequest for a limit that is no number from 1 up.
        """
        rows = self._row(name)
        if limit is None:
            return self._change(rows.exclude(concurrency_limit=None), concurrency_limit=None)
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= HIGHEST_LIMIT:
            raise InvalidRequest.at(
                "limit", "must be a whole number of at least 1, or None", value=limit, mend="To stop a queue, pause it."
            )
        other = models.Q(concurrency_limit=None) | ~models.Q(concurrency_limit=limit)
        return self._change(rows.filter(other), name, concurrency_limit=limit)

    def _row(self, name: str) -> QueueQuerySet:
        using = self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]
        return type(self)(self.model, using=using).filter(name=queue_name(name))

    def _change(self, rows: QueueQuerySet, create: str | None = None, **changes: Any) -> bool:
        """Update the row; with ``create``, see to it first that there is one. A row stays, so that none is missed."""
        if create is not None:
            everything = type(self)(self.model, using=rows.db)
            starting_over(rows.db, lambda: everything.bulk_create([self.model(name=create)], ignore_conflicts=True))
        return bool(starting_over(rows.db, lambda: rows.update(**changes)))


class QueueManager(models.Manager.from_queryset(QueueQuerySet)):  # type: ignore[misc]
    """The manager of `Queue`."""


class Queue(models.Model):
    """A queue that is, or was, paused or limited."""

    name = models.CharField(max_length=128, primary_key=True)
    paused_at = models.DateTimeField(null=True, blank=True, help_text="Since when no worker takes its jobs.")
    concurrency_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text="How many of its jobs may run at once, over all workers; empty: any number."
    )

    objects = QueueManager()

    class Meta:
        verbose_name = "queue"
        verbose_name_plural = "queues"
        permissions = [("pause_queue", "Can pause and resume queue")]

    def __str__(self) -> str:
        return self.name
