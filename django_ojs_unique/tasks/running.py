"""Tasks as handlers: each is registered under a job type, like any handler."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from hashlib import sha256
from typing import Any

from asgiref.sync import sync_to_async
from django.dispatch import Signal

from ..conf import settings
from ..enqueue.values import sized
from ..handlers.context import JobContext
from ..handlers.functions import is_async, kept, place_of
from ..handlers.registry import Definition, registry
from ..handlers.signature import refuse_a_generator, refuse_a_wrong_atomic, refuse_unknown_args
from ..ojs.canonical import plain
from ..ojs.limits import Limit
from ..ojs.names import LONGEST_TYPE
from ..ojs.retry import RetryPolicy
from ..options import COMMON, declared
from ..signals import announce, job_cancelled, job_completed, job_discarded
from ..unique.policy import UniquePolicy
from .arguments import by_name
from .framework import (
    InvalidTaskBackend,
    TaskContext,
    TaskResult,
    normalize_json,
    task_backends,
    task_finished,
    task_started,
)
from .results import result_of

_DIGITS = 12
_PLAIN = re.compile(r"[a-z][a-z0-9_]*(\.[a-z][a-z0-9_]*)*")


def type_of(function: Callable[..., Any]) -> str:
    """Return the job type of a task's function: ``task.`` and its path, as in ``task.shop.tasks.send_welcome``.

    A path that is not a valid job type, such as one with capitals, is rewritten and ends in a hash of the path. No two
    paths have the same type: the hash follows a ``-``, which no path has, and the registry would refuse a clash.
    """
    path = place_of(function)
    type = f"task.{path}"
    if _PLAIN.fullmatch(path) and len(type) <= LONGEST_TYPE:
        return type
    words = (re.sub(r"^[^a-z]+|[^a-z0-9_]", "", word.lower()) or "x" for word in path.split("."))
    readable = f"task.{'.'.join(words)}"[: LONGEST_TYPE - _DIGITS - 1].rstrip(".")
    return f"{readable}-{sha256(path.encode()).hexdigest()[:_DIGITS]}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskDefinition(Definition):
    """The definition of a job type that is a task."""

    task: Any


def register(
    task: Any, queue: str | None, retry: RetryPolicy, unique: UniquePolicy | None, limits: tuple[Limit, ...]
) -> None:
    """Let workers of this process run a task; its first declaration sets the defaults of its jobs.

    ``queue``: None if its name is not allowed, so that nothing can be enqueued. ``retry``: of a task that has none.
    ``unique``, ``limits``: the task's own, or those of its backend.

    Raises HandlerError when the unique policy, a limit or ``atomic`` does not fit the function.
    """
    type = type_of(task.func)
    known = task_of(type)
    if known is not None and known.func is task.func:
        return
    refuse_a_generator(task.func)
    definition = TaskDefinition(
        type=type,
        function=_handler(task),
        options=declared(
            {
                "queue": queue,
                "priority": int(task.priority),
                **{name: getattr(task, name, None) for name in COMMON},
                "unique": unique,
                "retry": getattr(task, "retry", None) or retry,
                "limit": limits,
            }
        ),
        takes_context=True,
        atomic=getattr(task, "atomic", False),
        redact=getattr(task, "redact", ()),
        task=task,
    )
    refuse_a_wrong_atomic(definition)
    refuse_unknown_args(definition)
    registry.register(definition)
    for signal in (job_completed, job_discarded, job_cancelled):  # not before: who listens is paid by every job
        signal.connect(_tell_end, dispatch_uid="django_ojs_unique.tasks")


def task_of(type: str) -> Any:
    """Return the task that a job type stands for in this process, or None. This imports no modules."""
    definition = registry.find(type)
    return definition.task if isinstance(definition, TaskDefinition) else None


def tell(signal: Signal, result: TaskResult[Any, Any]) -> None:
    """Send one of Django's signals about a task; exceptions of receivers are logged."""
    with suppress(InvalidTaskBackend):  # the backend is no longer in the settings
        announce(signal, type(task_backends[result.backend]), task_result=result)


def _handler(task: Any) -> Callable[..., Any]:
    """Return the task's function as a handler that takes all arguments by name."""
    function = task.func
    if is_async(function):

        @wraps(function)
        async def arun(context: JobContext, /, *args: Any, **kwargs: Any) -> Any:
            call_args, call_kwargs = await sync_to_async(_begin)(task, context.job)
            return _returned(await function(*call_args, **call_kwargs), function)

        handler: Callable[..., Any] = arun
    else:

        @wraps(function)
        def run(context: JobContext, /, *args: Any, **kwargs: Any) -> Any:
            call_args, call_kwargs = _begin(task, context.job)
            return _returned(function(*call_args, **call_kwargs), function)

        handler = run
    handler.__signature__ = by_name(task)  # type: ignore[attr-defined]
    return handler


def _begin(task: Any, job: Any) -> tuple[list[Any], dict[str, Any]]:
    """Send the signal that a task starts; return the arguments for its call."""
    result = result_of(job, task)
    tell(task_started, result)
    args = [TaskContext(task_result=result), *result.args] if task.takes_context else result.args
    return args, result.kwargs


def _returned(value: Any, function: Callable[..., Any]) -> Any:
    """Return a result as JSON values. Raises for other values, so that the task fails, as in Django."""
    return sized(plain(normalize_json(kept(value, function)), "result"), "result", settings.max_result_bytes)


def _tell_end(*, job: Any, replaced_by: Any = None, **arguments: Any) -> None:
    """Send `task_finished`, except for a job that was replaced before it started: the newer one does its work."""
    task = task_of(job.type)
    if task is not None and (replaced_by is None or job.attempt):
        tell(task_finished, result_of(job, task))
