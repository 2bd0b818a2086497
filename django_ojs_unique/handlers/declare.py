"""`@job`: declare the handler of a job type, and how its jobs are enqueued."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, Unpack, overload

from ..exceptions import did_you_mean
from ..ojs.cron import Cron
from ..ojs.limits import Limit
from ..ojs.names import job_type
from ..ojs.retry import RetryPolicy
from ..options import DeclaredOptions, declared
from ..unique.policy import UniquePolicy
from .context import JobContext
from .functions import place_of
from .handler import Handler
from .registry import Definition, SupportsHeal, registry
from .signature import redacted_names, refuse_a_misfit

if TYPE_CHECKING:
    from .handler import ContextHandler

P = ParamSpec("P")
R = TypeVar("R")


class JobOptions(DeclaredOptions, total=False):
    """The options of `job` besides the type and ``takes_context``."""

    skip_unless: Callable[..., Any] | None
    cron: Cron | str | None
    heal: SupportsHeal | None
    convert: bool
    atomic: bool
    redact: Collection[str]


OPTIONS = (*JobOptions.__annotations__, "takes_context")


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
    priority: int | None = 0,
    unique: UniquePolicy | Mapping[str, Any] | None = None,
    retry: RetryPolicy | Mapping[str, Any] | None = None,
    timeout: str | timedelta | float | None = None,
    lease: str | timedelta | float | None = None,
    takes_context: bool = False,
    skip_unless: Callable[..., Any] | None = None,
    cron: Cron | str | None = None,
    heal: SupportsHeal | None = None,
    convert: bool = False,
    atomic: bool = False,
    redact: Collection[str] = (),
    limit: Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None = None,
    **unknown: Any,
) -> Any:
    """Declare the handler of a job type, a plain or an ``async def`` function, and the defaults of its enqueues.

    ``timeout`` limits one attempt; ``lease`` is how long the worker may be silent before the job goes to another one:
    ISO 8601, a timedelta or seconds. ``takes_context`` passes a `JobContext` first, as the parameter named ``context``.
    ``skip_unless`` is called before each attempt with the arguments of the job that it names as parameters; if it
    returns false, the job completes as skipped. ``cron`` enqueues the job periodically. ``heal`` enqueues it for every
    record that still needs it. ``convert`` lets the args be dates, model instances and more, by the type hints.
    ``atomic`` commits what the handler writes together with its completion, or neither.
    ``redact`` names members of args, meta and results that nobody is shown. ``limit``: a `Limit`, or several, on how
    many of its jobs run at once or start in a time. Put handlers into an app's ``jobs.py``:
    that module is imported at the start.

    Raises HandlerError when the type already has a handler, the function does not fit or ``redact`` is no list of
    names, InvalidRequest for an invalid name or limit, InvalidPolicy and InvalidRetryPolicy for invalid policies: all
    when the module is imported.
    """
    if callable(type):
        name = getattr(type, "__qualname__", "it")
        raise TypeError(f"@job needs the name of a job type. Write @job('mail.send'), or another name, above {name}.")
    for name in unknown:
        raise TypeError(f"job() has no option {name!r}. {did_you_mean(name, OPTIONS)}")
    job_type(type)
    options = declared(
        {
            "queue": queue,
            "priority": priority,
            "unique": unique,
            "retry": retry,
            "timeout": timeout,
            "lease": lease,
            "limit": limit,
        }
    )

    def declare(function: Callable[..., R]) -> Handler[..., R]:
        definition = Definition(
            type,
            function,
            options,
            takes_context=takes_context,
            skip_unless=skip_unless,
            cron=Cron(cron) if isinstance(cron, str) else cron,
            heal=heal,
            atomic=atomic,
            redact=redacted_names(redact, place_of(function)),
        )
        if convert:
            from .conversion.arguments import ConvertedArguments  # needs Django, as declarations do not

            definition = replace(definition, converter=ConvertedArguments(definition))
        refuse_a_misfit(definition)
        registry.register(definition)
        return Handler(definition)

    return declare
