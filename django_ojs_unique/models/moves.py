"""What a project and its operators do to one job.

The first call imports what it needs, so that `django.setup()` does not.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Self

from django.db import models, router

from ..enqueue.results import EnqueueResult
from ..exceptions import InvalidTransition
from ..operations.operation import ACTIVATE, CANCEL, DELETE, RELEASE, RETRY, Operation
from ..operations.results import BulkResult


class Movable(models.Model):
    """The methods of a job that change its row."""

    state: str

    class Meta:
        abstract = True

    def cancel(self) -> None:
        """Cancel the job; the handler of a running job is told, and its result is refused.

        Raises InvalidTransition when the job has finished.
        """
        self._change(CANCEL)

    def activate(self) -> None:
        """Make a pending job available. Raises InvalidTransition in any other state."""
        self._change(ACTIVATE)

    def retry(self, *, force: bool = False, replace: bool = False) -> list[Self]:
        """Make the job run again, in its own row; return the jobs that were cancelled for it.

        A scheduled, retryable or pending job becomes available now. A discarded or cancelled one gets all its attempts
        again and becomes available; if its ``scheduled_at`` has not come yet, it is scheduled, and if it was never
        activated, pending; a second call then makes it available. Raises DuplicateJob for a finished job while a live
        duplicate exists. ``replace`` cancels the live duplicates instead, but still raises for a running one that may
        not be replaced. ``force`` lets them all run. Raises Contended after losing 100 races, and InvalidTransition for
        a job that is available, runs, has completed, was replaced or is pruned.
        """
        replaced = self._change(RETRY, force=force, replace=replace).replaced
        return list(self._jobs.filter(pk__in=replaced).order_by("pk")) if replaced else []

    def enqueue_again(self) -> EnqueueResult[Self]:
        """Enqueue a finished job's type, args and options as a new job, through its policy; this one stays as it is.

        A job with a key is enqueued only if no job holds the key. Return what `enqueue` returns, and raise what it
        raises; InvalidTransition if the job has not finished or is pruned.
        """
        from ..operations.bulk import enqueue_one_again

        result: EnqueueResult[Self] = enqueue_one_again(self._jobs, self)
        return result

    def release_unique_key(self) -> bool:
        """Take this job out of uniqueness for good, so that the next enqueue of its fingerprint is admitted.

        The job goes on without its fingerprint. Return whether it had one.
        """
        try:
            self._change(RELEASE)
        except InvalidTransition:
            self.refresh_from_db(using=self._written_to)
            return False
        return True

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Do what Django does. A unique key that this job holds for a live job stays held."""
        from ..db import holding

        jobs = self._model._default_manager.using(using or self._written_to).filter(pk=self.pk)
        return holding.delete(jobs, partial(super().delete, using, keep_parents))

    delete.alters_data = True  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Delete the row: its fingerprint is free, its window ends. Raises InvalidTransition while the job runs."""
        self._change(DELETE)

    @property
    def _written_to(self) -> str:
        """The database where its row is changed, as the object may have been read from a replica."""
        return router.db_for_write(self._model, instance=self)

    @property
    def _model(self) -> type[models.Model]:
        """The sender of signals, also of a proxy's."""
        return type(self)._meta.concrete_model or type(self)

    @property
    def _jobs(self) -> Any:
        return self._model._default_manager.using(self._written_to)

    def _change(self, operation: Operation, **options: bool) -> BulkResult:
        from ..operations.bulk import change_one

        return change_one(self._jobs, self, operation, **options)
