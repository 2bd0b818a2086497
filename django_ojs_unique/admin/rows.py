"""The table rows of the pages that ask before an action, and show its outcome."""

from __future__ import annotations

from typing import Any

from django.utils.html import format_html

from ..insight.preview import Consequence
from ..insight.text import harmless
from ..models import Job
from ..operations.bulk import Attempted, Revived
from .display import badge, job_and_state, job_link


def consequence_row(said: Consequence) -> dict[str, Any]:
    """Return the row of a job in ``job/confirm.html``."""
    return {
        **_job(said.job, said.id),
        "refusal": said.refusal,
        "sentences": said.sentences,
        "rivals": [job_and_state(job.pk, job.state) for job in said.rivals],
        "more_rivals": said.more_rivals,
    }


def outcome_row(attempted: Attempted) -> dict[str, Any]:
    """Return the row of a job in ``job/revived.html``."""
    revived = attempted.answer if isinstance(attempted.answer, Revived) else Revived()
    met = [job_and_state(job.pk, job.state) for job in (*revived.cancelled, *revived.beside)]
    if attempted.duplicate is not None:
        met = [job_link(attempted.duplicate)]
    return {
        **_job(attempted.job, attempted.id),
        "refusal": attempted.refusal,
        "cancelled": revived.cancelled,
        "beside": revived.beside,
        "rivals": met,
    }


def _job(job: Job | None, id: Any) -> dict[str, Any]:
    if job is None:
        return {"link": format_html("<code>{}</code>", id), "type": "-", "state": "-"}
    return {"link": job_link(id), "type": harmless(job.type), "state": badge(job.state)}
