"""Keep finished jobs in a table of your own: see ``docs/retention.md``."""

from datetime import timedelta

from django.db import transaction
from django.utils import timezone
from shop.models import ArchivedJob

from django_ojs_unique.maintenance.prune import due, prune
from django_ojs_unique.models import Job

WEEK = timedelta(days=7)
PERIODS = {"completed": WEEK, "cancelled": WEEK, "discarded": 4 * WEEK, "dead_letter": 26 * WEEK}
KEPT = ["type", "state", "queue", "args", "meta", "result", "errors", "attempt", "created_at", "fingerprint"]


def archive(batch=1000):
    """Copy the jobs that are past their retention, and prune these; return how many were pruned."""
    now = timezone.now()
    with transaction.atomic():
        found = []
        for rows in due(Job.objects.all(), now, PERIODS).values():
            found += rows.select_for_update(skip_locked=True)[:batch]
        copies = [
            ArchivedJob(id=job.pk, finished_at=job.finished_at, data={name: getattr(job, name) for name in KEPT})
            for job in found
        ]
        ArchivedJob.objects.bulk_create(copies, ignore_conflicts=True)
        pruned = prune(Job.objects.filter(pk__in=[job.pk for job in found]), now, 4 * batch, PERIODS)
    return pruned.deleted + pruned.payload_pruned
