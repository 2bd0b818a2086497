"""The worker: claim, run, finalize, maintain."""

from .hints import unfinished
from .loop import Worker
from .queues import QueueFilter
from .summary import Summary
from .supervisor import Supervisor

__all__ = ["QueueFilter", "Summary", "Supervisor", "Worker", "unfinished"]
