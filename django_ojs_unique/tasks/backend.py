"""`OJSBackend`: Django's tasks as jobs in the project's own database, unique if they have a policy or a key."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cached_property
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import connections, router

from ..conf import settings
from ..enqueue.request import Request
from ..exceptions import InvalidRequest, InvalidRetryPolicy, did_you_mean
from ..execution import eager
from ..ojs.names import queue_name
from ..ojs.retry import RetryPolicy
from .arguments import NOTE, backend_of, store
from .declare import OJSTask
from .framework import (
    BaseTaskBackend,
    InvalidTask,
    TaskResult,
    TaskResultDoesNotExist,
    task_enqueued,
)
from .results import result_of
from .running import register, task_of, tell, type_of

OPTIONS = ("database", "retry")
_TAKES = "OPTIONS takes 'database', an alias, and 'retry', a RetryPolicy or its members; QUEUES, names of queues."
ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class OJSBackend(BaseTaskBackend):
    """Stores tasks as jobs, which `manage.py runworker` runs (Django, "Tasks"; OJS, "Unique jobs").

    ``OPTIONS``: ``database``, the alias where the jobs are, by default the router's for writing; ``retry``, the retry
    policy of tasks that have none, by default a single attempt, because Django has no retries.
    """

    task_class = OJSTask
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True
    runs_as_jobs = True

    @cached_property
    def retry(self) -> RetryPolicy:
        """The retry policy of tasks that have none. Raises InvalidRetryPolicy."""
        given = self.options.get("retry")
        return ONE_ATTEMPT if given is None else RetryPolicy.parse(given)

    def validate_task(self, task: Any) -> None:
        """Check a task, and register it for the workers of this process.

        Raises InvalidTask as Django does, also for a queue whose name OJS does not allow.
        """
        super().validate_task(task)
        try:
            queue_name(task.queue_name)
        except InvalidRequest as error:
            raise InvalidTask(error.message) from None
        register(task, self.retry)

    def enqueue(self, task: Any, args: Any, kwargs: Any, *, id: UUID | str | None = None) -> TaskResult[Any, Any]:
        """Enqueue a task in the caller's transaction; return its result, or that of the job that it duplicates.

        ``id``: the id of the result, a UUID, for a task that had this id in another backend; by default a new one.
        Raises DuplicateJob when the task's policy says ``reject``, InvalidRequest when the arguments do not fit the
        task, JobIdTaken when the id is in use, InvalidTask, and TypeError or ValueError, as Django does, for values
        that JSON cannot carry. None of them breaks the transaction.
        """
        if not settings.eager:
            return self._enqueue(task, args, kwargs, id)
        with eager.held():  # the signal `task_enqueued` goes before those of the run
            result = self._enqueue(task, args, kwargs, id)
        result.refresh()
        return result

    def _enqueue(self, task: Any, args: Any, kwargs: Any, id: UUID | str | None) -> TaskResult[Any, Any]:
        self.validate_task(task)
        named, positional = store(task, args, kwargs)
        answer = self._jobs().enqueue_request(
            Request(
                type=type_of(task.func),
                args=named,
                queue=task.queue_name,
                priority=int(task.priority),
                scheduled_at=task.run_after,
                unique=getattr(task, "unique", None),
                retry=getattr(task, "retry", None) or self.retry,
                timeout=getattr(task, "timeout", None),
                key=getattr(task, "key", None),
                **({"key_mode": task.key_mode} if hasattr(task, "key_mode") else {}),
                id=id,
                extra={NOTE: {"backend": self.alias, "positional": positional}},
            )
        )
        result = result_of(answer.job, task)
        if not answer.deduplicated:
            tell(task_enqueued, result)
        return result

    def get_result(self, result_id: Any) -> TaskResult[Any, Any]:
        """Return the result of a task by its id, also if another process enqueued it.

        Raises TaskResultDoesNotExist for an unknown id, for a job of another backend or of no task, for a job whose
        payload is pruned, and for a task that this process does not know.
        """
        try:
            key = UUID(str(result_id))
        except ValueError:
            raise TaskResultDoesNotExist(result_id) from None
        job = self._jobs().filter(pk=key, payload_pruned=False).first()
        task = None if job is None else task_of(job.type)
        if job is None or task is None or (backend_of(job) or task.backend) != self.alias:
            raise TaskResultDoesNotExist(result_id)
        return result_of(job, task)

    def check(self, **kwargs: Any) -> list[CheckMessage]:
        """E010: the app is not installed. E011: an entry of the backend's settings is wrong."""
        messages: list[CheckMessage] = [
            Error(problem, hint=_TAKES, id="django_ojs_unique.E011") for problem in self._problems()
        ]
        if not apps.is_installed("django_ojs_unique"):
            messages.append(
                Error(
                    f"TASKS[{self.alias!r}] needs the app that stores its tasks.",
                    hint="Add 'django_ojs_unique' to INSTALLED_APPS.",
                    id="django_ojs_unique.E010",
                )
            )
        return messages

    def _problems(self) -> Iterator[str]:
        place = f"TASKS[{self.alias!r}]"
        for name in self.options:
            if name not in OPTIONS:
                yield f"{place}['OPTIONS'][{name!r}] is no option of OJSBackend. {did_you_mean(name, OPTIONS)}"
        database = self.options.get("database")
        if database is not None and database not in connections:
            yield f"{place}['OPTIONS']['database'] is no alias in DATABASES (got {database!r})."
        try:
            _ = self.retry
        except InvalidRetryPolicy as error:
            yield f"{place}['OPTIONS']['retry']: {error.message}"
        yield from (f"{place}['QUEUES']: {problem}" for problem in _misnamed(self.queues))

    def _jobs(self) -> Any:
        from ..models import Job

        return Job.objects.using(self.options.get("database") or router.db_for_write(Job))


def _misnamed(queues: Iterable[Any]) -> Iterator[str]:
    for name in queues:
        try:
            queue_name(name)
        except InvalidRequest as error:
            yield error.message
