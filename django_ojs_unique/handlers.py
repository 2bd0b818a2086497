"""`@job`: declare what runs a job type, and how its jobs are enqueued."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Concatenate, Generic, Literal, ParamSpec, TypedDict, TypeVar, Unpack, overload
from uuid import UUID

from .exceptions import HandlerError, InvalidRequest, did_you_mean
from .ojs.cron import Cron
from .ojs.durations import milliseconds
from .ojs.names import job_type, priority_number, queue_name
from .ojs.policy import UniquePolicy
from .ojs.retry import RetryPolicy
from .registry import Definition, registry

if TYPE_CHECKING:
    from .idempotency import Heal
    from .models import Job
    from .outcomes import EnqueueResult

ENQUEUE_OPTIONS = (
    "queue",
    "meta",
    "priority",
    "scheduled_at",
    "expires_at",
    "unique",
    "retry",
    "timeout",
    "tags",
    "key",
    "key_mode",
    "key_scope",
    "id",
)
"""What `Job.objects.enqueue` takes beside the type and the args; its module needs Django, this one does not."""

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
    report: Callable[[float, str], None]
    job: Job
    """The row as it was claimed; what a run does not need of it is read from the database when it is asked for."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or replaced since it started, or its lease lost: its result will be refused.

        A plain handler asks the database each time: look between the steps of a long handler, not in a tight loop. An
        ``async def`` handler gets what its worker has seen in the last second, and is cancelled then anyway.
        """
        return not self.is_held()

    def progress(self, fraction: float, note: str = "") -> None:
        """Say how far the work is, from 0 to 1, and what it is at. Cheap: the worker stores the last word each second.

        Raises InvalidRequest for a number outside 0 to 1.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InvalidRequest.at(
                "fraction", "must be a number from 0 to 1", value=fraction, mend="Write context.progress(done / total)."
            )
        self.report(float(fraction), str(note))


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

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Enqueue a job with these arguments; positional ones are named after the handler's parameters.

        Raises InvalidRequest when they do not fit the handler, and what `Job.objects.enqueue` raises.
        """
        from .models import Job

        result: EnqueueResult = Job.objects.enqueue(**self.item(*args, **kwargs))
        return result

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult:
        """Do what `enqueue` does, from asynchronous code."""
        from .models import Job

        result: EnqueueResult = await Job.objects.aenqueue(**self.item(*args, **kwargs))
        return result

    def enqueue_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue once the current transaction is committed; nothing if it is rolled back.

        Raises now what `enqueue` raises, but for DuplicateJob: see `Job.objects.enqueue_on_commit`.
        """
        from .models import Job

        Job.objects.enqueue_on_commit(**self.item(*args, **kwargs))

    def item(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a job with these arguments as an item for `Job.objects.enqueue_many`."""
        return {"type": self.definition.type, "args": self._named(args, kwargs), **self._options}

    def using(self, **options: Any) -> Handler[P, R]:
        """Return this handler with options for its next enqueues: those of `Job.objects.enqueue`.

        Raises InvalidRequest for a name that is none of them.
        """
        for name in options:
            if name not in ENQUEUE_OPTIONS:
                mend = did_you_mean(name, ENQUEUE_OPTIONS)
                raise InvalidRequest.at(name, "is not an option of enqueue()", mend=mend)
        return Handler(self.definition, {**self._options, **options})

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        signature = parameters_of(self.definition)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            options = [name for name in kwargs if name in ENQUEUE_OPTIONS and name not in signature.parameters]
            raise InvalidRequest.at(
                "args",
                f"do not fit {self.definition.place}{signature}: {error}",
                value=args or kwargs,
                mend=f"Options go to using({options[0]}=...).enqueue(...)." if options else "",
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


if TYPE_CHECKING:

    class ContextHandler(Handler[P, R]):
        """What ``takes_context=True`` makes of a function: a call takes the context first, an enqueue does not."""

        def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]


class JobOptions(TypedDict, total=False):
    """What `job` takes beside the type and ``takes_context``."""

    queue: str | None
    priority: int
    unique: UniquePolicy | Mapping[str, Any] | None
    retry: RetryPolicy | Mapping[str, Any] | None
    timeout: str | timedelta | float | None
    lease: str | timedelta | float | None
    skip_unless: Callable[..., Any] | None
    cron: Cron | str | None
    heal: Heal | None


@overload
def job(
    type: str, *, takes_context: Literal[False] = False, **options: Unpack[JobOptions]
) -> Callable[[Callable[P, R]], Handler[P, R]]: ...


@overload
def job(
    type: str, *, takes_context: Literal[True], **options: Unpack[JobOptions]
) -> Callable[[Callable[Concatenate[JobContext, P], R]], ContextHandler[P, R]]: ...


def job(
    type: str,
    *,
    queue: str | None = None,
    priority: int = 0,
    unique: UniquePolicy | Mapping[str, Any] | None = None,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: str | timedelta | float | None = None,
    lease: str | timedelta | float | None = None,
    takes_context: bool = False,
    skip_unless: Callable[..., Any] | None = None,
    cron: Cron | str | None = None,
    heal: Heal | None = None,
) -> Any:
    """Declare the handler of a job type, a plain or an ``async def`` function, and the defaults of its enqueues.

    ``timeout`` is that of one attempt, ``lease`` how long its worker may be silent before the job goes to another one:
    ISO 8601, a timedelta or seconds. ``takes_context`` passes a `JobContext` first, as the parameter named ``context``.
    ``skip_unless`` is called before each run with those of the job's arguments that it names; if it returns false,
    the job completes as skipped. ``cron`` enqueues the job periodically. ``heal`` enqueues it for every record that
    still waits for it. Put handlers into an app's ``jobs.py``, where they are found.

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
            lease=lease,
            takes_context=takes_context,
            skip_unless=skip_unless,
            cron=Cron(cron) if isinstance(cron, str) else cron,
            heal=heal,
            **policies,  # type: ignore[arg-type]
        )
        _refuse_a_misfit(definition)
        registry.register(definition)
        return Handler(definition)

    job_type(type)
    priority_number(priority)
    if queue is not None:
        queue_name(queue)
    for name, length in (("timeout", timeout), ("lease", lease)):
        if length is not None:
            milliseconds(length, name)
    return declare


def call(definition: Definition, args: Any, context: JobContext | None) -> Any:
    """Call a handler with a job's arguments: an object as keywords, an array in order. May return a coroutine."""
    before = (context,) if definition.takes_context else ()
    if isinstance(args, dict):
        return definition.function(*before, **args)
    return definition.function(*before, *args)


def still_wanted(definition: Definition, args: Any) -> Any:
    """Call the handler's ``skip_unless`` with those of the job's arguments that it names. May return a coroutine."""
    assert definition.skip_unless is not None
    if not isinstance(args, dict):
        args = parameters_of(definition).bind(*args).arguments
    wanted = inspect.signature(definition.skip_unless).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
    return definition.skip_unless(**{name: value for name, value in args.items() if takes_any or name in wanted})


def misfit(definition: Definition, args: Any) -> str | None:
    """Say why the arguments do not fit the handler's parameters, or return None when they do."""
    try:
        signature = parameters_of(definition)
    except ValueError:  # written in C, without a signature to be read
        return None
    try:
        signature.bind(**args) if isinstance(args, dict) else signature.bind(*args)
    except TypeError as error:
        return f"args do not fit {definition.place}{signature}: {error}"
    return None


def parameters_of(definition: Definition) -> inspect.Signature:
    """Return the handler's signature without the context."""
    signature = inspect.signature(definition.function)
    parameters = list(signature.parameters.values())[1 if definition.takes_context else 0 :]
    return signature.replace(parameters=parameters)


def refuse_unknown_args_keys(definition: Definition) -> None:
    """Raise HandlerError when the policy's ``args_keys`` names what is not a parameter of the handler.

    A handler that takes ``**kwargs`` takes any name. So does one that begins with ``*args`` or a positional-only
    parameter: its args are an array, and the names are those of the one object in it.
    """
    parameters = parameters_of(definition).parameters
    first = next(iter(parameters.values()), None)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or (
        first is not None and first.kind in (first.POSITIONAL_ONLY, first.VAR_POSITIONAL)
    )
    for name in () if takes_any or definition.unique is None else definition.unique.args_keys or ():
        if name not in parameters and name.removeprefix("/").partition("/")[0] not in parameters:
            raise HandlerError(
                f"{definition.place}: args_keys names {name!r}, which is not a parameter."
                f" {did_you_mean(name, parameters) if parameters else 'It has none.'}"
            )


def _refuse_a_misfit(definition: Definition) -> None:
    parameters = inspect.signature(definition.function).parameters
    first = next(iter(parameters), None)
    if definition.takes_context and (
        first != "context" or parameters["context"].kind is inspect.Parameter.KEYWORD_ONLY
    ):
        raise HandlerError(
            f"{definition.place}: with takes_context=True the first positional parameter is named 'context'."
        )
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    refuse_unknown_args_keys(definition)
    if definition.skip_unless is not None and not takes_any:
        for name, wanted in inspect.signature(definition.skip_unless).parameters.items():
            if wanted.default is wanted.empty and wanted.kind is not wanted.VAR_KEYWORD and name not in parameters:
                raise HandlerError(
                    f"{definition.place}: skip_unless needs {name!r}, which is not a parameter of the handler."
                    f" {did_you_mean(name, parameters)}"
                )
    if definition.cron is not None and (problem := misfit(definition, definition.cron.args)):
        raise HandlerError(f"cron: {problem}. Write cron=Cron('...', args={{...}}) with the arguments that it needs.")
    if definition.heal is not None:
        definition.heal.refuse_a_misfit(definition)
