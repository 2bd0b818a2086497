"""The table rows of the pages that ask before an action, and show its outcome."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any
from uuid import UUID

from django.utils.html import format_html

from ..exceptions import DuplicateJob
from ..models import Job
from ..operations.results import BulkResult
from ..reporting.preview import Consequence
from ..reporting.text import harmless
from .display import badge
from .visibility import Visibility


def consequence_row(visibility: Visibility, found: Consequence) -> dict[str, Any]:
    """Return the row of a job in ``job/confirm.html``."""
    return {
        **_job(visibility, found.job, found.id),
        "refusal": visibility.translate(found.refusal, found.id),
        "sentences": [visibility.translate(sentence, found.id) for sentence in found.sentences],
        "rivals": [visibility.link_and_state(job.pk, job.state) for job in found.rivals],
        "more_rivals": found.more_rivals,
    }


def outcome_row(
    visibility: Visibility, id: UUID, job: Job | None, result: BulkResult, beside: Collection[Job]
) -> dict[str, Any]:
    """Return the row of a job in ``job/retried.html``. ``beside``: the live duplicates that go on beside it."""
    error = result.refused.get(id)
    cancelled = [visibility.link(old) for old, new in result.replaced.items() if new == id]
    if isinstance(error, DuplicateJob):
        rivals = [visibility.link(error.existing_job_id)]
    else:
        rivals = cancelled or [visibility.link_and_state(other.pk, other.state) for other in beside]
    return {
        **_job(visibility, job, id),
        "refusal": visibility.translate(error.message, id) if error else "",
        "cancelled": cancelled,
        "beside": beside,
        "rivals": rivals,
    }


def _job(visibility: Visibility, job: Job | None, id: Any) -> dict[str, Any]:
    if job is None:
        return {"link": format_html("<code>{}</code>", id), "type": "-", "state": "-"}
    return {"link": visibility.link(id), "type": harmless(job.type), "state": badge(job.state)}
