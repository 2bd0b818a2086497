"""`OJSBackend`: Django's tasks as jobs in the project's own database, unique if they have a policy or a key."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any
from uuid import UUID

from django.apps import apps
from django.core.checks import CheckMessage, Error
from django.db import connections, router

from ..conf import settings
from ..enqueue.request import Request
from ..exceptions import HandlerError, InvalidRequest, InvalidRetryPolicy, did_you_mean
from ..execution import eager
from ..handlers.functions import place_of
from ..handlers.registry import registry
from ..ojs.limits import Limit
from ..ojs.names import queue_name
from ..ojs.retry import RetryPolicy
from ..options import COMMON
from ..unique.policy import UniquePolicy
from .arguments import NOTE, backend_of, store
from .declare import OJSTask
from .framework import BaseTaskBackend, InvalidTask, TaskResult, TaskResultDoesNotExist, task_enqueued
from .options import ByPath, QueueAliases, limits, policies
from .results import result_of
from .running import TaskDefinition, register, task_of, tell, type_of

OPTIONS = ("database", "retry", "unique", "limit", "queue_aliases")
_TAKES = (
    "OPTIONS takes 'database', an alias; 'retry', a RetryPolicy or its members; 'unique' and 'limit', unique policies"
    " and limits by paths of tasks; 'queue_aliases', names of queues. QUEUES takes names of queues."
)
ONE_ATTEMPT = RetryPolicy(max_attempts=1)


class OJSBackend(BaseTaskBackend):
    """Stores tasks as jobs, which `manage.py runworker` runs (Django, "Tasks"; OJS, "Unique jobs").

    ``OPTIONS``: ``database``, the alias where the jobs are, by default the router's for writing; ``retry``, the retry
    policy of tasks that have none, by default a single attempt, because Django has no retries; ``unique``, the
    `policies` of tasks that have neither a policy nor a key; ``limit``, the `limits` of tasks that have none;
    ``queue_aliases``, as `QueueAliases` takes them.
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

    @cached_property
    def policies(self) -> ByPath[UniquePolicy | None]:
        """The unique policies of tasks that have none."""
        return policies(self.options.get("unique"))

    @cached_property
    def limits(self) -> ByPath[tuple[Limit, ...]]:
        """The limits of tasks that have none."""
        return limits(self.options.get("limit"))

    @cached_property
    def queue_aliases(self) -> QueueAliases:
        """The names under which the jobs of queues are stored."""
        return QueueAliases(self.options.get("queue_aliases"))

    def unique_of(self, task: Any) -> Any:
        """Return the unique policy of a task: its own, else that of ``OPTIONS``, unless the task has a key; or None."""
        own = getattr(task, "unique", None)
        if own is not None or getattr(task, "key", None) is not None:
            return own
        return self.policies.of(place_of(task.func))

    def limits_of(self, task: Any) -> tuple[Limit, ...]:
        """Return the limits of a task: its own, else those of ``OPTIONS``."""
        own = getattr(task, "limit", None)
        return self.limits.of(place_of(task.func)) or () if own is None else own

    def validate_task(self, task: Any) -> None:
        """Check a task, and register it for the workers of this process.

        Raises InvalidTask as Django does, also for a function of `__main__`, and for a queue whose name OJS does not
        allow and that has no alias; `check` reports such a declaration instead. InvalidRequest or HandlerError for a
        policy or a limit in ``OPTIONS`` that is wrong or does not fit the task.
        """
        super().validate_task(task)
        if task.func.__module__ == "__main__":  # elsewhere, that is another module
            raise InvalidTask(
                f"{place_of(task.func)} is in a program that is run directly, which no worker imports. Move it into an"
                " app's tasks.py."
            )
        queue = self.queue_aliases.stored(task.queue_name)
        problem = self._queue_problem(queue)
        if problem and task_of(type_of(task.func)) is not None:
            raise InvalidTask(problem)
        try:
            register(task, None if problem else queue, self.retry, self.unique_of(task), self.limits_of(task))
        except HandlerError as error:
            option = error.details.get("option")
            if option is None or getattr(task, option, None) is not None:
                raise
            raise HandlerError(f"TASKS[{self.alias!r}]['OPTIONS'][{option!r}]: {error.message}") from None

    def enqueue(self, task: Any, args: Any, kwargs: Any, *, id: UUID | str | None = None) -> TaskResult[Any, Any]:
        """Enqueue a task in the caller's transaction; return its result, or that of the job that it duplicates.

        ``id``: the id of the result, a UUID, for a task that had this id in another backend; by default a new one.
        Raises DuplicateJob when the task's policy says ``reject``, InvalidRequest when the arguments do not fit the
        task, JobIdTaken when the id is in use, InvalidTask, and TypeError or ValueError, as Django does, for values
        that JSON cannot carry. None of them breaks the transaction.
        """
        if not settings.eager:
            return self._enqueue(task, args, kwargs, id)
        with eager.deferring():  # the signal `task_enqueued` goes before those of the run
            result = self._enqueue(task, args, kwargs, id)
        result.refresh()
        return result

    def _enqueue(self, task: Any, args: Any, kwargs: Any, id: UUID | str | None) -> TaskResult[Any, Any]:
        answer = self._jobs().enqueue_request(self.request_of(task, args, kwargs, id))
        result = result_of(answer.job, task)
        if not answer.deduplicated:
            tell(task_enqueued, result)
        return result

    def request_of(self, task: Any, args: Any, kwargs: Any, id: UUID | str | None = None) -> Request:
        """Return the request that enqueues a task. Raises what `enqueue` raises for an invalid one."""
        self.validate_task(task)
        named, positional = store(task, args, kwargs)
        options = {name: getattr(task, name) for name in (*COMMON, "key", "key_mode") if hasattr(task, name)}
        options |= {
            "queue": self.queue_aliases.stored(task.queue_name),
            "priority": int(task.priority),
            "scheduled_at": task.run_after,
            "unique": self.unique_of(task),
            "retry": options.get("retry") or self.retry,
            "limit": self.limits_of(task),
            "extra": {NOTE: {"backend": self.alias, "positional": positional}},
        }
        return Request(type_of(task.func), named, id=id, using=self.options.get("database"), **options)

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
        """E010: the app is not installed. E011: an entry of the backend's settings is wrong.

        E012: a task is declared for a queue whose name OJS does not allow.
        """
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
        return messages + [
            Error(f"The task {definition.place}: {problem}", id="django_ojs_unique.E012")
            for definition in registry.definitions()
            if isinstance(definition, TaskDefinition) and definition.task.backend == self.alias
            if (problem := self._queue_problem(self.queue_aliases.stored(definition.task.queue_name)))
        ]

    def _queue_problem(self, queue: str) -> str:
        try:
            queue_name(queue)
        except InvalidRequest as error:
            return f"{error.message} Or give it a name of OJS in TASKS[{self.alias!r}]['OPTIONS']['queue_aliases']."
        return ""

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
        found = {
            "unique": self.policies.problems(),
            "limit": self.limits.problems(),
            "queue_aliases": self.queue_aliases.problems(self.queues),
        }
        for option, problems in found.items():
            if self.options.get(option) is not None:
                yield from (f"{place}['OPTIONS'][{option!r}]{problem}" for problem in problems)
        for name in self.queues:
            if name in self.queue_aliases:
                continue
            try:
                queue_name(name)
            except InvalidRequest as error:
                yield f"{place}['QUEUES']: {error.message}"

    def _jobs(self) -> Any:
        from ..models import Job

        return Job.objects.using(self.options.get("database") or router.db_for_write(Job))
