"""An action on all jobs that match the list's filters: it says how many these are, then changes a thousand per page.

Each page continues by itself behind the last job, shows how far it is, and can be left at any time. Jobs that are
enqueued after the first page are not changed. The session has the progress, so that a page that is sent twice changes
nothing twice.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from datetime import datetime
from itertools import islice
from typing import Any, Self
from uuid import UUID, uuid4

from django.contrib import messages
from django.contrib.admin import helpers
from django.db.models import QuerySet
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..db.inserts import ROWS_AT_ONCE
from ..operations.operation import CANCEL, DELETE, ENQUEUE_AGAIN, RELEASE, RETRY, Operation
from ..operations.results import BulkResult
from ..operations.rows import by_state, next_ids
from .base import render
from .carry_out import carry_out
from .display import badge
from .job_list import READING
from .sentences import translate
from .visibility import Visibility

ACROSS = "select_across"
"""The field of Django's form that says "all", not only those that were ticked."""
CONFIRMED = "_confirmed"
MOST_REFUSALS = 3
STOP = "stop"
_IN_SESSION = "django_ojs_unique_bulk_action"
_NOTES = {
    CANCEL: _("The handlers of running jobs are told, and their results are refused."),
    RETRY: _("Waiting jobs become available now. Finished ones run again, with all their attempts."),
    ENQUEUE_AGAIN: _("A job is refused if its policy counts it as a duplicate."),
    RELEASE: _(
        "The next enqueue of each of their keys is admitted, although the jobs go on, or their windows are open."
    ),
    DELETE: _("Their keys become free, also those of waiting jobs, and windows that were promised end now."),
}
"""What the page that asks says about an operation."""


@dataclass(slots=True)
class Progress:
    """How far one bulk action is. ``what``: the action, and the list with its filters; ``after``: the last job.

    A session has one bulk action at a time: a new one ends the old one.
    """

    what: list[str]
    until: str
    total: int
    token: str = field(default_factory=lambda: uuid4().hex)
    step: int = 0
    after: str = ""
    done: int = 0
    refused: int = 0
    refusals: list[str] = field(default_factory=list)
    is_done: bool = False

    @classmethod
    def of(cls, request: HttpRequest) -> Self | None:
        """Return the bulk action that a form continues; None if it is of another session, or for something else."""
        stored = request.session.get(_IN_SESSION)
        if stored is None or stored["token"] != request.POST.get("token") or stored["what"] != _what(request):
            return None
        return cls(**stored)

    def store(self, request: HttpRequest) -> None:
        """Keep it for the next page."""
        request.session[_IN_SESSION] = asdict(self)

    @property
    def missed(self) -> int:
        """How many of the jobs that matched at first did not match any more when it was their turn."""
        return max(0, self.total - self.seen)

    @property
    def seen(self) -> int:
        """How many jobs it has tried to change."""
        return self.done + self.refused

    def add(self, visibility: Visibility, ids: list[UUID], result: BulkResult) -> None:
        """Take up what became of the next jobs."""
        self.step += 1
        self.after = str(ids[-1]) if ids else self.after
        self.done += len(result.changed)
        self.refused += len(result.refused)
        reasons = (
            visibility.translate(error.message, id) for id, error in islice(result.refused.items(), MOST_REFUSALS)
        )
        self.refusals = [*self.refusals, *reasons][:MOST_REFUSALS]
        self.is_done = len(ids) < ROWS_AT_ONCE


def bulk_action(
    admin: Any,
    request: HttpRequest,
    matching: QuerySet[Any],
    visibility: Visibility,
    operation: Operation,
    options: dict[str, Any],
    *,
    is_confirmed: bool,
) -> HttpResponse:
    """Ask, or change the next thousand of the jobs that match, and return the page that says what comes next."""
    chosen = operation.able(matching)
    progress = Progress.of(request) if is_confirmed else None
    if progress is None:
        counts, able = by_state(matching), by_state(chosen)
        progress = Progress(_what(request), database_now(matching.db).isoformat(), sum(able.values()))
        progress.store(request)
        others = {state: count - able.get(state, 0) for state, count in counts.items()}
        rows = [(badge(state), f"{count:,}", translate(operation.done)) for state, count in able.items() if count]
        rows += [(badge(state), f"{count:,}", _why_not(operation, state)) for state, count in others.items() if count]
        return _page(admin, request, operation, progress, matching, rows=rows, note=_NOTES.get(operation, ""))
    if STOP in request.POST:
        message = gettext("Stopped. {done}").format(done=_done_of(operation, progress))
        admin.message_user(request, message, messages.WARNING)
        return HttpResponseRedirect(request.get_full_path())
    if request.POST.get("step") == str(progress.step) and not progress.is_done:
        after = UUID(progress.after) if progress.after else None
        ids = next_ids(chosen, after, datetime.fromisoformat(progress.until))
        progress.add(visibility, ids, carry_out(request, visibility, ids, operation, **options)[0])
        progress.store(request)
    return _page(admin, request, operation, progress, matching)


def refusal_note(visibility: Visibility, result: BulkResult) -> str:
    """Say how many jobs were refused, and why, for the first few."""
    reasons = [visibility.translate(error.message, id) for id, error in islice(result.refused.items(), MOST_REFUSALS)]
    count, more = len(result.refused), len(result.refused) - MOST_REFUSALS
    counted = ngettext("Refused: {count} job.", "Refused: {count} jobs.", count).format(count=f"{count:,}")
    others = ngettext("And {count} more.", "And {count} more.", more).format(count=f"{more:,}") if more > 0 else ""
    return " ".join(filter(None, [counted, *reasons, others]))


def done_note(operation: Operation, count: int) -> str:
    """Say to how many jobs something was done."""
    message = ngettext("{done}: {count} job.", "{done}: {count} jobs.", count)
    return message.format(done=translate(operation.done), count=f"{count:,}")


def _done_of(operation: Operation, progress: Progress) -> str:
    message = ngettext("{done}: {count} of {total} job.", "{done}: {count} of {total} jobs.", progress.total)
    return message.format(done=translate(operation.done), count=f"{progress.done:,}", total=f"{progress.total:,}")


def _what(request: HttpRequest) -> list[str]:
    return [request.POST.get("action", ""), request.get_full_path()]


def _page(
    admin: Any, request: HttpRequest, operation: Operation, progress: Progress, matching: Any, **asked: Any
) -> HttpResponse:
    kept = [(name, request.POST.get(name, "")) for name in ("action", ACROSS, helpers.ACTION_CHECKBOX_NAME)]
    kept += [("token", progress.token), ("step", str(progress.step)), (READING, getattr(matching, "reading", ""))]
    if not asked and "resolution" in request.POST:
        kept.append(("resolution", request.POST["resolution"]))
    return render(
        admin,
        request,
        "job/bulk.html",
        gettext("{operation}: all that match").format(operation=translate(operation.name.capitalize())),
        kept=kept,
        confirmed=CONFIRMED,
        progress=progress,
        numbers={"missed": f"{progress.missed:,}"},
        done=done_note(operation, progress.done) if progress.is_done else _done_of(operation, progress),
        refused=gettext("Refused: {count}.").format(count=f"{progress.refused:,}"),
        refusals=progress.refusals,
        yes=ngettext("Yes, {operation}: {count} job", "Yes, {operation}: {count} jobs", progress.total).format(
            operation=translate(operation.name), count=f"{progress.total:,}"
        ),
        stop=STOP,
        operation=operation,
        is_asking=bool(asked),
        sees_newest_only=getattr(matching, "sees_newest_only", False),
        back=request.get_full_path(),
        **asked,
    )


def _why_not(operation: Operation, state: str) -> str:
    if state in operation.states:
        return gettext("Nothing: they were replaced or pruned")
    return gettext("Nothing: they stay as they are")
