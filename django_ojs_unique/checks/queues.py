"""Checks of the rule for unique queues, against the stored jobs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from django.core.checks import CheckMessage, Warning
from django.db import DatabaseError
from django.db.models import BooleanField, ExpressionWrapper, Q, QuerySet

from .. import conf
from ..exceptions import did_you_mean, nearest
from ..models import Job
from ..ojs.states import TIMED, JobState
from ..ojs.words import counted
from ..reporting import queues
from .database import with_jobs
from .setting_problems import problems

MOST_LOOKED_AT = 10_000
"""How many available jobs are looked at, and how many timed ones. `manage.py migrate` must be quick."""


def check_queue_rules(databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W004: jobs wait on a unique queue that were enqueued before it was unique. W009: nothing uses a unique queue."""
    if any(problems()) or not (rule := conf.settings.unique_queues):
        return []
    declared = queues.in_code()
    unknown = set() if rule is True else set(rule) - declared
    messages: list[CheckMessage] = []
    used: set[str] = set()
    aliases = with_jobs(databases)
    for alias in aliases:
        jobs = Job.objects.using(alias)
        try:
            messages += _from_before(alias, jobs if rule is True else jobs.filter(queue__in=sorted(rule)))
            if unknown:
                used |= queues.used(alias)
        except DatabaseError:  # the table of an earlier version, before its migration
            return messages
    if aliases:
        messages += (_unused(name, used, declared) for name in sorted(unknown - used))
    return messages


def _from_before(alias: str, on_them: QuerySet[Job]) -> Iterator[CheckMessage]:
    no_rule = ExpressionWrapper(
        Q(fingerprint__isnull=True, unique__isnull=True, key__isnull=True), output_field=BooleanField()
    )
    found, more = 0, False
    for waiting in (
        on_them.filter(state=JobState.AVAILABLE, finished_at__isnull=True),
        on_them.filter(state__in=sorted(TIMED), finished_at__isnull=True),
    ):
        looked_at = list(waiting.annotate(no_rule=no_rule).values_list("no_rule", flat=True)[:MOST_LOOKED_AT])
        found += sum(map(bool, looked_at))
        more = more or len(looked_at) == MOST_LOOKED_AT
    if found:
        yield Warning(
            f"Unique queues in database {alias!r} hold {'at least ' if more else ''}{counted(found, 'waiting job')}"
            " from before OJS_UNIQUE['UNIQUE_QUEUES'] named them, so that identical ones may wait there.",
            hint=f"Run `manage.py jobs verify --database {alias}` to see them, and with --fix to fix that; or drain"
            f" the queues.",
            id="django_ojs_unique.W004",
        )


def _unused(name: str, used: set[str], declared: set[str]) -> CheckMessage:
    close = nearest(name, used | declared)
    meant = did_you_mean(name, [close] if close else sorted(declared))
    return Warning(
        f"OJS_UNIQUE['UNIQUE_QUEUES'] names {name!r}, which nothing uses: it is no handler's queue, and no job is or"
        " recently was on it.",
        hint=f"{meant} If its first job is still to come, leave it.",
        id="django_ojs_unique.W009",
    )
