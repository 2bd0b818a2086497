"""A job as Django's `TaskResult`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

from ..exceptions import JobCancelled, OJSError
from ..handlers.control import TimeLimitExceeded
from ..ojs.states import WAITING, JobState
from ..reporting.timeline import starts
from .arguments import backend_of, restore
from .framework import InvalidTask, InvalidTaskBackend, TaskError, TaskResult, TaskResultStatus, task_backends

STATUS: Mapping[str, TaskResultStatus] = {
    **dict.fromkeys(WAITING, TaskResultStatus.READY),
    JobState.ACTIVE: TaskResultStatus.RUNNING,
    JobState.COMPLETED: TaskResultStatus.SUCCESSFUL,
    JobState.DISCARDED: TaskResultStatus.FAILED,
    JobState.CANCELLED: TaskResultStatus.FAILED,
}
"""The status that each state of a job has as a task result."""

UNKNOWN_WORKER = "unknown"
"""Stands for the workers of earlier attempts: a job stores only the last one."""


def result_of(job: Any, task: Any) -> TaskResult[Any, Any]:
    """Return the result of a job of this task, from the row in memory."""
    args, kwargs = restore(job)
    began: list[datetime | None] = [*starts(job)] or [None]
    alias = backend_of(job) or task.backend
    result: TaskResult[Any, Any] = TaskResult(
        task=_as_enqueued(job, task, alias),
        id=str(job.pk),
        status=STATUS[job.state],
        enqueued_at=job.created_at,
        started_at=began[0],
        last_attempted_at=began[-1],
        finished_at=job.finished_at,
        args=args,
        kwargs=kwargs,
        backend=alias,
        errors=list(_errors(job)),
        worker_ids=_workers(job),
    )
    if job.state == JobState.COMPLETED:
        object.__setattr__(result, "_return_value", job.result)
    return result


def _as_enqueued(job: Any, task: Any, alias: str) -> Any:
    try:
        aliases = getattr(task_backends[alias], "queue_aliases", None)
        queue = job.queue if aliases is None else aliases.shown(job.queue)
        return task.using(priority=job.priority, queue_name=queue, run_after=job.scheduled_at, backend=alias)
    except (InvalidTask, InvalidTaskBackend):  # the settings no longer have its queue or backend
        return task


def _workers(job: Any) -> list[str]:
    """Return a worker for each attempt, because Django counts attempts by the workers."""
    if not job.attempt:
        return []
    return [UNKNOWN_WORKER] * (job.attempt - 1) + [job.worker_id or UNKNOWN_WORKER]


def _errors(job: Any) -> Iterator[TaskError]:
    yield from map(_error_of, job.errors)
    if job.state == JobState.CANCELLED:
        message = str(JobCancelled())
        if job.replaced_by_id is not None:
            message += f" Job {job.replaced_by_id} took its place."
        yield TaskError(exception_class_path=_path(JobCancelled), traceback=message)


def _error_of(record: Mapping[str, Any]) -> TaskError:
    """Return an error that is stored with a job; one without a traceback did not come from the task."""
    name, details = str(record.get("type", "")), record.get("details")
    trace = details.get("traceback") if isinstance(details, dict) else None
    if not name or not trace:
        return TaskError(exception_class_path=_path(OJSError), traceback=f"{name}: {record.get('message', '')}")
    if (cls := _EXCEPTIONS.get(record.get("code"))) is not None:
        name = _path(cls)
    elif "." not in name:
        name = f"builtins.{name}"
    return TaskError(exception_class_path=name, traceback=str(trace))


def _path(cls: type[BaseException]) -> str:
    return f"{cls.__module__}.{cls.__qualname__}"


_EXCEPTIONS: Mapping[Any, type[BaseException]] = {"timeout": TimeLimitExceeded, "invalid_args": TypeError}
"""The exceptions for which the worker stores an error code of its own."""
