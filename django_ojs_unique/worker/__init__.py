"""The worker: claim, run, settle, maintain."""

from .loop import Summary, Worker

__all__ = ["Summary", "Worker"]
