"""The record of what uniqueness held back."""

from __future__ import annotations

from django.db import models
from django.utils import timezone

from ..fields import PayloadField
from ..managers import SuppressedAttemptManager
from .job import STATE_CHOICES, Job


class SuppressedAttempt(models.Model):
    """One enqueue that met a duplicate: what was asked, which job it met, and what became of it.

    Append-only, without a key to any shared row, so that a hot key does not contend. Written in the transaction of the
    enqueue, so an attempt whose transaction rolls back leaves no record.
    """

    class Outcome(models.TextChoices):
        REJECTED = "rejected", "refused with an error"
        IGNORED = "ignored", "answered with the existing job"
        REPLACED = "replaced", "the existing job was cancelled for the new one"

    created_at = models.DateTimeField(default=timezone.now)
    outcome = models.CharField(max_length=8, choices=Outcome)
    on_conflict = models.CharField(max_length=23)
    fingerprint = models.CharField(max_length=64)
    type = models.CharField(max_length=255)
    queue = models.CharField(max_length=128)
    args = PayloadField()
    meta = PayloadField()
    existing_job = models.ForeignKey(
        Job,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="suppressed_attempts",
    )
    existing_state = models.CharField(max_length=9, choices=STATE_CHOICES)
    job = models.ForeignKey(
        Job,
        null=True,
        blank=True,
        on_delete=models.DO_NOTHING,
        db_constraint=False,
        db_index=False,
        related_name="replaced_attempts",
        help_text="The job that was admitted instead, when the outcome is a replacement.",
    )

    objects = SuppressedAttemptManager()

    class Meta:
        verbose_name = "suppressed attempt"
        verbose_name_plural = "suppressed attempts"
        indexes = [
            # Which attempts met this job, and how many; which met this key.
            models.Index(fields=["fingerprint", "existing_job", "created_at"], name="ojs_suppressed_lookup"),
            # Which keys were met most often lately.
            models.Index(fields=["created_at", "fingerprint"], name="ojs_suppressed_recent"),
        ]

    def __str__(self) -> str:
        return f"{self.type} {self.outcome} by {self.existing_job_id}"
