"""`@job`: declare what runs a job type, and how its jobs are enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar
from uuid import UUID

from .exceptions import HandlerError, InvalidRequest, did_you_mean
from .ojs.names import job_type, queue_name
from .ojs.policy import UniquePolicy
from .ojs.retry import RetryPolicy
from .registry import Definition, registry

if TYPE_CHECKING:
    from .enqueue import EnqueueResult

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a handler declared with ``takes_context=True`` is told about its run."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    max_attempts: int
    meta: dict[str, Any]
    tags: list[str]
    enqueued_at: datetime
    started_at: datetime
    worker_id: str
    is_held: Callable[[], bool]

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or replaced since it started, so that its result will be refused.

        Asks the database each time: look between the steps of a long handler, not in a tight loop.
        """
        return not self.is_held()


class Handler(Generic[P, R]):
    """A handler function: call it to run it here and now, `enqueue` to have a worker run it."""

    def __init__(self, definition: Definition, options: Mapping[str, Any] | None = None) -> None:
        self.definition = definition
        self._options = dict(options or {})
        update_wrapper(self, definition.function)

    def __repr__(self) -> str:
        return f"<Handler of {self.definition.type}: {self.definition.place}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]

    def enqueue(self, *args: Any, **kwargs: Any) -> EnqueueResult:
        """Enqueue a job with these arguments; positional ones are named after the handler's parameters.

        Raises InvalidRequest when they do not fit the handler, and what `Job.objects.enqueue` raises.
        """
        from .models import Job

        result: EnqueueResult = Job.objects.enqueue(self.definition.type, self._named(args, kwargs), **self._options)
        return result

    def using(self, **options: Any) -> Handler[P, R]:
        """Return this handler with options for its next enqueues: those of `Job.objects.enqueue`."""
        return Handler(self.definition, {**self._options, **options})

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        signature = inspect.signature(self.definition.function)
        parameters = list(signature.parameters.values())[1 if self.definition.takes_context else 0 :]
        signature = signature.replace(parameters=parameters)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidRequest.at(
                "args", f"do not fit {self.definition.place}{signature}: {error}", value=args or kwargs
            ) from None
        named: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise InvalidRequest.at(
                    "args",
                    f"cannot be sent by name to {self.definition.place}{signature}",
                    mend="Enqueue an array with Job.objects.enqueue().",
                )
            named.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        return named


def job(
    type: str,
    *,
    queue: str | None = None,
    priority: int = 0,
    unique: UniquePolicy | Mapping[str, Any] | None = None,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: str | timedelta | float | None = None,
    takes_context: bool = False,
) -> Callable[[Callable[..., R]], Handler[..., R]]:
    """Declare the handler of a job type, and the defaults of its enqueues.

    ``timeout`` is that of one attempt: ISO 8601, a timedelta or seconds. ``takes_context`` passes a `JobContext` first,
    as the parameter named ``context``. Put handlers into an app's ``jobs.py``, where they are found.

    Raises HandlerError when the type has a handler already or the function does not fit, InvalidRequest for an invalid
    name, InvalidPolicy and InvalidRetryPolicy for invalid policies: all when the module is imported.
    """
    policies = {
        "unique": None if unique is None else UniquePolicy.parse(unique),
        "retry": None if retry is None else RetryPolicy.parse(retry),
    }

    def declare(function: Callable[..., R]) -> Handler[..., R]:
        definition = Definition(
            type,
            function,
            queue=queue,
            priority=priority,
            timeout=timeout,
            takes_context=takes_context,
            **policies,  # type: ignore[arg-type]
        )
        _refuse_a_misfit(definition)
        registry.register(definition)
        return Handler(definition)

    job_type(type)
    if queue is not None:
        queue_name(queue)
    return declare


def run(definition: Definition, args: Any, context: JobContext) -> Any:
    """Call a handler with a job's arguments: an object as keywords, an array in order."""
    before = (context,) if definition.takes_context else ()
    if isinstance(args, dict):
        return definition.function(*before, **args)
    return definition.function(*before, *args)


def _refuse_a_misfit(definition: Definition) -> None:
    parameters = inspect.signature(definition.function).parameters
    first = next(iter(parameters), None)
    if definition.takes_context and (
        first != "context" or parameters["context"].kind is inspect.Parameter.KEYWORD_ONLY
    ):
        raise HandlerError(
            f"{definition.place}: with takes_context=True the first positional parameter is named 'context'."
        )
    if inspect.iscoroutinefunction(definition.function):
        raise HandlerError(f"{definition.place} is an async function; the worker runs plain functions so far.")
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    for name in () if takes_any or definition.unique is None else definition.unique.args_keys or ():
        if name not in parameters:
            raise HandlerError(
                f"{definition.place}: args_keys names {name!r}, which is not a parameter."
                f" {did_you_mean(name, parameters)}"
            )
