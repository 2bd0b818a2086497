"""Check that arguments and options fit the parameters of a handler, and call it with them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from inspect import isawaitable
from typing import TYPE_CHECKING, Any

from asgiref.sync import sync_to_async

from ..exceptions import HandlerError, did_you_mean, shorten
from ..ojs.limits import part_of
from ..ojs.names import are_names
from .functions import is_async, is_generator, kept, place_of
from .registry import Definition, misfit, parameters_of

if TYPE_CHECKING:
    from .context import JobContext


def call(definition: Definition, args: Any, context: JobContext | None) -> Any:
    """Call a plain handler with a job's arguments: an object as keywords, an array in order."""
    return kept(_call(definition, args, context), definition.function)


async def acall(definition: Definition, args: Any, context: JobContext | None) -> Any:
    """Do what `call` does, with an async handler."""
    return kept(await _call(definition, args, context), definition.function)


def _call(definition: Definition, args: Any, context: JobContext | None) -> Any:
    before = (context,) if definition.takes_context else ()
    if isinstance(args, dict):
        return definition.function(*before, **args)
    return definition.function(*before, *args)


def still_wanted(definition: Definition, args: Any) -> Any:
    """Call the handler's ``skip_unless`` with the arguments of the job that it names."""
    assert definition.skip_unless is not None
    return kept(_still_wanted(definition, definition.skip_unless, args), definition.skip_unless)


async def astill_wanted(definition: Definition, args: Any) -> Any:
    """Do what `still_wanted` does, for an async handler: its ``skip_unless`` may be a plain or an async function."""
    assert definition.skip_unless is not None
    wanted = await sync_to_async(_still_wanted)(definition, definition.skip_unless, args)
    return kept(await wanted if isawaitable(wanted) else wanted, definition.skip_unless)


def _still_wanted(definition: Definition, skip_unless: Callable[..., Any], args: Any) -> Any:
    if not isinstance(args, dict):
        args = parameters_of(definition).bind(*args).arguments
    wanted = inspect.signature(skip_unless).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in wanted.values())
    return skip_unless(**{name: value for name, value in args.items() if takes_any or name in wanted})


def refuse_unknown_args(definition: Definition) -> None:
    """Raise HandlerError when the policy or a limit names a member of args that is not a parameter of the handler.

    A handler that takes ``**kwargs`` takes any name. So does one that begins with ``*args`` or a positional-only
    parameter: its args are an array, and the names are those of the one object in it.
    """
    parameters = parameters_of(definition).parameters
    first = next(iter(parameters.values()), None)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()) or (
        first is not None and first.kind in (first.POSITIONAL_ONLY, first.VAR_POSITIONAL)
    )
    for option, place, shown, name in () if takes_any else _named_args(definition):
        if name not in parameters and name.removeprefix("/").partition("/")[0] not in parameters:
            raise HandlerError(
                f"{definition.place}: {place} names {shown!r}, which is not a parameter."
                f" {did_you_mean(name, parameters) if parameters else 'It has none.'}",
                details={"option": option},
            )


def _named_args(definition: Definition) -> Iterator[tuple[str, str, str, str]]:
    """Yield each member of args that an option names: the option, where in it, the name there, and the member's."""
    for name in (definition.unique and definition.unique.args_keys) or ():
        yield "unique", "args_keys", name, name
    for limit in definition.limits:
        for part in limit.key:
            source, member = part_of(part)
            if source == "args" and member:
                yield "limit", "the key of a limit", part, member


def refuse_a_wrong_atomic(definition: Definition) -> None:
    """Raise HandlerError for an ``atomic`` that is no boolean, or on an ``async def`` handler."""
    if not isinstance(definition.atomic, bool):
        raise HandlerError(f"{definition.place}: atomic must be True or False. Write atomic=True.")
    if definition.atomic and definition.is_async:
        raise HandlerError(
            f"{definition.place}: atomic=True needs a plain function, because Django has no asynchronous transactions."
            " Write def instead of async def; or open transaction.atomic() in a function that you call with"
            " sync_to_async, and call context.complete() in it."
        )


def refuse_a_generator(function: Callable[..., Any]) -> None:
    """Raise HandlerError when a call of the function would only make a generator."""
    if is_generator(function):
        raise HandlerError(
            f"{place_of(function)}: a generator cannot be a handler, because nothing would run it. Write a loop without"
            " yield; context.cursor() lets it go on after a crash."
        )


def _refuse_a_wrong_skip_unless(definition: Definition, skip_unless: Callable[..., Any]) -> None:
    if is_generator(skip_unless) or (is_async(skip_unless) and not definition.is_async):
        raise HandlerError(
            f"{definition.place}: skip_unless {place_of(skip_unless)} must be a plain function that returns a boolean;"
            " that of an async handler may be async."
        )


def redacted_names(redact: Any, place: str) -> tuple[str, ...]:
    """Return the names of ``redact``. Raises HandlerError unless it is a list of names."""
    if not are_names(redact):
        hint = f" Write redact=[{redact!r}]." if isinstance(redact, str) and redact else ""
        raise HandlerError(f"{place}: redact must be a list of names of members (got {shorten(redact)}).{hint}")
    return tuple(redact)


def refuse_a_misfit(definition: Definition) -> None:
    """Raise HandlerError when an option of a handler does not fit its function."""
    refuse_a_generator(definition.function)
    parameters = inspect.signature(definition.function).parameters
    first = next(iter(parameters), None)
    if definition.takes_context and (
        first != "context" or parameters["context"].kind is inspect.Parameter.KEYWORD_ONLY
    ):
        raise HandlerError(
            f"{definition.place}: with takes_context=True the first positional parameter is named 'context'."
        )
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    refuse_a_wrong_atomic(definition)
    refuse_unknown_args(definition)
    if definition.skip_unless is not None:
        _refuse_a_wrong_skip_unless(definition, definition.skip_unless)
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
