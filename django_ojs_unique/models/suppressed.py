"""The record of enqueues that met a duplicate."""

from __future__ import annotations

from datetime import datetime

from django.db import models
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..db.fields import BriefPayloadField
from .job import STATE_CHOICES, Job

PRUNED_AT_ONCE = 1000


class SuppressedEnqueueQuerySet(models.QuerySet["SuppressedEnqueue"]):
    """Suppressed enqueues."""

    def prune(self, now: datetime) -> int:
        """Delete a batch of rows that are older than ``OJS_UNIQUE["SUPPRESSED_RETENTION"]``; return how many."""
        # The primary keys are in the order of time, so the oldest are found without reading the others.
        oldest = self.order_by("pk").values_list("pk", "created_at")[:PRUNED_AT_ONCE]
        cutoff = now - settings.suppressed_retention
        deleted, _ = self.filter(pk__in=[pk for pk, created_at in oldest if created_at < cutoff]).delete()
        return deleted


class SuppressedEnqueue(models.Model):
    """One enqueue that met a duplicate: its arguments, the job that it met, and the outcome.

    Args or meta of more than 4,096 bytes of JSON are not kept; the number of bytes is, in their place.

    Rows are only added, without a constraint to a shared row, so that a busy key causes no lock waits. They are written
    in the transaction of the enqueue: if it is rolled back, there is no record.
    """

    class Outcome(models.TextChoices):
        REJECTED = "rejected", _("rejected with an error")
        DEDUPLICATED = "deduplicated", _("answered with the existing job")
        REPLACED = "replaced", _("the existing job was cancelled for the new one")

    created_at = models.DateTimeField(verbose_name=_("created at"), default=timezone.now)
    outcome = models.CharField(verbose_name=_("outcome"), max_length=12, choices=Outcome)
    on_conflict = models.CharField(max_length=23)
    fingerprint = models.CharField(max_length=64)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128)
    args = BriefPayloadField()
    meta = BriefPayloadField()
    existing_job = models.ForeignKey(
        Job, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="suppressed_enqueues"
    )
    existing_state = models.CharField(max_length=9, choices=STATE_CHOICES)
    job = models.ForeignKey(
        Job,
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="replacing_enqueues",
        help_text=_("The job that was admitted instead, when the outcome is a replacement."),
    )

    objects = SuppressedEnqueueQuerySet.as_manager()

    class Meta:
        verbose_name = _("suppressed enqueue")
        verbose_name_plural = _("suppressed enqueues")
        indexes = [
            # Which enqueues met this job, and how many; which met this fingerprint.
            models.Index(fields=["fingerprint", "existing_job", "created_at"], name="ojs_suppressed_lookup"),
            # Which fingerprints were met most often lately.
            models.Index(fields=["created_at", "fingerprint"], name="ojs_suppressed_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.created_at:%Y-%m-%d %H:%M:%S}"
