"""The admin: jobs and their duplicates, a dashboard, and what operators may do about them."""

from . import cron, jobs, queues, suppressed, workers

__all__ = ["cron", "jobs", "queues", "suppressed", "workers"]
