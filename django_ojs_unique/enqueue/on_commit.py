"""Enqueue once a transaction has been committed, when no caller is left to catch an error."""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from django.db import connections, transaction

from ..exceptions import DuplicateJob, InvalidRequest, did_you_mean

logger = logging.getLogger("django_ojs_unique")


def after_commit(commit_of: str, using: str, type: str, enqueue: Callable[[], Any]) -> None:
    """Call ``enqueue``, for a job on the database ``using``, once the open transaction of ``commit_of`` is committed.

    A duplicate is logged at INFO, and any other failure at ERROR: the commit must not end in an error, and the next
    callbacks must run. Without a transaction it is called at once, and a failure other than a duplicate is raised.

    Raises InvalidRequest for an unknown alias.
    """
    if commit_of not in connections:
        hint = did_you_mean(commit_of, connections)
        raise InvalidRequest.at("commit_of", "is no alias in DATABASES", value=commit_of, hint=hint)

    def unless_duplicate() -> None:
        try:
            enqueue()
        except DuplicateJob as refusal:
            met, state = refusal.existing_job_id, refusal.existing_job_state
            logger.info("Nothing was enqueued on commit: job %s (%s) is %s.", met, type, state)

    def whatever_happens() -> None:
        try:
            # A savepoint, if the jobs are still in a transaction: a failed statement must not break that one.
            with transaction.atomic(using) if connections[using].in_atomic_block else nullcontext():
                unless_duplicate()
        except Exception:
            logger.exception("A job is lost: the enqueue of %s on %r after a commit failed.", type, using)

    is_open = connections[commit_of].in_atomic_block
    transaction.on_commit(whatever_happens if is_open else unless_duplicate, using=commit_of)
