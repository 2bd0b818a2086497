"""The panels of a job's page: what `reporting` says about the job, as HTML."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from django.contrib.admin.models import LogEntry
from django.contrib.admin.options import get_content_type_for_model
from django.http import HttpRequest
from django.urls import reverse
from django.utils.html import format_html
from django.utils.text import capfirst
from django.utils.translation import gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..handlers.redaction import redacted, redacted_member
from ..models import Job, SuppressedEnqueue, WorkerProcess, Workflow
from ..ojs.states import JobState
from ..options import TEXTS
from ..reporting import job_options
from ..reporting.duplicates import Relations, relations
from ..reporting.limit_waits import waits_for
from ..reporting.stopped import still_runs
from ..reporting.suppressed import MOST_DIFFERENCES, Attempts, Encounter, attempts_that_met
from ..reporting.text import harmless
from ..reporting.timeline import MOST_FAILURES, Event, failures, requeued, timeline
from ..reporting.unclaimed import nobody
from ..reporting.uniqueness import against, recompute, uniqueness
from .base import may_view
from .display import (
    ago,
    badge,
    difference_texts,
    fingerprint_link,
    plain_text,
    pretty,
    strategy,
    when,
)
from .sentences import translate, translate_stored
from .visibility import Visibility
from .workers import worker_url
from .workflow_page import places

PAYLOADS = ("args", "meta", "extra", "steps", "result")
MOST_LOGGED = 20
LABELS = {"schema": _("Schema")}
"""What the page calls options that are plain texts."""
FAILED = frozenset({JobState.RETRYABLE, JobState.DISCARDED})
"""The states of jobs whose last run failed: their page begins with the last error."""


def panels(visibility: Visibility, request: HttpRequest, job: Job, now: datetime) -> dict[str, Any]:
    """Return the context of a job's page."""
    computed, related = recompute(job), relations(job)
    errors = [_failure(job.type, failure) for failure in failures(job)]
    sees_attempts = may_view(request, SuppressedEnqueue)
    fingerprint, attempts = (
        job.fingerprint or computed.fingerprint,
        visibility.attempts(SuppressedEnqueue.objects.all()),
    )
    met = attempts_that_met(job, fingerprint, attempts) if sees_attempts else None
    others = (*related.family, *related.replaces, related.blocked_by, related.successor)
    visibility.look([job.replaced_by_id, *(id for row in others if row for id in (row.pk, row.replaced_by_id))])
    return {
        "state": badge(job.state),
        "facts": [(label, value) for label, value in _facts(visibility, request, job) if value not in ("", None)],
        "links": [*_links(visibility, related, job), *_places(visibility, request, job)],
        "uniqueness": _uniqueness(visibility, job, now, computed),
        "family": [_relative(visibility, row, job) for row in related.family],
        "more_family": related.more,
        "sees_attempts": sees_attempts,
        "attempts": _attempts(visibility, met) if met else None,
        "timeline": [
            _event(visibility, event, now)
            for event in timeline(job, [*_logged(job), *requeued(job, job._state.db or "default")])
        ],
        "payloads": [
            (name, pretty(redacted_member(job, name)), _download(job, name)) for name in PAYLOADS if _tells(job, name)
        ],
        "failures": errors,
        "last_error": errors[0] if errors and job.state in FAILED else None,
        "errors_url": _download(job, "errors"),
        "most_failures": MOST_FAILURES,
    }


def _facts(visibility: Visibility, request: HttpRequest, job: Job) -> Iterator[tuple[str, Any]]:
    yield gettext("Id"), format_html("<code>{}</code>", job.pk)
    yield gettext("Type"), format_html("<code>{}</code>", harmless(job.type))
    yield gettext("Handler"), harmless(translate(job_options.handler(job)))
    yield gettext("Queue"), harmless(job.queue)
    yield (
        gettext("Taken by nobody"),
        translate(nobody(job, job._state.db or "default")) if may_view(request, WorkerProcess) else "",
    )
    waits = (harmless(visibility.translate(sentence)) for sentence in waits_for(job, job._state.db or "default"))
    yield gettext("Waits"), " ".join(waits)
    yield gettext("Still runs"), translate(still_runs(job, job._state.db or "default"))
    yield gettext("Priority"), str(job.priority)
    yield gettext("Tags"), harmless(", ".join(map(str, job.tags)) if isinstance(job.tags, list) else str(job.tags))
    for option in TEXTS.values():
        label = LABELS.get(option.column, capfirst(option.column))
        yield str(label), harmless(getattr(job, option.column))
    yield gettext("Attempts"), gettext("{attempt} of {most}").format(attempt=job.attempt, most=job.most_attempts)
    yield gettext("Retry policy"), harmless(translate(job_options.retries(job)))
    yield gettext("Timeout"), translate(job_options.duration(job.timeout_ms))
    yield gettext("Lease of"), translate(job_options.duration(job.visibility_timeout_ms))
    yield gettext("Created"), when(job.created_at)
    for label, moment in (
        (gettext("Due"), job.run_at),
        (gettext("Finished"), job.finished_at),
        (gettext("Lease ends"), job.lease_expires_at),
    ):
        yield label, when(moment) if moment else ""
    yield gettext("Worker"), _worker(job.worker_id)
    if job.progress is not None:
        percent = f"{job.progress:.0%}"
        bar = '<progress max="1" value="{}" aria-label="{}">{}</progress> {} {}'
        yield (
            gettext("Progress"),
            format_html(bar, f"{job.progress:.4f}", gettext("Progress"), percent, percent, harmless(job.progress_note)),
        )
    yield gettext("Nothing to do"), harmless(job.skipped)
    if job.dead_letter:
        yield gettext("Dead letter"), gettext("yes: it used up its attempts under a retry policy that says dead_letter")
    if job.payload_pruned:
        gone = gettext("its args, meta, result and errors are gone; the row still counts as a duplicate")
        yield gettext("Pruned"), gone


def _worker(id: str | None) -> Any:
    if not id:
        return ""
    return format_html('<a href="{}"><code>{}</code></a>', worker_url(id), harmless(id))


def _links(visibility: Visibility, related: Relations, job: Job) -> Iterator[tuple[str, Any]]:
    if related.blocked_by is not None:
        yield (
            gettext("Cannot be retried now, blocked by"),
            visibility.link_and_state(related.blocked_by.pk, related.blocked_by.state),
        )
    if job.replaced_by_id is not None:
        gone = format_html(gettext("{job} (gone by now)"), job=visibility.link(job.replaced_by_id))
        there = related.successor
        yield gettext("Replaced by"), visibility.link_and_state(there.pk, there.state) if there else gone
    for row in related.replaces:
        yield gettext("Replaces"), visibility.link_and_state(row.pk, row.state)


def _places(visibility: Visibility, request: HttpRequest, job: Job) -> Iterator[tuple[str, Any]]:
    if may_view(request, Workflow):
        yield from places(visibility, job)


def _uniqueness(visibility: Visibility, job: Job, now: datetime, computed: Any) -> dict[str, Any]:
    found = uniqueness(job, now)
    states = ", ".join(map(translate, sorted(job.unique_states)))
    facts = [
        (gettext("Compared"), translate(against(found.policy)) if found.policy else ""),
        (gettext("Holds its unique key while"), states if job.fingerprint is not None else ""),
        (gettext("Canonical text"), plain_text(computed.text) if computed.text else ""),
        (gettext("Fingerprint"), fingerprint_link(job.fingerprint, whole=True) if job.fingerprint is not None else ""),
        (gettext("Scheme"), str(job.fingerprint_scheme) if job.fingerprint is not None else ""),
    ]
    return {
        "policy": pretty(job.unique) if job.unique is not None else "",
        "sentences": [harmless(visibility.translate(sentence)) for sentence in found.sentences],
        "notes": [
            harmless(translate(note))
            for note in (computed.note, found.problem)
            if note and note not in found.sentences[0]
        ],
        "facts": [(label, value if hasattr(value, "__html__") else harmless(value)) for label, value in facts if value],
    }


def _relative(visibility: Visibility, row: Any, job: Job) -> dict[str, Any]:
    if row.replaced_by_id is None:
        note: Any = gettext("keeps others out") if row.holds_unique_key else ""
    elif row.replaced_by_id == job.pk:
        note = gettext("replaced by this job")
    else:
        note = format_html(gettext("replaced by {job}"), job=visibility.link(row.replaced_by_id))
    return {
        "itself": row.pk == job.pk,
        "job": visibility.link(row.pk),
        "state": badge(row.state),
        "created": when(row.created_at),
        "note": note,
    }


def _attempts(visibility: Visibility, met: Attempts) -> dict[str, Any]:
    count = f"{met.count:,}"
    if met.counted:
        caption = ngettext("{count} enqueue met this job", "{count} enqueues met this job", met.count)
    else:
        caption = gettext("more than {count} enqueues met this job")
    if met.count > len(met.newest):
        caption = gettext("{caption}; the newest {shown} are shown").format(caption=caption, shown=len(met.newest))
    return {
        "caption": caption.format(count=count),
        "is_cut": met.count > len(met.newest),
        "rows": [_attempt(visibility, each) for each in met.newest],
    }


def _attempt(visibility: Visibility, met: Encounter) -> dict[str, Any]:
    attempt, found = met.attempt, met.differences or ()
    return {
        "url": reverse("admin:django_ojs_unique_suppressedenqueue_change", args=[attempt.pk]),
        "at": ago(attempt.created_at),
        "strategy": strategy(attempt.on_conflict),
        "outcome": badge(attempt.outcome, attempt.get_outcome_display()),
        "job": visibility.link(attempt.job_id) if attempt.job_id else "",
        "state": badge(attempt.existing_state),
        "compared": met.differences is not None,
        "differences": [difference_texts(each) for each in found[:MOST_DIFFERENCES]],
        "more": len(found) > MOST_DIFFERENCES,
    }


def _logged(job: Job) -> Iterator[Event]:
    """Yield what operators did to the job in the admin, from the admin's log, which may be in another database."""
    entries = LogEntry.objects.filter(content_type=get_content_type_for_model(job), object_id=str(job.pk))
    for entry in entries.select_related("user").order_by("-action_time")[:MOST_LOGGED]:
        text = translate_stored(entry.get_change_message()) or entry
        yield Event(entry.action_time, f"{entry.user.get_username()}: {text}")


def _event(visibility: Visibility, event: Event, now: datetime) -> dict[str, Any]:
    return {
        "at": when(event.at),
        "text": harmless(visibility.translate(event.text)),
        "job": visibility.link(event.job) if event.job else "",
        "ahead": event.at > now,
    }


def _failure(type: str, failure: Any) -> dict[str, Any]:
    return {
        "title": harmless(
            gettext("Attempt {number}").format(number=failure.attempt) if failure.attempt else gettext("Error")
        ),
        "at": when(failure.at) if failure.at else "",
        "type": harmless(failure.type),
        "message": plain_text(failure.message) if failure.message else "",
        "traceback": plain_text(failure.traceback) if failure.traceback else "",
        "then": translate(failure.then),
        "raw": pretty(redacted(type, failure.raw)) if failure.raw is not None else "",
    }


def _tells(job: Job, name: str) -> bool:
    return name == "args" or getattr(job, name) not in (None, {}, [])


def _download(job: Job, name: str) -> str:
    return reverse("admin:django_ojs_unique_job_json", args=[job.pk, name])
