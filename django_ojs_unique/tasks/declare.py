"""`@task`: Django's decorator with the options of a job."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, make_dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, Unpack, overload

from ..exceptions import InvalidRequest, did_you_mean
from ..handlers.functions import place_of
from ..handlers.signature import redacted_names
from ..options import COMMON, CommonOptions
from ..unique.keys import KeyMode
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


class UsingOptions(CommonOptions, total=False):
    """The options of `OJSTask.using`: a job's, and those of Django's own."""

    key: str | None
    key_mode: KeyMode | str
    priority: int | None
    queue_name: str | None
    run_after: datetime | None
    backend: str | None


_OWN = (*COMMON, "key", "key_mode")

if TYPE_CHECKING:

    class _OptionsOfAJob(Task):  # type: ignore[type-arg]
        def __getattr__(self, name: str) -> Any: ...

else:
    _OptionsOfAJob = make_dataclass(
        "_OptionsOfAJob", [(name, Any, None) for name in COMMON], bases=(Task,), frozen=True, slots=True, kw_only=True
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OJSTask(_OptionsOfAJob, Generic[P, R]):
    """A task with the options of a job, which take effect if its backend is an `OJSBackend`.

    ``unique``, ``retry``, ``timeout`` and ``limit`` are those of `job`; None leaves ``retry`` and ``limit`` to the
    backend. ``key`` and ``key_mode``: a job key, instead of ``unique``. ``atomic``: commit what the function writes
    together with its completion, or neither. ``redact``: the members of args, meta and results that nobody is shown.

    Raises InvalidTask, InvalidPolicy, InvalidRetryPolicy or InvalidRequest, and HandlerError when a name in
    ``args_keys`` or in the key of a limit is not a parameter, the function cannot be ``atomic`` or ``redact`` is no
    list of names: all when the module is imported.
    """

    key: str | None = None
    key_mode: KeyMode | str = KeyMode.REPLACE
    atomic: bool = False
    redact: Collection[str] = ()

    def __post_init__(self) -> None:
        for name, option in COMMON.items():
            if (given := getattr(self, name)) is not None:
                read = option.kind.read(given, name)
                if option.copied:
                    object.__setattr__(self, name, read)
        if self.redact != ():
            object.__setattr__(self, "redact", redacted_names(self.redact, place_of(self.func)))
        Task.__post_init__(self)

    def using(self, **changes: Unpack[UsingOptions]) -> OJSTask[P, R]:
        """Return this task with other options for its next enqueues.

        None switches ``unique``, ``timeout`` and ``key`` off and leaves ``retry`` and ``limit`` to the backend; for
        Django's own options (``priority``, ``queue_name``, ``run_after``, ``backend``) it means no change. An empty
        list switches ``limit`` off. A ``unique`` replaces the task's ``key``, and the reverse.
        """
        options: dict[str, Any] = {name: value for name, value in changes.items() if name in _OWN}
        if options.get("unique") is not None:
            options.setdefault("key", None)
            options.setdefault("key_mode", KeyMode.REPLACE)
        elif options.get("key") is not None:
            options["unique"] = None
        djangos: dict[str, Any] = {name: value for name, value in changes.items() if name not in _OWN}
        return replace(Task.using(self, **djangos), **options)  # type: ignore[return-value]

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


class TaskOptions(CommonOptions, total=False):
    """The options of `task` besides ``takes_context``."""

    priority: int
    queue_name: str
    backend: str
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
    function: Callable[..., Any] | None = None, *, takes_context: bool = False, **options: Any
) -> OJSTask[..., Any] | Callable[[Callable[..., Any]], OJSTask[..., Any]]:
    """Declare a task as Django's own decorator does, on any version and for any backend.

    ``priority``, ``queue_name``, ``backend`` and ``takes_context`` are Django's, the others those of `OJSTask`;
    backends other than `OJSBackend` ignore them. Raises what `OJSTask` raises.
    """
    for name in options:
        if name not in TaskOptions.__annotations__:
            raise TypeError(f"task() has no option {name!r}. {did_you_mean(name, TaskOptions.__annotations__)}")
    given = {
        "priority": DEFAULT_TASK_PRIORITY,
        "queue_name": DEFAULT_TASK_QUEUE_NAME,
        "backend": DEFAULT_TASK_BACKEND_ALIAS,
        **options,
    }

    def declare(function: Callable[..., Any]) -> OJSTask[..., Any]:
        cls = task_backends[given["backend"]].task_class
        cls = cls if issubclass(cls, OJSTask) else OJSTask
        return cls(func=function, run_after=None, takes_context=takes_context, **given)

    return declare if function is None else declare(function)
