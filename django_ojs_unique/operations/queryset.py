"""The methods of ``Job.objects.filter(...)`` that change many jobs.

The first call imports what it needs, so that `django.setup()` does not.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, Self

from django.db import models, router

from ..enqueue.results import JobT
from ..exceptions import InvalidRequest, did_you_mean
from ..ojs.states import INCOMPLETE, POSTPONED, TERMINAL, UNSUCCESSFUL, JobState
from .operation import CANCEL, ENQUEUE_AGAIN, RETRY, Operation
from .results import BulkResult


class ChangeableQuerySet(models.QuerySet[JobT]):
    """Jobs that can be cancelled, retried and enqueued again."""

    def cancel(self) -> BulkResult:
        """Cancel those of these jobs that have not finished: a thousand per transaction, or all in the caller's.

        The handlers of running jobs are told. Jobs that are enqueued after the start are not cancelled. A slice, as in
        ``Job.objects.filter(queue="mail")[:100].cancel()``, changes no more than its jobs.
        """
        return self._change(CANCEL, INCOMPLETE)

    def retry(self, *, state: JobState | str | None = None, force: bool = False, replace: bool = False) -> BulkResult:
        """Retry those of these jobs that are scheduled, retryable, pending or discarded, as `Job.retry` does.

        With a ``state``, those in this state: ``state="cancelled"`` retries cancelled jobs. Of several finished ones
        that are alike, the oldest is retried and the others are refused, unless ``force`` is given.
        """
        if state is not None and state not in (able := POSTPONED | UNSUCCESSFUL):
            raise InvalidRequest.at("state", "cannot be retried", value=state, hint=did_you_mean(state, sorted(able)))
        states = POSTPONED | {JobState.DISCARDED} if state is None else {JobState(state)}
        return self._change(RETRY, states, force=force, replace=replace)

    def enqueue_again(self) -> BulkResult:
        """Enqueue those of these jobs again that have finished, as `Job.enqueue_again` does, the oldest first."""
        return self._change(ENQUEUE_AGAIN, TERMINAL)

    def update(self, **changes: Any) -> int:
        """Do what Django does. Raise InvalidRequest for a field that only the methods above and workers write."""
        from .owned import refuse_owned

        refuse_owned(changes)
        return super().update(**changes)

    update.alters_data = True  # type: ignore[attr-defined]

    def delete(self) -> tuple[int, dict[str, int]]:
        """Do what Django does. A unique key that one of these jobs holds for a live job stays held."""
        from ..db import holding

        return holding.delete(self, super().delete)

    delete.alters_data = True  # type: ignore[attr-defined]
    delete.queryset_only = True  # type: ignore[attr-defined]

    # As Django's `delete`: nobody changes all jobs by leaving out the filter.
    for _change_of_many in (cancel, retry, enqueue_again):
        _change_of_many.queryset_only = True  # type: ignore[attr-defined]

    def _change(self, operation: Operation, states: Collection[JobState], **options: bool) -> BulkResult:
        """Do an operation to those of these jobs that are in some states; see `bulk.change`."""
        from . import bulk

        jobs = self.using(self._for_writing())
        ids = bulk.oldest_first(jobs, states)
        if not _can_be_locked(jobs):
            jobs = self._everything(jobs.db)
        chosen = jobs.filter(state__in=sorted(states))  # checked again under the lock
        return BulkResult.total(bulk.change(chosen, ids, operation, **options))

    def _for_writing(self) -> str:
        return self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]

    def _everything(self, using: str) -> Self:
        return type(self)(self.model, using=using)


def _can_be_locked(jobs: Any) -> bool:
    """Tell whether rows can be locked, and filtered further, by the same query."""
    query = jobs.query
    is_plain = query.deferred_loading == (frozenset(), True) and not (query.select_related or query.annotations)
    return is_plain and jobs._fields is None and not (query.is_sliced or query.distinct or len(query.alias_map) > 1)
