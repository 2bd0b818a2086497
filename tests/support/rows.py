"""Rows of jobs as a test wants them. `Job.objects` stores a job by its enqueue only; Django's own manager, any row."""

from django_ojs_unique.models import Job


def insert(**fields):
    """Store and return a job with these fields."""
    return insert_all([Job(**fields)])[0]


def insert_all(jobs, using=None, **options):
    """Store jobs as they are, and return them; the options are those of `bulk_create`."""
    return Job._base_manager.using(using).bulk_create(jobs, **options)
