"""A task's arguments in its job: all by name, so that a unique policy counts them whether passed by name or in order.

The names that the caller passed in order are noted in the job's `extra`, which no policy can count.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import Parameter, Signature, signature
from typing import Any

from ..exceptions import InvalidRequest
from ..handlers.functions import place_of
from ..handlers.registry import suggestion
from .framework import normalize_json

NOTE = "django_task"
"""The member of the job's `extra`: ``{"backend": alias, "positional": names}``; ``"*name"`` holds a variable number."""


def parameters_of(task: Any) -> Signature:
    """Return the signature of a task's function without the context."""
    whole = signature(task.func)
    return whole.replace(parameters=list(whole.parameters.values())[1 if task.takes_context else 0 :])


def by_name(task: Any) -> Signature:
    """Return the signature for the stored arguments: first the context, then all arguments by name."""
    named = [Parameter("_context", Parameter.POSITIONAL_ONLY)]
    for parameter in parameters_of(task).parameters.values():
        if parameter.kind is Parameter.POSITIONAL_ONLY:
            parameter = parameter.replace(kind=Parameter.POSITIONAL_OR_KEYWORD)
        elif parameter.kind is Parameter.VAR_POSITIONAL:
            parameter = parameter.replace(kind=Parameter.KEYWORD_ONLY, default=())
        named.append(parameter)
    return Signature(named)


def store(task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the arguments of a call by name, as JSON, and the names of those that were passed in order.

    Raises InvalidRequest when they do not fit the task, and what Django raises for values that JSON cannot carry.
    """
    fits = parameters_of(task)
    place = f"{place_of(task.func)}{fits}"
    try:
        fits.bind(*args, **kwargs)
        passed = fits.bind_partial(*args).arguments
    except TypeError as error:
        raise InvalidRequest.at("args", f"do not fit {place}: {error}", hint=suggestion(fits, kwargs)) from None
    stars = {name: "*" for name, parameter in fits.parameters.items() if parameter.kind is Parameter.VAR_POSITIONAL}
    for name in kwargs:
        if name in passed:  # as in f(a, /, **more) called with f(1, a=2)
            raise InvalidRequest.at(f"args.{name}", f"is there twice for {place}", hint="Rename one of the two.")
    named: Any = normalize_json({**passed, **kwargs})
    return named, [f"{stars.get(name, '')}{name}" for name in passed]


def restore(job: Any) -> tuple[list[Any], dict[str, Any]]:
    """Return a job's arguments as the task's caller passed them; for any other job, as its object or array has them."""
    if isinstance(job.args, list):
        return list(job.args), {}
    args, kwargs = [], dict(job.args)
    names = _noted(job, "positional")
    for noted in (name for name in names if isinstance(name, str)) if isinstance(names, list) else ():
        name = noted.removeprefix("*")
        if name not in kwargs:
            break
        value = kwargs.pop(name)
        args += value if name != noted and isinstance(value, list) else [value]
    return args, kwargs


def backend_of(job: Any) -> str | None:
    """Return the alias of the backend that enqueued a job, or None."""
    alias = _noted(job, "backend")
    return alias if isinstance(alias, str) else None


def _noted(job: Any, member: str) -> Any:
    note = job.extra.get(NOTE) if isinstance(job.extra, dict) else None
    return note.get(member) if isinstance(note, dict) else None
