"""Drained: tell whether a drain has anything to do, before it starts threads and maintains what others left."""

from __future__ import annotations

from typing import Any

from django.db.models import QuerySet

from ..db.clock import DatabaseClock
from ..maintenance import cron
from ..models import Workflow
from ..ojs.states import INCOMPLETE
from . import hints
from .queues import QueueFilter


def has_work(jobs: QuerySet[Any], queues: QueueFilter, clock: DatabaseClock) -> bool:
    """Tell whether any job or workflow is unfinished, or a periodic job is due: four statements, and no lock.

    If not, nothing can be promoted, expired, rescued or claimed, and pruning is left to the next drain that has work.
    """
    workflows = Workflow.objects.using(jobs.db).running()
    if not cron.is_at_rest(jobs.db, clock.now()) or unfinished(jobs).exists() or workflows.exists():
        return True
    hints.tell_of_queues(jobs.db, queues)
    return False


def unfinished(jobs: QuerySet[Any]) -> QuerySet[Any]:
    """Select the jobs that have not finished, by the index of the claim."""
    return jobs.filter(state__in=sorted(INCOMPLETE), finished_at=None)
