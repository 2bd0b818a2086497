"""The methods of ``Job.objects.filter(...)`` that change many jobs."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Self

from django.db import models, router

from ..enqueue.results import JobT
from ..exceptions import InvalidRequest, did_you_mean
from ..ojs.states import INCOMPLETE, POSTPONED, REVIVABLE, TERMINAL, JobState
from . import bulk
from .again import enqueue_again
from .results import BulkResult
from .revival import revive


class ChangeableQuerySet(models.QuerySet[JobT]):
    """Jobs that can be cancelled, retried, revived and enqueued again."""

    def cancel(self) -> BulkResult:
        """Cancel those of these jobs that have not finished: a thousand per transaction, or all in the caller's.

        The handlers of running jobs are told. Jobs that are enqueued after the start are not cancelled. A slice, as in
        ``Job.objects.filter(queue="mail")[:100].cancel()``, changes no more than its jobs.
        """
        return self._change(bulk.cancel, "cancel", INCOMPLETE)

    def retry(self, *, force: bool = False) -> BulkResult:
        """Make those of these jobs available now that are scheduled, retryable or pending; revive the discarded ones.

        ``force`` revives a discarded job beside its live duplicates. Otherwise it is refused with DuplicateJob.
        """
        return self._change(partial(bulk.retry, force=force), "retry", POSTPONED | {JobState.DISCARDED})

    def revive(
        self, *, state: JobState | str = JobState.DISCARDED, force: bool = False, replace: bool = False
    ) -> BulkResult:
        """Revive those of these jobs that are discarded, or ``state="cancelled"``, as `Job.revive` does.

        Of several that are alike, the oldest is revived and the others are refused, unless ``force`` is given.
        """
        if state not in REVIVABLE:
            raise InvalidRequest.at(
                "state", "cannot be revived", value=state, mend=did_you_mean(state, sorted(REVIVABLE))
            )
        return self._change(partial(revive, force=force, replace=replace), "revive", {JobState(state)})

    def enqueue_again(self) -> BulkResult:
        """Enqueue those of these jobs again that have finished, as `Job.enqueue_again` does, the oldest first."""
        return self._change(enqueue_again, "enqueue again", TERMINAL)

    # As Django's `delete`: nobody changes all jobs by leaving out the filter.
    for _change_of_many in (cancel, retry, revive, enqueue_again):
        _change_of_many.queryset_only = True  # type: ignore[attr-defined]

    def _change(self, act: bulk.Change, operation: str, states: Collection[JobState]) -> BulkResult:
        jobs = self.using(self._for_writing())
        ids = bulk.oldest_first(jobs, states)
        if jobs.query.is_sliced or jobs.query.distinct or len(jobs.query.alias_map) > 1:
            jobs = self._everything(jobs.db)  # such a query takes no further filters, or cannot lock rows
        return BulkResult.total(bulk.change(jobs, ids, act, operation))

    def _for_writing(self) -> str:
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]

    def _everything(self, using: str) -> Self:
        return type(self)(self.model, using=using)
