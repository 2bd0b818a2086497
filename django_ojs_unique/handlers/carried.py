"""What a job carries from its enqueue to its runs, such as the tenant: ``OJS_UNIQUE["CONTEXT"]``."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, nullcontext
from functools import cache
from types import MappingProxyType
from typing import Any

from asgiref.sync import ThreadSensitiveContext, sync_to_async
from django.db import connections

from ..conf import imported, settings
from ..db import sessions
from ..exceptions import InvalidRequest, TransactionLeftOpen, did_you_mean
from ..ojs.canonical import plain
from ..unique.fingerprint import CONTEXT

_UNIQUE, _CARRIED = "unique", "carried"


class Context:
    """One thing that each job carries. Subclass it, and name the class in ``OJS_UNIQUE["CONTEXT"]``.

    ``name`` is stored in jobs: never change it. ``unique``: whether only jobs that carry the same can be duplicates,
    whatever their policy or key. ``of_connections``: whether `restore` changes the thread's database connections, and
    not only context variables.
    """

    name: str
    unique = False
    of_connections = False

    def capture(self) -> Mapping[str, Any] | None:
        """Return what a job that is enqueued here carries, as a JSON object; None for nothing."""
        raise NotImplementedError

    def restore(self, captured: dict[str, Any]) -> AbstractContextManager[Any]:
        """Surround a run of the job, and the receivers of its signals. An exception on entry fails the attempt."""
        raise NotImplementedError

    def here(self) -> AbstractContextManager[Any]:
        """Return what restores, in another thread of this process, what is active in this thread now."""
        captured = self.capture()
        return nullcontext() if captured is None else self.restore(dict(captured))


@cache
def contexts() -> tuple[Context, ...]:
    """Return an instance of each class in the setting. Raises ImportError."""
    named = settings.context
    return tuple(imported(one)() for one in ([named] if isinstance(named, (str, type)) else named))


def obey_setting() -> None:
    """Read the setting anew."""
    contexts.cache_clear()


def capture(instead: Mapping[str, Any] = MappingProxyType({})) -> dict[str, Any] | None:
    """Return what a job that is enqueued now carries, or None. Raises InvalidRequest for what is no JSON object.

    ``instead`` has, by the names of classes, what these would capture elsewhere. Raises InvalidRequest for other names.
    """
    carried: dict[str, Any] = {}
    for one in contexts():
        captured = instead[one.name] if one.name in instead else one.capture()
        if captured is None:
            continue
        if not isinstance(captured, Mapping):
            hint = "Let capture() return a dict, or None for nothing."
            raise InvalidRequest.at(f"context.{one.name}", "must be an object", value=captured, hint=hint)
        kind = _UNIQUE if one.unique else _CARRIED
        carried.setdefault(kind, {})[one.name] = plain(dict(captured), f"context.{one.name}")
    for name in instead:
        if name not in (known := [one.name for one in contexts()]):
            raise InvalidRequest.at(f"context.{name}", "is carried by no job", hint=did_you_mean(name, known))
    return carried or None


def unique_names() -> list[str]:
    """Return the names of what only jobs that can be duplicates have in common."""
    return [one.name for one in contexts() if one.unique]


def split(meta: Any) -> tuple[Any, Any]:
    """Return a stored job's meta without what the job carries, and that."""
    if not isinstance(meta, dict) or CONTEXT not in meta:
        return meta, None
    return {name: value for name, value in meta.items() if name != CONTEXT}, meta[CONTEXT]


@contextmanager
def restored(job: Any) -> Iterator[None]:
    """Restore what a job carries. Raises what a class raises on entry."""
    with ExitStack() as stack:
        for one, captured in _carried(job):
            stack.enter_context(one.restore(captured))
        yield


@asynccontextmanager
async def arestored(job: Any) -> AsyncIterator[None]:
    """Do the same for an async handler.

    What changes connections is restored in the thread for synchronous code. All async handlers share that thread, so
    the job gets one of its own, unless the caller's connections are to be used.
    """
    carried = _carried(job)
    with ExitStack() as stack:
        for one, captured in carried:
            if not one.of_connections:
                stack.enter_context(one.restore(captured))
        of_connections = [(one, captured) for one, captured in carried if one.of_connections]
        if not of_connections:
            yield
            return
        async with ThreadSensitiveContext():
            inner, is_own = ExitStack(), not sessions.keeps()
            try:
                await sync_to_async(_enter)(inner, of_connections, is_own)
                yield
            except BaseException:
                await sync_to_async(_leave)(inner, is_own)
                raise
            if left := await sync_to_async(_leave)(inner, is_own):
                raise TransactionLeftOpen.on(left)


def carries(job: Any) -> bool:
    """Whether a job carries anything."""
    return bool(job.meta) and CONTEXT in job.meta


def handed_on() -> Callable[[], ExitStack]:
    """Return a function that gives another thread what is active on this thread's connections now.

    It returns a stack, to be closed in that thread.
    """
    here = [one.here() for one in contexts() if one.of_connections]

    def enter() -> ExitStack:
        stack = ExitStack()
        for each in here:
            stack.enter_context(each)
        return stack

    return enter


def inheriting(serve: Callable[[], None]) -> Callable[[], None]:
    """Return the main function of a new thread, to run with what is active on this thread's connections now."""
    enter = handed_on()

    def serve_here() -> None:
        with enter():
            serve()

    return serve_here


def _carried(job: Any) -> Sequence[tuple[Context, dict[str, Any]]]:
    if not carries(job):
        return ()
    kinds = job.meta[CONTEXT]
    named = {**kinds.get(_UNIQUE, {}), **kinds.get(_CARRIED, {})}
    known = {one.name: one for one in contexts()}
    if missing := named.keys() - known.keys():
        raise LookupError(
            f"Job {job.pk} carries {', '.join(sorted(missing))}, and OJS_UNIQUE['CONTEXT'] has no class of that name."
            " Name the class again, or enqueue the job anew."
        )
    return [(one, named[name]) for name, one in known.items() if name in named]


def _enter(stack: ExitStack, carried: Sequence[tuple[Context, dict[str, Any]]], is_own: bool) -> None:
    if is_own:
        sessions.watch()
    for one, captured in carried:
        stack.enter_context(one.restore(captured))


def _leave(stack: ExitStack, is_own: bool) -> list[str]:
    """Return the aliases of the thread's own connections with an open transaction."""
    try:
        stack.close()
        return sessions.renew() if is_own else []
    finally:
        if is_own:
            connections.close_all()
