"""Before a worker begins: whether a drain has anything to do, and hints about jobs that perhaps no worker claims."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.locking import any_of
from ..exceptions import nearest
from ..maintenance import cron, inbox
from ..models import Workflow
from ..ojs.names import matches
from ..ojs.states import INCOMPLETE
from ..reporting.queues import in_code, used
from ..reporting.text import harmless
from ..reporting.unclaimed import unknown_types
from .queues import QueueFilter

logger = logging.getLogger("django_ojs_unique.worker")


def tell_of_unknown_types(jobs: QuerySet[Any], queues: QueueFilter) -> None:
    """Log the types of jobs that wait in these queues and have no handler here."""
    unknown = unknown_types(jobs, queues.waiting(jobs))
    if unknown.types:
        logger.warning("Jobs wait for handlers that are not here: %s.", unknown.named)


def tell_of_queues(using: str, queues: QueueFilter) -> None:
    """Log which of these queues nothing uses, and which was probably meant. No error, as jobs may come later.

    One statement, and none if the code and the settings name all of them.
    """
    asked = [] if "*" in queues.include else queues.include
    unknown = _unknown([*asked, *queues.exclude], in_code())
    if not unknown:
        return
    known = in_code() | used(using)
    others = {name for name in known if name not in queues}
    for text in _unknown(unknown, known):
        does, rest = ("takes", others) if text in asked else ("leaves out", known)
        if close := nearest(text, rest):
            logger.warning("Nothing uses queue %s, which this worker %s; did you mean %s?", text, does, harmless(close))
        else:
            logger.info("Nothing uses queue %s yet, which this worker %s.", text, does)


def _unknown(texts: Iterable[str], known: set[str]) -> list[str]:
    return [text for text in texts if not any(matches(name, [text]) for name in known)]


def has_work(jobs: QuerySet[Any], queues: QueueFilter) -> bool:
    """Tell whether a job, a workflow or a request waits, or a periodic job is due: five statements, and no lock.

    If not, nothing can be promoted, expired, rescued or claimed, and pruning is left to the next drain that has work.
    """
    workflows = Workflow.objects.using(jobs.db).running()
    if not cron.is_at_rest(jobs.db, database_now(jobs.db)) or unfinished(jobs).exists() or workflows.exists():
        return True
    if any_of(inbox.waiting(jobs.db)):
        return True
    tell_of_queues(jobs.db, queues)
    return False


def unfinished(jobs: QuerySet[Any]) -> QuerySet[Any]:
    """Select the jobs that have not finished, by the index of the claim."""
    return jobs.filter(state__in=sorted(INCOMPLETE), finished_at=None)
