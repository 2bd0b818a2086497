"""`@task`: Django's decorator with the options of a job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload

from ..exceptions import InvalidRequest
from ..handlers.signature import redacted_names
from ..ojs.durations import milliseconds
from ..ojs.limits import Limit, limits_of
from ..ojs.retry import RetryPolicy
from ..options import INHERIT
from ..unique.keys import KeyMode
from ..unique.policy import UniquePolicy
from .framework import (
    DEFAULT_TASK_BACKEND_ALIAS,
    DEFAULT_TASK_PRIORITY,
    DEFAULT_TASK_QUEUE_NAME,
    Task,
    task_backends,
)

if TYPE_CHECKING:
    from .framework import TaskContext, TaskResult

P = ParamSpec("P")
R = TypeVar("R")


class DjangoOptions(TypedDict, total=False):
    """The options of Django's own `Task.using`."""

    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OJSTask(Task, Generic[P, R]):  # type: ignore[type-arg]
    """A task with the options of a job, which take effect if its backend is an `OJSBackend`.

    ``unique``: the unique policy. ``retry``: the retry policy; None leaves it to the backend. ``timeout``: of one
    attempt, ISO 8601, a timedelta or seconds. ``limit``: a `Limit`, or several, on how many run at once or start in a
    time; None leaves it to the backend. ``key`` and ``key_mode``: a job key, instead of ``unique``. ``atomic``:
    commit what the function writes together with its completion, or neither. ``redact``: the members of args, meta and
    results that nobody is shown.

    Raises InvalidTask, InvalidPolicy, InvalidRetryPolicy or InvalidRequest, and HandlerError when a name in
    ``args_keys`` or in the key of a limit is not a parameter, the function cannot be ``atomic`` or ``redact`` is no
    list of names: all when the module is imported.
    """

    unique: UniquePolicy | Mapping[str, Any] | None = None
    retry: RetryPolicy | Mapping[str, Any] | None = None
    timeout: str | timedelta | float | None = None
    limit: Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None = None
    key: str | None = None
    key_mode: KeyMode | str = KeyMode.REPLACE
    atomic: bool = False
    redact: Collection[str] = ()

    def __post_init__(self) -> None:
        if self.unique is not None:
            object.__setattr__(self, "unique", UniquePolicy.parse(self.unique))
        if self.retry is not None:
            object.__setattr__(self, "retry", RetryPolicy.parse(self.retry))
        if self.timeout is not None:
            milliseconds(self.timeout, "timeout")
        if self.limit is not None:
            object.__setattr__(self, "limit", limits_of(self.limit))
        if self.redact != ():
            place = f"{self.func.__module__}.{self.func.__qualname__}"
            object.__setattr__(self, "redact", redacted_names(self.redact, place))
        Task.__post_init__(self)

    def using(
        self,
        *,
        unique: UniquePolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        retry: RetryPolicy | Mapping[str, Any] | None = INHERIT,  # type: ignore[assignment]
        timeout: str | timedelta | float | None = INHERIT,  # type: ignore[assignment]
        limit: Limit | Mapping[str, Any] | Sequence[Any] | None = INHERIT,  # type: ignore[assignment]
        key: str | None = INHERIT,  # type: ignore[assignment]
        key_mode: KeyMode | str = INHERIT,  # type: ignore[assignment]
        **changes: Unpack[DjangoOptions],
    ) -> OJSTask[P, R]:
        """Return this task with other options for its next enqueues.

        None switches ``unique``, ``timeout`` and ``key`` off and leaves ``retry`` and ``limit`` to the backend; for
        Django's own options (``priority``, ``queue_name``, ``run_after``, ``backend``) it means no change. An empty
        list switches ``limit`` off. A ``unique`` replaces the task's ``key``, and the reverse.
        """
        given: dict[str, Any] = {
            "unique": unique,
            "retry": retry,
            "timeout": timeout,
            "limit": limit,
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

    def item(self, *args: Any, **kwargs: Any) -> Any:
        """Return the task with these arguments as a member of a `chain`, a `group` or a `batch`.

        The `id` of its job is that of a `TaskResult`. Raises what `enqueue` raises for invalid arguments, and
        InvalidRequest for a task of another backend.
        """
        backend: Any = self.get_backend()
        if not hasattr(backend, "request_of"):
            hint = "Declare it for an OJSBackend."
            raise InvalidRequest.at("backend", "cannot enqueue workflows", value=self.backend, hint=hint)
        return backend.request_of(self, args, kwargs)

    if TYPE_CHECKING:  # Django's class is generic in its stubs only

        def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...
        async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[P, R]: ...
        def get_result(self, result_id: str) -> TaskResult[P, R]: ...
        async def aget_result(self, result_id: str) -> TaskResult[P, R]: ...
        def call(self, *args: P.args, **kwargs: P.kwargs) -> R: ...
        async def acall(self, *args: P.args, **kwargs: P.kwargs) -> R: ...


class TaskOptions(TypedDict, total=False):
    """The options of `task` besides ``takes_context``."""

    priority: int
    queue_name: str
    backend: str
    unique: UniquePolicy | Mapping[str, Any] | None
    retry: RetryPolicy | Mapping[str, Any] | None
    timeout: str | timedelta | float | None
    limit: Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None
    key: str | None
    key_mode: KeyMode | str
    atomic: bool
    redact: Collection[str]


@overload
def task(
    function: Callable[Concatenate[TaskContext[Any, Any], P], R],
    *,
    takes_context: Literal[True],
    **options: Unpack[TaskOptions],
) -> OJSTask[P, R]: ...
@overload
def task(
    function: Callable[P, R], *, takes_context: Literal[False] = False, **options: Unpack[TaskOptions]
) -> OJSTask[P, R]: ...
@overload
def task(
    function: None = None, *, takes_context: Literal[True], **options: Unpack[TaskOptions]
) -> Callable[[Callable[Concatenate[TaskContext[Any, Any], P], R]], OJSTask[P, R]]: ...
@overload
def task(
    function: None = None, *, takes_context: Literal[False] = False, **options: Unpack[TaskOptions]
) -> Callable[[Callable[P, R]], OJSTask[P, R]]: ...
def task(
    function: Callable[..., Any] | None = None,
    *,
    priority: int = DEFAULT_TASK_PRIORITY,
    queue_name: str = DEFAULT_TASK_QUEUE_NAME,
    backend: str = DEFAULT_TASK_BACKEND_ALIAS,
    takes_context: bool = False,
    unique: UniquePolicy | Mapping[str, Any] | None = None,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: str | timedelta | float | None = None,
    limit: Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None = None,
    key: str | None = None,
    key_mode: KeyMode | str = KeyMode.REPLACE,
    atomic: bool = False,
    redact: Collection[str] = (),
) -> OJSTask[..., Any] | Callable[[Callable[..., Any]], OJSTask[..., Any]]:
    """Declare a task as Django's own decorator does, on any version and for any backend.

    The first four options are Django's, the others those of `OJSTask`; backends other than `OJSBackend` ignore them.
    Raises what `OJSTask` raises.
    """

    def declare(function: Callable[..., Any]) -> OJSTask[..., Any]:
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
            limit=limit,
            key=key,
            key_mode=key_mode,
            atomic=atomic,
            redact=redact,
        )

    return declare if function is None else declare(function)
