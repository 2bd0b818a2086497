"""Rewrite the waiting job that holds a key as if it were newly enqueued (Graphile Worker, "Job key")."""

from __future__ import annotations

import logging
from copy import copy
from typing import Any

from ..conf import settings
from ..exceptions import InvalidRequest, Message
from ..handlers.redaction import redacted_args
from ..options import OPTIONS
from ..unique.keys import is_mixed, is_too_late, merge
from ..unique.row import JobRow
from .values import sized

logger = logging.getLogger("django_ojs_unique")

_TIME = ("state", "scheduled_at", "run_at", "enqueued_at")
_KEPT = {"id", "key", "unique"}
_ENVELOPE = (
    "type",
    "args",
    "max_attempts",
    "fingerprint_scheme",
    "fair_partition",
    "blocked_by",
    *sorted({option.column for option in OPTIONS.values()} - {"", *_KEPT, *_TIME}),
)
_UNTRIED = (
    "attempt",
    "errors",
    "dead_letter",
    "started_at",
    "finished_at",
    "worker_id",
    "progress",
    "progress_note",
    "steps",
    "payload_pruned",
)
REWRITTEN = (*_ENVELOPE, *_TIME, *_UNTRIED, "revision", "workflow_id", "workflow_only")


def rewritten(holder: JobRow, job: JobRow, *, keep_time: bool) -> JobRow:
    """Return a copy of ``holder`` with the values of ``job``, so that the results of earlier items do not change."""
    args = merged_args(holder, job)
    if is_mixed(holder.args, job.args):
        logger.warning(
            "Job %s (%s): an enqueue by key replaced an array by an object or the reverse: its args are lost.",
            holder.pk,
            holder.type,
        )
    holder = copy(holder)
    for name in (*_ENVELOPE, *_UNTRIED, *(() if keep_time else _TIME)):
        setattr(holder, name, getattr(job, name))
    holder.args = args
    holder.workflow_id = job.workflow_id or holder.workflow_id
    holder.workflow_only = (holder.workflow_only and job.workflow_only) or None
    holder.revision += 1
    return holder


def merged_args(holder: JobRow, job: JobRow) -> Any:
    """Return the args of a rewritten job. Raises InvalidRequest when they may not be mixed, or are too large."""
    args = job.args
    if is_too_late(holder, job.created_at):
        return args
    if is_mixed(holder.args, args) and not settings.replace_mixed_args:
        raise InvalidRequest.at(
            "args",
            "would replace an array by an object or the reverse, and OJS_UNIQUE['REPLACE_MIXED_ARGS'] is off",
            value=redacted_args(job.type, args),
            hint=Message(_SEND_ARRAY if isinstance(holder.args, list) else _SEND_OBJECT, id=holder.pk),
        )
    return sized(merge(holder.args, args), "args", settings.max_args_bytes)


_SEND_ARRAY = Message("Send an array, as job {id} has.")
_SEND_OBJECT = Message("Send an object, as job {id} has.")
