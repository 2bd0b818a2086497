"""`@task`: Django's decorator with the options of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, overload

from ..ojs.durations import milliseconds
from ..ojs.keys import KeyMode
from ..ojs.policy import UniquePolicy
from ..ojs.retry import RetryPolicy
from ..request import INHERIT
from .framework import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    Task,
    task_backends,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OJSTask(Task):  # type: ignore[type-arg]
    """A task with the options of a job, which count where its backend is an `OJSBackend`.

    ``unique``: the unique policy. ``retry``: the retry policy; None leaves it to the backend. ``timeout``: of one
    attempt, ISO 8601, a timedelta or seconds. ``key`` and ``key_mode``: a job key, in the place of ``unique``.

    Raises InvalidTask, InvalidPolicy, InvalidRetryPolicy or InvalidRequest, and HandlerError when ``args_keys`` names
    no parameter: all when the module is imported.
    """

    unique: UniquePolicy | Mapping[str, Any] | None = None
    retry: RetryPolicy | Mapping[str, Any] | None = None
    timeout: str | timedelta | float | None = None
    key: str | None = None
    key_mode: KeyMode | str = KeyMode.REPLACE

    def __post_init__(self) -> None:
        if self.unique is not None:
            object.__setattr__(self, "unique", UniquePolicy.parse(self.unique))
        if self.retry is not None:
            object.__setattr__(self, "retry", RetryPolicy.parse(self.retry))
        if self.timeout is not None:
            milliseconds(self.timeout, "timeout")
        Task.__post_init__(self)

    def using(
        self,
        *,
        unique: UniquePolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        retry: RetryPolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        timeout: str | timedelta | float | None = INHERIT,  # type: ignore[assignment]
        key: str | None = INHERIT,  # type: ignore[assignment]
        key_mode: KeyMode | str = INHERIT,  # type: ignore[assignment]
        **changes: Any,
    ) -> OJSTask:
        """Return this task with other options for its next enqueues.

        None switches ``unique``, ``timeout`` and ``key`` off and leaves ``retry`` to the backend; for Django's own
        options (``priority``, ``queue_name``, ``run_after``, ``backend``) it means no change. A ``unique`` takes the
        place of the task's ``key``, and the reverse.
        """
        given: dict[str, Any] = {
            "unique": unique,
            "retry": retry,
            "timeout": timeout,
            "key": key,
            "key_mode": key_mode,
        }
        options = {name: value for name, value in given.items() if value is not INHERIT}
        if options.get("unique") is not None:
            options.setdefault("key", None)
            options.setdefault("key_mode", KeyMode.REPLACE)
        elif options.get("key") is not None:
            options["unique"] = None
        return replace(Task.using(self, **changes), **options)  # type: ignore[return-value]


@overload
def task(function: Callable[..., Any]) -> OJSTask: ...
@overload
def task(function: None = None, **options: Any) -> Callable[[Callable[..., Any]], OJSTask]: ...
def task(  # type: ignore[misc]
    function: Callable[..., Any] | None = None,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    unique: UniquePolicy | Mapping[str, Any] | None = None,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: str | timedelta | float | None = None,
    key: str | None = None,
    key_mode: KeyMode | str = KeyMode.REPLACE,
) -> OJSTask | Callable[[Callable[..., Any]], OJSTask]:
    """Declare a task as Django's own decorator does, on any version and for any backend.

    The first four options are Django's, the others those of `OJSTask`; backends other than `OJSBackend` ignore them.
    Raises what `OJSTask` raises.
    """

    def declare(function: Callable[..., Any]) -> OJSTask:
        cls = task_backends[backend].task_class
        return (cls if issubclass(cls, OJSTask) else OJSTask)(
            func=function,
            run_after=None,
            priority=priority,
            queue_name=queue_name,
            backend=backend,
            takes_context=takes_context,
            unique=unique,
            retry=retry,
            timeout=timeout,
            key=key,
            key_mode=key_mode,
        )

    return declare if function is None else declare(function)
