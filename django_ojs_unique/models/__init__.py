"""The models."""

from .cron import CronJob
from .event import ActivityRollup, Event
from .inbox import InboxRequest
from .job import Job
from .limit import LimitOverride, LimitPartition, Slot, StoppedRun
from .queue import Queue
from .suppressed import SuppressedEnqueue
from .worker import WorkerProcess
from .workflow import Workflow, WorkflowMember

__all__ = [
    "ActivityRollup",
    "CronJob",
    "Event",
    "InboxRequest",
    "Job",
    "LimitOverride",
    "LimitPartition",
    "Queue",
    "Slot",
    "StoppedRun",
    "SuppressedEnqueue",
    "WorkerProcess",
    "Workflow",
    "WorkflowMember",
]
