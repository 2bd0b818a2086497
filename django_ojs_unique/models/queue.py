"""The settings of operators for a queue. A queue needs no row: it has one only if it is, or was, paused or limited."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.db import models, router
from django.dispatch import Signal
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..db.transactions import starting_over
from ..exceptions import InvalidRequest
from ..ojs.names import is_whole, queue_name
from ..signals import announce, queue_paused, queue_resumed

HIGHEST_LIMIT = 2**31 - 1


class QueueQuerySet(models.QuerySet["Queue"]):
    """Queues. Each method may be called twice, and concurrently; an invalid queue name raises InvalidRequest."""

    def pause(self, name: str) -> bool:
        """Let no worker claim jobs of the queue; running jobs go on. Return False when it was paused already."""
        rows = self._row(name).filter(paused_at=None)
        return self._tell(queue_paused, name, rows, lambda: self._change(rows, name, paused_at=database_now(rows.db)))

    def resume(self, name: str) -> bool:
        """Let workers claim jobs of the queue again. Return False when it was not paused."""
        rows = self._row(name).exclude(paused_at=None)
        return self._tell(queue_resumed, name, rows, lambda: self._change(rows, paused_at=None))

    def limit(self, name: str, limit: int | None) -> bool:
        """Let at most ``limit`` jobs of the queue run at once, over all workers; None: any number.

        Return False when that was the limit already. Raises InvalidRequest for a limit that is no integer of 1 or more.
        """
        return self._set(name, "limit", concurrency_limit=limit)

    def rate_limit(self, name: str, max_per_second: int | None) -> bool:
        """Let at most so many jobs of the queue be handed out in a second, over all workers; None: any number.

        The second is a window: it begins with the first job that is handed out after the last window ended. Other jobs
        stay available. Return False, without a write, when that was the limit already: every enqueue with a rate may
        call this (HTTP binding, section 13). Raises InvalidRequest for a limit that is no integer of 1 or more.
        """
        return self._set(name, "max_per_second", max_per_second=max_per_second)

    def _set(self, name: str, label: str, **limit: int | None) -> bool:
        """Change one limit; ``label`` is its name in error messages."""
        ((field, value),) = limit.items()
        if value is not None and not is_whole(value, 1, HIGHEST_LIMIT):
            raise InvalidRequest.at(
                label, "must be a whole number of at least 1, or None", value=value, hint="To stop a queue, pause it."
            )
        rows = self._row(name)
        if rows.values_list(field, flat=True).first() == value:
            return False
        return self._change(rows.exclude(**limit), None if value is None else name, **limit)

    def _row(self, name: str) -> QueueQuerySet:
        using = self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]
        return type(self)(self.model, using=using).filter(name=queue_name(name))

    def _tell(self, signal: Signal, name: str, rows: QueueQuerySet, change: Callable[[], bool]) -> bool:
        """Change the row; if that changed anything, send the signal."""
        from ..enqueue.unit_of_work import UnitOfWork

        for work in UnitOfWork(rows.db):
            with work:
                changed = change()
                if changed:
                    announce(signal, self.model, queue=name, using=rows.db)
        return changed

    def _change(self, rows: QueueQuerySet, create: str | None = None, **changes: Any) -> bool:
        """Update the row; with ``create`` (its name), insert it first if it is missing. Rows are never deleted."""
        if create is not None:
            everything = type(self)(self.model, using=rows.db)
            starting_over(rows.db, lambda: everything.bulk_create([self.model(name=create)], ignore_conflicts=True))
        return bool(starting_over(rows.db, lambda: rows.update(**changes)))


class Queue(models.Model):
    """A queue that is, or was, paused or limited."""

    name = models.CharField(max_length=128, primary_key=True)
    paused_at = models.DateTimeField(null=True, blank=True, help_text=_("Since when no worker takes its jobs."))
    concurrency_limit = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many of its jobs may run at once, over all workers; empty: any number.")
    )

    max_per_second = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many of its jobs may be handed out in a second; empty: any number.")
    )
    window_started_at = models.DateTimeField(
        null=True, blank=True, editable=False, help_text=_("When the second began in which jobs were last handed out.")
    )
    window_count = models.PositiveIntegerField(
        default=0, db_default=0, editable=False, help_text=_("How many jobs have been handed out in that second.")
    )

    objects = QueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("queue")
        verbose_name_plural = _("queues")
        permissions = [("pause_queue", "Can pause and resume queue")]

    def __str__(self) -> str:
        return self.name
