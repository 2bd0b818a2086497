"""The workers that run, as of their last heartbeats."""

from __future__ import annotations

from django.db import models
from django.utils.translation import gettext_lazy as _

from ..db.fields import PayloadField


class WorkerProcess(models.Model):
    """A worker process: it writes this row with its heartbeat and deletes it when it stops.

    A row whose ``heartbeat_at`` is old belongs to a worker that died; its jobs are rescued when their leases run out.
    """

    class State(models.TextChoices):
        RUNNING = "running", _("running")
        QUIET = "quiet", _("quiet")
        STOPPING = "stopping", _("stopping")

    class Directive(models.TextChoices):
        QUIET = "quiet", _("take no more jobs")
        TERMINATE = "terminate", _("stop")

    id = models.CharField(max_length=255, primary_key=True, help_text=_("The worker_id of its jobs."))
    hostname = models.CharField(verbose_name=_("hostname"), max_length=255)
    pid = models.PositiveBigIntegerField(verbose_name=_("pid"), null=True, blank=True)
    queues = PayloadField(default=list, help_text=_("The patterns that it takes; exclusions begin with '!'."))
    concurrency = models.PositiveIntegerField(verbose_name=_("concurrency"), null=True, blank=True)
    state = models.CharField(max_length=8, choices=State, default=State.RUNNING)
    directive = models.CharField(
        max_length=9,
        choices=Directive,
        default="",
        db_default="",
        blank=True,
        help_text=_("What an operator wants the worker to do; it obeys with its next heartbeat."),
    )
    started_at = models.DateTimeField()
    heartbeat_at = models.DateTimeField()
    claimed = models.PositiveIntegerField(default=0, help_text=_("Jobs claimed and not yet finalized."))
    finalized = models.PositiveBigIntegerField(
        verbose_name=_("finalized"), default=0, help_text=_("Runs that ended since it started.")
    )
    clock_ahead = models.FloatField(
        default=0, help_text="Seconds that the clock of its host is ahead of the database's; below 0: behind."
    )

    class Meta:
        verbose_name = _("worker")
        verbose_name_plural = _("workers")

    def __str__(self) -> str:
        return self.id
