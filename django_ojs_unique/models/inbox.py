"""The inbox: requests that SQL has inserted, which a worker decides in their order."""

from __future__ import annotations

from datetime import datetime
from typing import Any

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db.fields import PayloadField
from ..db.now import DatabaseNow


class InboxRequestQuerySet(models.QuerySet["InboxRequest"]):
    """Requests in the inbox."""

    def waiting(self) -> InboxRequestQuerySet:
        """Select those that are not decided, the first one first, by the index."""
        return self.filter(refused_at=None).order_by("refused_at", "pk")

    def refused(self) -> InboxRequestQuerySet:
        """Select those that were invalid."""
        return self.filter(refused_at__isnull=False)

    def refuse(self, error: dict[str, Any], now: datetime) -> int:
        """Keep them with the reason why they are not decided; return how many there are."""
        return self.update(refused_at=now, error=error)

    def retry(self) -> int:
        """Let those of them that were refused be decided once more; return how many."""
        return self.refused().update(refused_at=None, error=None)


class InboxRequest(models.Model):
    """A request to enqueue a job, or to remove one by its key, in the words of the HTTP binding.

    Whoever may INSERT here enqueues, in the transaction of its own data. A worker decides each request once, in one
    transaction with the removal of its row; one that is invalid stays, with its error.
    """

    class Action(models.TextChoices):
        ENQUEUE = "enqueue", _("enqueue a job")
        REMOVE = "remove", _("remove the job that holds a key")

    id = models.BigAutoField(primary_key=True)
    action = models.CharField(max_length=16, choices=Action, default=Action.ENQUEUE, db_default="enqueue")
    # No CharField: a server that cuts off what is too long would store another type.
    type = models.TextField(null=True, blank=True)
    args = PayloadField(default=list, db_default=models.Value([], PayloadField()))
    options = PayloadField(default=dict, db_default=models.Value({}, PayloadField()))
    requested_at = models.DateTimeField(db_default=DatabaseNow())
    refused_at = models.DateTimeField(null=True, blank=True, editable=False)
    error = PayloadField(null=True, blank=True, editable=False)

    objects = InboxRequestQuerySet.as_manager()

    class Meta:
        db_table = "django_ojs_unique_inbox"
        verbose_name = _("request in the inbox")
        verbose_name_plural = _("requests in the inbox")
        indexes = [
            # Which request is the first one that is not decided.
            models.Index(fields=["refused_at", "id"], name="ojs_inbox_waiting"),
        ]

    def __str__(self) -> str:
        return f"{self.pk} {self.type or self.action}"

    @property
    def reason(self) -> str:
        """Why it was refused, or a dash."""
        return str(self.error.get("message", "-")) if isinstance(self.error, dict) else "-"
