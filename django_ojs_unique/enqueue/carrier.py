"""The trace context that a job carries in its ``meta``, from its enqueue to its attempts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..conf import settings
from ..exceptions import OJSError
from ..ojs.canonical import plain
from .values import sized


def hand_over(context: Mapping[str, str], jobs: Sequence[Any]) -> None:
    """Add a trace context to each job's ``meta``, unless it has one already or would become too large."""
    if not context:
        return
    context = plain(dict(context), "meta")
    for job in jobs:
        if context.keys().isdisjoint(job.meta):  # else the caller's context and ours would mix
            try:
                job.meta = sized({**job.meta, **context}, "meta", settings.max_meta_bytes)
            except OJSError:
                continue


def carried(job: Any) -> dict[str, str]:
    """Return the texts in a job's ``meta``: a trace context is among them, if the job has one."""
    if not isinstance(job.meta, dict):  # the row may have been changed manually
        return {}
    return {name: value for name, value in job.meta.items() if isinstance(value, str)}
