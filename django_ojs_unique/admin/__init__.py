"""The admin: jobs and their duplicates, a dashboard, and what operators may do about them.

Every command of Django imports the admin, so what only a page needs is imported in the functions that make the page.
"""

from . import cron, inbox, jobs, limits, queues, suppressed, workers, workflows

__all__ = ["cron", "inbox", "jobs", "limits", "queues", "suppressed", "workers", "workflows"]
