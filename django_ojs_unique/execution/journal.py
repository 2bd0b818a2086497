"""Journal: the steps of a job that have ended, and how far its loops have come, in the ``steps`` of its row.

An entry is ``{"name": ..., "value": ..., "at": ...}`` for a step. For a loop it has ``cursor`` in the place of
``value``, or neither if that was never set. They are in the order in which attempts come to them. Each change is one
UPDATE under the lease's token.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from functools import partial
from typing import Any

from asgiref.sync import sync_to_async

from .. import lifecycle
from ..conf import settings
from ..db.transactions import starting_over
from ..enqueue.values import sized
from ..exceptions import HandlerError, InvalidArgs, InvalidRequest, StepsChanged, UnstorableStep
from ..handlers.context import Cursor
from ..handlers.conversion.containers import Conversion, NoConversion
from ..handlers.conversion.hints import conversion_of, hint_of_result
from ..handlers.functions import is_async
from ..ojs.canonical import plain
from ..ojs.moments import milliseconds
from . import atomic
from .run import Run

logger = logging.getLogger("django_ojs_unique.worker")

LONGEST_NAME = 100
SAVE_SECONDS = 1.0
"""How many seconds may pass before a cursor is stored again: so much of a loop is done again if its worker dies."""

_VALUE, _CURSOR = "value", "cursor"


class Crashed(BaseException):
    """A test lets the process of a handler die here."""


crashes: set[tuple[str, str]] = set()
"""Where a test lets handlers crash, once: the name of a step, and ``before``, ``done`` or ``stored``."""


def reached(name: str, moment: str) -> None:
    """Raise Crashed if a test wants it."""
    if (name, moment) in crashes:
        crashes.remove((name, moment))
        raise Crashed(f"{name}, {moment}")


class Journal:
    """The journal of one run; the row is read at the first use."""

    def __init__(self, run: Run, checkpoint: Callable[[], None]) -> None:
        self._run = run
        self._checkpoint = checkpoint
        self._entries: list[dict[str, Any]] | None = None
        """The entries of the row, or None if they must be read."""
        self._met: set[str] = set()
        """The names that this attempt has come to."""
        self._running = ""
        """The name of the step whose function runs."""
        self._unsaved: dict[str, tuple[dict[str, Any], dict[str, Any] | None]] = {}
        """By name, the entries of cursors that are not stored yet, and what the row had then: if it has something else
        now, a transaction has committed a later one."""
        self._saved_at = time.monotonic()

    def step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Return the stored result of a step, or call the function and store its result."""
        if is_async(function):
            raise HandlerError(
                f"Step {name!r} has an async function: write `await context.astep(...)` in an async handler, and"
                " `context.step(name, async_to_sync(function), ...)` in another."
            )
        conversion = _conversion(name, partial(hint_of_result, function))
        entry = self._find(name, _VALUE)
        if entry is None:
            with self._alone(name):
                reached(name, "before")
                result = function(*args, **kwargs)
                reached(name, "done")
                entry = self._entry(name, _VALUE, conversion, result)
                self._save(entry)
                reached(name, "stored")
        return _restored(entry, _VALUE, conversion)

    async def astep(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Do what `step` does, with a function that returns an awaitable."""
        conversion = _conversion(name, partial(hint_of_result, function))
        entry = await sync_to_async(self._find)(name, _VALUE)
        if entry is None:
            with self._alone(name):
                reached(name, "before")
                result = await function(*args, **kwargs)
                reached(name, "done")
                entry = self._entry(name, _VALUE, conversion, result)
                await sync_to_async(self._save)(entry)
                reached(name, "stored")
        return await sync_to_async(_restored)(entry, _VALUE, conversion)

    def cursor(self, name: str, start: Any, type: Any) -> Cursor:
        """Return the cursor of a loop, with its stored value or its start."""
        conversion = _conversion(name, lambda: type)
        entry = self._find(name, _CURSOR)
        value = start if entry is None or _CURSOR not in entry else _restored(entry, _CURSOR, conversion)
        if entry is None:  # it keeps its place before the steps that come next
            self._unsaved[name] = {"name": name, "at": milliseconds(self._run.now())}, None

        def keep(value: Any) -> None:
            entry = self._entry(name, _CURSOR, conversion, value)
            if self._is_in_transaction:
                self._save(entry)
            else:
                self._unsaved[name] = entry, _named(self._read(), name)
                if time.monotonic() - self._saved_at >= SAVE_SECONDS:
                    self.save_cursors()
            self._checkpoint()

        return Cursor(value, keep)

    def save_cursors(self) -> None:
        """Store the cursors that are not stored yet. Raises LeaseLost."""
        if self.has_unsaved:
            self._save()

    def save_after(self, failure: BaseException) -> None:
        """Store the cursors if that is possible; the ``failure`` of the attempt matters more."""
        try:
            if not isinstance(failure, Crashed) and not self._is_in_transaction:
                self.save_cursors()
        except Exception as error:
            job = self._run.job
            logger.warning("The cursors of job %s (%s) are lost: %s", job.pk, job.type, error, extra=self._run.labels())

    @property
    def has_unsaved(self) -> bool:
        """Whether `save_cursors` has anything to store."""
        return any(_CURSOR in entry for entry, _ in self._unsaved.values())

    @property
    def _is_in_transaction(self) -> bool:
        return atomic.is_in_transaction(self._run)

    def _find(self, name: str, kind: str) -> dict[str, Any] | None:
        """Return the stored entry of a step that this attempt comes to. Raises StepsChanged and InvalidRequest."""
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_NAME:
            problem = f"must be a text of 1 to {LONGEST_NAME} characters"
            raise InvalidRequest.at("name", problem, value=name, hint="Write context.step('charge', charge, ...).")
        entries = self._read()
        found = _named(entries, name)
        missed = [entry["name"] for entry in entries if entry["name"] not in self._met]
        if found is None and missed:
            raise StepsChanged(
                f"Step {name!r} comes where an earlier attempt did {missed[0]!r}. Keep the names and the order of steps"
                " while jobs are under way: add steps at the end only, or give the changed handler a type of its own."
            )
        if found is not None and (kind == _VALUE) is not (_VALUE in found):
            raise StepsChanged(f"{name!r} is a step here and a cursor there. Give one of them another name.")
        if found is not None and name in self._met:
            raise StepsChanged(f"Step {name!r} comes twice. In a loop, let its name have the number or the key.")
        self._met.add(name)
        return found

    def _read(self) -> list[dict[str, Any]]:
        if self._entries is not None:
            return self._entries
        job = self._run.job
        row = type(job)._default_manager.using(job._state.db).filter(pk=job.pk)
        entries = row.values_list("steps", flat=True).first() or []
        self._keep(entries)
        return entries

    def _keep(self, entries: list[dict[str, Any]]) -> None:
        """Keep what the row has, unless the open transaction may still be rolled back."""
        self._entries = None if self._is_in_transaction else entries

    def _entry(self, name: str, kind: str, conversion: Conversion, value: Any) -> dict[str, Any]:
        path = f"steps.{name}"
        try:
            stored = plain(conversion.to_json(value, path), path)
        except InvalidRequest as error:
            hint = "Let the type hint of its result say the type, or return JSON." if kind == _VALUE else ""
            raise UnstorableStep(f"{error.message} {hint}".strip(), details=error.details) from None
        return {"name": name, kind: stored, "at": milliseconds(self._run.now())}

    def _save(self, *changed: dict[str, Any]) -> None:
        """Store entries, after those of the cursors that are not stored yet. Raises LeaseLost and UnstorableStep."""
        entries = [*self._read()]
        waiting = [entry for name, (entry, before) in self._unsaved.items() if _named(entries, name) == before]
        for entry in (*waiting, *changed):
            place = next((index for index, other in enumerate(entries) if other["name"] == entry["name"]), len(entries))
            entries[place:] = [entry, *entries[place + 1 :]]
        try:
            sized(entries, "steps", settings.max_result_bytes)
        except InvalidRequest as error:
            hint = "Store large results elsewhere, and return their keys; for long loops, use context.cursor()."
            raise UnstorableStep(f"{error.message} {hint}", details=error.details) from None
        with atomic.advising_fence() if self._is_in_transaction else nullcontext():
            rows = atomic.leased(self._run)
            written = starting_over(rows.db, lambda: lifecycle.write(rows, steps=entries))
        if not written:
            atomic.lose(self._run)
        self._keep(entries)
        if not self._is_in_transaction:
            self._unsaved.clear()
            self._saved_at = time.monotonic()

    @contextmanager
    def _alone(self, name: str) -> Iterator[None]:
        """Refuse a step inside of another one, or beside it. Raises RuntimeError."""
        if self._running:
            raise RuntimeError(
                f"Step {name!r} begins while {self._running!r} still runs. Let one end before the next begins."
            )
        self._running = name
        try:
            yield
        finally:
            self._running = ""


def _named(entries: list[dict[str, Any]], name: str) -> dict[str, Any] | None:
    return next((entry for entry in entries if entry["name"] == name), None)


def _restored(entry: dict[str, Any], kind: str, conversion: Conversion) -> Any:
    """Return a copy of the value that an entry stores. Raises StepsChanged if it does not fit the type."""
    name = entry["name"]
    try:
        return conversion.from_json(deepcopy(entry[kind]), f"steps.{name}")
    except InvalidArgs:  # whose message has the value, and advice about arguments
        raise StepsChanged(
            f"What step {name!r} stored in an earlier attempt does not fit its type now, or the row that it names is"
            " gone. Keep the types of steps while jobs are under way, or give the changed handler a type of its own."
        ) from None


def _conversion(name: str, hint: Callable[[], Any]) -> Conversion:
    """Return the conversion for a type hint. Raises HandlerError."""
    try:
        return conversion_of(hint(), {})
    except (NoConversion, NameError) as error:
        raise HandlerError(
            f"The result of step {name!r} cannot be stored by its type hint: {error}. Use a type that the page on typed"
            " arguments lists, or return plain JSON."
        ) from None
