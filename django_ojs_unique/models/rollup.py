"""What happened in the past, counted once."""

from __future__ import annotations

from django.db import models


class ActivityRollup(models.Model):
    """How many jobs were enqueued, suppressed, completed and failed in the quarter of an hour from ``start``.

    A row with an empty ``queue`` counts all queues; the time that was counted ends with the last one. Where nothing
    happened, there is no other row. Workers write the rows; the jobs that they count may have been deleted since, or
    have run again.
    """

    start = models.DateTimeField()
    queue = models.CharField(max_length=128)
    enqueued = models.PositiveIntegerField()
    suppressed = models.PositiveIntegerField()
    completed = models.PositiveIntegerField()
    failed = models.PositiveIntegerField()

    class Meta:
        constraints = [
            # Also for the dashboard, which reads the rows of all queues together, and when the last one starts.
            models.UniqueConstraint(fields=["queue", "start"], name="ojs_rollup_unique")
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.start:%Y-%m-%d %H:%M}".lstrip()
