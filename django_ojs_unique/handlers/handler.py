"""What `@job` makes of a function: call it directly, or enqueue it."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from functools import update_wrapper
from typing import TYPE_CHECKING, Any, Generic, ParamSpec, TypeVar, Unpack

from ..exceptions import InvalidRequest, did_you_mean
from ..options import ENQUEUE, EnqueueOptions
from .registry import Definition, argument_names, parameters_of, suggestion

if TYPE_CHECKING:
    from ..enqueue.results import EnqueueResult
    from ..models import Job
    from .context import JobContext


ELSEWHERE = {
    "delay": "enqueue(...)",
    "delay_on_commit": "enqueue_on_commit(...)",
    "apply_async": "enqueue(...), or using(queue=..., delay=...).enqueue(...) for options",
    **dict.fromkeys(("run", "apply"), "handler(...): a call without a job"),
    **dict.fromkeys(("s", "si", "signature", "subtask"), "item(...)"),
    "AsyncResult": "Job.objects.get(pk=...)",
    "retry": "raise Retry(...)",
    "request": "@job(..., takes_context=True): the context has it",
    "send": "enqueue(...)",
    "send_with_options": "using(queue=..., delay=...).enqueue(...)",
    "defer": "enqueue(...)",
    "configure": "using(...)",
    "perform_async": "enqueue(...)",
    "schedule": "using(scheduled_at=...).enqueue(...)",
}
"""What other job systems call the methods of a handler: Celery, Dramatiq, Procrastinate, Sidekiq, Huey."""

P = ParamSpec("P")
R = TypeVar("R")


class Handler(Generic[P, R]):
    """A handler function: call it to run it directly, or call `enqueue` to let a worker run it."""

    def __init__(self, definition: Definition, options: Mapping[str, Any] | None = None) -> None:
        update_wrapper(self, definition.function)
        self.definition = definition
        self._options = dict(options or {})

    def __repr__(self) -> str:
        return f"<Handler of {self.definition.type}: {self.definition.place}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.definition.function(*args, **kwargs)  # type: ignore[no-any-return]

    if not TYPE_CHECKING:  # type checkers would believe that a handler has every attribute

        def __getattr__(self, name: str) -> Any:
            hint = f". Write {ELSEWHERE[name]}." if name in ELSEWHERE else ""
            raise AttributeError(f"'Handler' object has no attribute {name!r}{hint}")

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult[Job]:
        """Enqueue a job with these arguments; positional ones are named after the handler's parameters.

        Raises InvalidRequest when they do not fit the handler, and what `Job.objects.enqueue` raises.
        """
        from ..models import Job

        result: EnqueueResult[Job] = Job.objects.enqueue(**self.item(*args, **kwargs))
        return result

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> EnqueueResult[Job]:
        """Do what `enqueue` does, from asynchronous code."""
        from ..models import Job

        result: EnqueueResult[Job] = await Job.objects.aenqueue(**self.item(*args, **kwargs))
        return result

    def enqueue_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None:
        """Enqueue once the current transaction is committed; do nothing if it is rolled back.

        Raises at once what `enqueue` raises for an invalid request: see `Job.objects.enqueue_on_commit`.
        """
        from ..models import Job

        Job.objects.enqueue_on_commit(**self.item(*args, **kwargs))

    def item(self, *args: P.args, **kwargs: P.kwargs) -> dict[str, Any]:
        """Return a job with these arguments as an item for `Job.objects.enqueue_many`."""
        return {"type": self.definition.type, "args": self._named(args, kwargs), **self._options}

    def using(self, **options: Unpack[EnqueueOptions]) -> Handler[P, R]:
        """Return this handler with options for its next enqueues: those of `Job.objects.enqueue`.

        Raises InvalidRequest for an unknown option.
        """
        for name in options:
            if name not in ENQUEUE:
                hint = did_you_mean(name, ENQUEUE)
                raise InvalidRequest.at(name, "is not an option of enqueue()", hint=hint)
        return Handler(self.definition, {**self._options, **options})

    def _named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        signature = parameters_of(self.definition)
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            from .redaction import redacted_args

            type, meant = self.definition.type, argument_names(self.definition.type, kwargs)
            named = redacted_args(type, {meant.get(name, name): value for name, value in kwargs.items()})
            shown = redacted_args(type, args) if args else {name: named[meant.get(name, name)] for name in kwargs}
            options = [name for name in kwargs if name in ENQUEUE and name not in signature.parameters]
            raise InvalidRequest.at(
                "args",
                f"do not fit {self.definition.place}{signature}: {error}",
                value=shown,
                hint=f"Options go to using({options[0]}=...).enqueue(...)."
                if options
                else suggestion(signature, kwargs),
            ) from None
        by_name: dict[str, Any] = {}
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind in (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.POSITIONAL_ONLY):
                raise InvalidRequest.at(
                    "args",
                    f"cannot be sent by name to {self.definition.place}{signature}",
                    hint="Enqueue an array with Job.objects.enqueue().",
                )
            by_name.update(value if kind is inspect.Parameter.VAR_KEYWORD else {name: value})
        return by_name


if TYPE_CHECKING:

    class ContextHandler(Handler[P, R]):
        """What ``takes_context=True`` makes of a function: a call takes the context first, an enqueue does not."""

        def __call__(self, context: JobContext, *args: P.args, **kwargs: P.kwargs) -> R: ...  # type: ignore[override]
