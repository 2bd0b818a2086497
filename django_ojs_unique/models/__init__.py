"""The models."""

from .cron import CronJob
from .event import Event
from .job import Job
from .limit import LimitKey, LimitOverride, Slot
from .queue import Queue
from .rollup import ActivityRollup
from .suppressed import SuppressedEnqueue
from .worker import WorkerProcess
from .workflow import Workflow, WorkflowMember

__all__ = [
    "ActivityRollup",
    "CronJob",
    "Event",
    "Job",
    "LimitKey",
    "LimitOverride",
    "Queue",
    "Slot",
    "SuppressedEnqueue",
    "WorkerProcess",
    "Workflow",
    "WorkflowMember",
]
