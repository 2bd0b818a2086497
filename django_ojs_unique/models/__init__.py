"""The rows."""

from .cron import CronJob
from .job import Job
from .queue import Queue
from .suppressed import SuppressedAttempt
from .worker import WorkerProcess

__all__ = ["CronJob", "Job", "Queue", "SuppressedAttempt", "WorkerProcess"]
