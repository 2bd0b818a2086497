"""What a project and its operators do to one job; each change of state is one conditional UPDATE in `lifecycle`."""

from __future__ import annotations

from functools import partial
from typing import Any, NoReturn, Self

from django.db import models, router
from django.utils import timezone

from .. import lifecycle
from ..db import holding
from ..enqueue.results import EnqueueResult
from ..enqueue.unit_of_work import UnitOfWork
from ..exceptions import InvalidTransition
from ..operations.again import request_of
from ..operations.bulk import retry
from ..operations.operation import ACTIVATE, CANCEL, DELETE, ENQUEUE_AGAIN, RETRY, Operation
from ..signals import announce, job_activated, job_cancelled


class Movable(models.Model):
    """The methods of a job that change its row."""

    state: str

    class Meta:
        abstract = True

    def cancel(self) -> None:
        """Cancel the job; the handler of a running job is told, and its result is refused.

        Raises InvalidTransition when the job has finished.
        """
        using = self._written_to
        for work in UnitOfWork(using):
            with work:
                if not lifecycle.cancel(self._row(), timezone.now()):
                    self._refuse(CANCEL)
                self.refresh_from_db(using=using)
                announce(job_cancelled, self._model, job=self, replaced_by=None, using=using)

    def activate(self) -> None:
        """Make a pending job available. Raises InvalidTransition in any other state."""
        using = self._written_to
        for work in UnitOfWork(using):
            with work:
                if not lifecycle.activate(self._row(), timezone.now()):
                    self._refuse(ACTIVATE)
                self.refresh_from_db(using=using)
                announce(job_activated, self._model, job=self, using=using)

    def retry(self, *, force: bool = False, replace: bool = False) -> list[Self]:
        """Make the job run again, in its own row; return the jobs that were cancelled for it.

        A scheduled, retryable or pending job becomes available now. A discarded or cancelled one gets all its attempts
        again and becomes available; if its ``scheduled_at`` has not come yet, it is scheduled, and if it was never
        activated, pending. Raises DuplicateJob for it while a live duplicate exists. ``replace`` cancels the live
        duplicates instead, but still raises for a running one that may not be replaced. ``force`` lets them all run.
        Raises Contended after losing 100 races, and InvalidTransition for a job that runs, has completed, was replaced
        or is pruned.
        """
        using = self._written_to
        for work in UnitOfWork(using):
            with work:
                result = retry(self._jobs, [self.pk], work, force=force, replace=replace)
                if not result.changed:
                    raise result.refused.get(self.pk) or self._refusal(RETRY)
                self.refresh_from_db(using=using)
        return list(self._jobs.filter(pk__in=result.replaced).order_by("pk")) if result.replaced else []

    def enqueue_again(self) -> EnqueueResult[Self]:
        """Enqueue a finished job's type, args and options as a new job, through its policy; this one stays as it is.

        A job with a key is enqueued only if no job holds the key. Return what `enqueue` returns, and raise what it
        raises; InvalidTransition if the job has not finished or is pruned.
        """
        job = ENQUEUE_AGAIN.able(self._row()).first()
        if job is None:
            self._refuse(ENQUEUE_AGAIN)
        result: EnqueueResult[Self] = self._jobs.enqueue_request(request_of(job))
        return result

    def release_unique_key(self) -> bool:
        """Take this job out of uniqueness for good, so that the next enqueue of its fingerprint is admitted.

        The job goes on without its fingerprint. Return whether it had one.
        """
        released = lifecycle.leave_uniqueness(self._row())
        self.refresh_from_db(using=self._written_to)
        return bool(released)

    def delete(self, using: str | None = None, keep_parents: bool = False) -> tuple[int, dict[str, int]]:
        """Do what Django does. A unique key that this job holds for a live job stays held."""
        jobs = self._model._default_manager.using(using or self._written_to).filter(pk=self.pk)
        return holding.delete(jobs, partial(super().delete, using, keep_parents))

    delete.alters_data = True  # type: ignore[attr-defined]

    def remove(self) -> None:
        """Delete the row: its fingerprint is free, its window ends. Raises InvalidTransition while the job runs."""
        if not lifecycle.remove(self._row()):
            self._refuse(DELETE)

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

    def _row(self) -> Any:
        return self._jobs.filter(pk=self.pk)

    def _refusal(self, operation: Operation) -> InvalidTransition:
        return operation.refusals(self._jobs, [self.pk])[self.pk]

    def _refuse(self, operation: Operation) -> NoReturn:
        raise self._refusal(operation)
