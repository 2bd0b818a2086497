"""Runs that go on although their jobs were cancelled or replaced."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..lifecycle import DatabaseNow
from ..ojs.blocking import LONGEST as LONGEST_BLOCK


class StoppedRunQuerySet(models.QuerySet["StoppedRun"]):
    """Stopped runs."""

    def living(self) -> StoppedRunQuerySet:
        """Select those whose lease has not ended."""
        return self.filter(lease_expires_at__gt=DatabaseNow())


class StoppedRun(models.Model):
    """A run whose job was cancelled or replaced, and of which its worker has not let go.

    It counts for the limits of its job and its queue until its lease ends. The row has all that this needs: the job's
    own row may be retried or deleted meanwhile.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    queue = models.CharField(max_length=128)
    blocked_by = models.CharField(max_length=LONGEST_BLOCK)
    worker_id = models.CharField(max_length=255, null=True)
    started_at = models.DateTimeField(null=True)
    lease_token = models.UUIDField()
    lease_expires_at = models.DateTimeField()

    objects = StoppedRunQuerySet.as_manager()

    class Meta:
        verbose_name = _("stopped run")
        verbose_name_plural = _("stopped runs")
        indexes = [models.Index(fields=["job_id"], name="ojs_stopped_job")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.worker_id}"
