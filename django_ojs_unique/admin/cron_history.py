"""The last jobs of a cron job: those of its latest occurrences, and those that operators enqueued manually."""

from __future__ import annotations

import re
from typing import Any
from uuid import UUID

from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.utils.translation import gettext

from ..db.clock import database_now
from ..maintenance.cron import past_job_ids
from ..models import CronJob, Job
from ..reporting.list_columns import list_columns, with_list_columns
from ..reporting.text import harmless
from .display import badge, seconds, when
from .visibility import Visibility

MOST = 20
RAN = "Ran now"
"""How the admin's log names a manual run; its job is found by it."""

ENQUEUED = ("created", "replaced")
_RAN = re.compile(rf"{RAN}: (?:{'|'.join(ENQUEUED)}) job ([0-9a-f-]{{36}})")


def history(visibility: Visibility, entry: CronJob) -> dict[str, Any]:
    """Return the context of ``cronjob/history.html``: up to `MOST` jobs, the newest first."""
    by_hand = _manually(entry)
    ids = {*past_job_ids(entry, database_now(visibility.jobs.db), MOST), *by_hand, *filter(None, [entry.last_job_id])}
    found = visibility.jobs.using(entry._state.db).filter(pk__in=ids)
    jobs = with_list_columns(found, ("state", "started_at", "finished_at")).order_by("-created_at", "-pk")[:MOST]
    return {"rows": [_row(visibility, job, by_hand.get(job.pk, "")) for job in jobs], "most": MOST}


def _manually(entry: CronJob) -> dict[UUID, str]:
    """Return who ran which job, from the admin's log, which may be in another database."""
    logged = LogEntry.objects.filter(
        content_type=get_content_type_for_model(entry), object_id=str(entry.pk), change_message__startswith=RAN
    )
    found = {}
    for each in logged.select_related("user").order_by("-action_time")[:MOST]:
        if match := _RAN.match(each.change_message):
            found[UUID(match[1])] = each.user.get_username()
    return found


def _row(visibility: Visibility, job: Job, by: str) -> dict[str, Any]:
    ran = job.finished_at - job.started_at if job.finished_at and job.started_at else None
    return {
        "at": when(job.created_at),
        "job": visibility.link(job.pk),
        "state": badge(job.state),
        "ran": seconds(ran.total_seconds()) if ran else "-",
        "error": harmless(list_columns(job).error),
        "by": harmless(by) or gettext("its schedule"),
    }
