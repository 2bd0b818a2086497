"""An action on all jobs that match the list's filters: it says how many these are, then changes a thousand per page.

Each page continues by itself behind the last job, shows how far it is, and can be left at any time. Jobs that are
enqueued after the first page are not changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any, Self
from uuid import UUID

from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, QueryDict
from django.utils import timezone
from django.utils.dateparse import parse_datetime

from ..by_hand.refusals import able
from ..by_hand.results import BulkResult
from ..insight.typed import read_id
from ..operations.bulk import Operation, by_state, next_ids
from .base import render
from .carry_out import carry_out
from .display import badge

ACROSS = "select_across"
"""The field of Django's form that says "all", not only those that were ticked."""
CONFIRMED = "_confirmed"
MOST_REFUSALS = 3


@dataclass(slots=True)
class Progress:
    """How far it is: the pages carry it along as fields of their forms."""

    until: datetime
    total: int
    after: UUID | None = None
    done: int = 0
    refused: int = 0

    @classmethod
    def read(cls, data: QueryDict) -> Self | None:
        """Read the fields of a form; None if there are none, or someone has changed them."""
        try:
            until = parse_datetime(str(data["until"]))
            numbers = [int(str(data[name])) for name in ("total", "done", "refused")]
        except (KeyError, ValueError):
            return None
        if until is None or timezone.is_naive(until):
            return None
        return cls(until, numbers[0], read_id(data.get("after", "")), *numbers[1:])

    @property
    def seen(self) -> int:
        """How many jobs it has tried to change."""
        return self.done + self.refused

    def fields(self) -> dict[str, Any]:
        """Return the fields of the next form."""
        numbers = {"total": self.total, "done": self.done, "refused": self.refused}
        return {"until": self.until.isoformat(), "after": self.after or "", **numbers}


def sweep(
    admin: Any,
    request: HttpRequest,
    matching: QuerySet[Any],
    jobs: QuerySet[Any],
    operation: Operation,
    *,
    is_confirmed: bool,
) -> HttpResponse:
    """Ask, or change the next thousand of the jobs that match, and return the page that says what comes next."""
    chosen = able(matching, operation.name)
    progress = Progress.read(request.POST) if is_confirmed else None
    if progress is None:
        counts, suitable = by_state(matching), by_state(chosen)
        total = sum(suitable.values())
        return _page(
            admin,
            request,
            operation,
            Progress(timezone.now(), total),
            suitable=_counts(suitable),
            others=_counts({state: count - suitable.get(state, 0) for state, count in counts.items()}),
            is_asking=True,
        )
    ids = next_ids(chosen, progress.after, progress.until)
    result = carry_out(request, jobs, ids, operation)
    progress.done += len(result.changed)
    progress.refused += len(result.refused)
    progress.after = ids[-1] if ids else progress.after
    refusals = [*request.POST.getlist("refusal"), *(error.message for error in result.refused.values())]
    return _page(admin, request, operation, progress, refusals=refusals[:MOST_REFUSALS], is_done=not ids)


def refusal_note(result: BulkResult) -> str:
    """Say how many jobs were refused, and why, for the first few."""
    messages = [error.message for error in result.refused.values()]
    named, more = " ".join(messages[:MOST_REFUSALS]), len(messages) - MOST_REFUSALS
    return f"Refused: {len(messages)} job(s). {named}{f' And {more} more.' if more > 0 else ''}"


def _page(admin: Any, request: HttpRequest, operation: Operation, progress: Progress, **context: Any) -> HttpResponse:
    kept = [(name, request.POST.get(name, "")) for name in ("action", ACROSS, helpers.ACTION_CHECKBOX_NAME)]
    if not context.get("is_asking") and "resolution" in request.POST:
        kept.append(("resolution", request.POST["resolution"]))
    return render(
        admin,
        request,
        "job/sweep.html",
        f"{operation.name.capitalize()} all that match",
        kept=[*kept, *progress.fields().items()],
        confirmed=CONFIRMED,
        progress=progress,
        operation=operation,
        back=request.get_full_path(),
        **context,
    )


def _counts(counts: dict[str, int]) -> list[tuple[Any, int]]:
    return [(badge(state), count) for state, count in counts.items() if count]
