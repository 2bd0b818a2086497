"""Whether a waiting job has a worker that takes its queue."""

from __future__ import annotations

from typing import Any

from django.utils import timezone

from ..exceptions import Message
from ..ojs.states import WAITING
from .queues import in_use
from .workers import misspelt, untaken, workers


def nobody(job: Any, using: str) -> str:
    """Say that no worker takes the queue of a waiting job; empty if one does. One statement, or two."""
    if job.state not in WAITING:
        return ""
    present = workers(using, timezone.now())
    if not (problem := untaken(job.queue, present)):
        return ""
    if not any(worker.lives and worker.names for worker in present):
        return problem
    return Message.joined(" ", filter(None, [problem, misspelt(job.queue, present, in_use(using))]))
