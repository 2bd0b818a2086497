"""Which queues are known, and what to say about a queue name that is not."""

from __future__ import annotations

from typing import Any

from django.conf import settings as django_settings
from django.utils import timezone

from ..conf import settings
from ..exceptions import nearest
from .queues import declared, names
from .workers import workers

MOST_LOOKED_AT = 10_000
"""How many of the newest jobs are looked at: their queues are known even if nothing waits there now."""


def in_code() -> set[str]:
    """Return the queues that code and settings name."""
    backends: Any = getattr(django_settings, "TASKS", {}).values()
    named = {settings.default_queue, *declared()}
    for params in backends:
        aliases = params.get("OPTIONS", {}).get("queue_aliases", {})
        named.update(aliases.get(name, name) for name in params.get("QUEUES", ()))
    return named


def used(using: str) -> set[str]:
    """Return the queues that have unfinished jobs, a row, or one of the newest jobs. One statement."""
    return set(names(using, newest_jobs=MOST_LOOKED_AT))


def doubt(using: str, name: str) -> str:
    """Say that nothing knows a queue of this name, and which was probably meant; empty if the queue is known."""
    present = workers(using, timezone.now())
    known = in_code().union(used(using), *(worker.names for worker in present))
    if name in known or any(worker.takes(name) and "*" not in worker.patterns for worker in present):
        return ""
    close = nearest(name, known)
    meant = f"Did you mean {close!r}?" if close else "`jobs queues` shows those that have jobs."
    return f"Nothing knows the queue {name!r}: no job, no worker, no handler. {meant}"
