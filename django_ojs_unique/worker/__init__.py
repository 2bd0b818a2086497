"""The worker: claim, run, settle, maintain."""

from .loop import Summary, Worker
from .queues import QueueFilter
from .supervisor import Supervisor

__all__ = ["QueueFilter", "Summary", "Supervisor", "Worker"]
