"""What is told of a verdict: the record of a suppressed enqueue, and the signals."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from django.apps import apps
from django.db import connections
from django.db.models import Model

from ..conf import settings
from ..db.dialect import Dialect, LookUp
from ..db.dialects import dialect_on
from ..exceptions import shorten
from ..handlers.redaction import redacted
from ..signals import announce as send
from ..signals import job_cancelled, job_enqueued, job_suppressed, job_updated
from ..unique.conflict import Action, Verdict
from ..unique.policy import OnConflict, UniquePolicy
from ..unique.row import JobRow
from .new_job import NewJob

logger = logging.getLogger("django_ojs_unique.enqueue")

_MOST_WARNED_OF = 1_000
_warned_of: set[str] = set()
_COPIED = ("created_at", "fingerprint", "type", "queue", "args", "meta")


def announce(sender: type[Model], using: str, new_job: NewJob, verdict: Verdict[JobRow]) -> None:
    """Mark an admitted job as stored; send the signals about its enqueue, in the order of events."""
    is_admitted, existing = verdict.action is Action.ADMIT, verdict.existing
    if is_admitted:
        new_job.mark_stored(using)
    elif new_job.key is not None and existing is not None:  # perhaps a copy of a job of the same bulk enqueue
        existing._state.adding, existing._state.db = False, using
    elif verdict.action is Action.IGNORE:
        _warn_of_dropped_args(new_job, verdict)
    for replaced in verdict.cancel:
        _warn_of_dropped_args(new_job, verdict)
        send(job_cancelled, sender, job=replaced, replaced_by=new_job.values["id"], using=using)
    if job_suppressed.receivers and (outcome := verdict.suppressed) is not None:
        send(job_suppressed, sender, outcome=outcome, existing_job=existing, job=new_job.job, using=using)
    if is_admitted:
        announce_new(sender, using, new_job)
    elif verdict.action is Action.REWRITE:
        send(job_updated, sender, job=existing, using=using)


def _warn_of_dropped_args(new_job: NewJob, verdict: Verdict[JobRow]) -> None:
    """Warn once in this process, for each type, that a policy without keys has dropped a job with args."""
    policy, type, args = new_job.policy, new_job.values["type"], new_job.values["args"]
    if policy is None or policy.says_keys or not args or type in _warned_of or len(_warned_of) >= _MOST_WARNED_OF:
        return
    _warned_of.add(type)
    logger.warning(
        "Job type %r: the enqueue with args %s was %s, and its duplicate may have other args: the unique policy says no"
        " keys, so only the type counts. Write keys=['type', 'args'], or keys=['type'] if it is meant so.",
        type,
        shorten(redacted(type, args)),
        verdict.suppressed,
    )


def announce_new(sender: type[Model], using: str, new_job: NewJob) -> None:
    """Send the signal about a new job."""
    if job_enqueued.receivers:
        send(job_enqueued, sender, job=new_job.job, using=using)


def record(using: str, decided: Iterable[tuple[NewJob, Verdict[JobRow]]]) -> None:
    """Store which enqueues met which stored jobs, unless ``OJS_UNIQUE["RECORD_SUPPRESSED"]`` is off."""
    if not settings.record_suppressed:
        return
    rows = [
        {
            **_about(new_job, str(verdict.suppressed)),
            "existing_job_id": met.pk,
            "existing_state": met.state,
            "job_id": new_job.values["id"] if verdict.cancel else None,
        }
        for new_job, verdict in decided
        for met in verdict.met
    ]
    if rows:
        _records(using).insert_rows(rows)


def find_and_record(
    dialect: Dialect, new_job: NewJob, policy: UniquePolicy, created_after: datetime | None
) -> tuple[Any | None, bool]:
    """Find the duplicate that a policy may count; return it, and whether the enqueue is recorded already."""
    wanted = LookUp(new_job.values["fingerprint"], policy, created_after, new_job.full_row)
    if not settings.record_suppressed or not dialect.records_at_once(policy):
        return dialect.find_duplicate(wanted), False
    record = _about(new_job, "rejected" if policy.on_conflict is OnConflict.REJECT else "deduplicated")
    found = dialect.find_and_record(wanted, _records(dialect.connection.alias), record)
    return found, found is None or found.expires_at is None or found.expires_at > record["created_at"]


def _about(new_job: NewJob, outcome: str) -> dict[str, Any]:
    copied = {name: new_job.values[name] for name in _COPIED}
    return {**copied, "outcome": outcome, "on_conflict": new_job.strategy}


def _records(using: str) -> Dialect:
    return dialect_on(apps.get_model("django_ojs_unique", "SuppressedEnqueue"), connections[using])
