"""The items of a batch: read what the caller gives, and find what is invalid."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from ..db.clock import database_now
from ..exceptions import InvalidRequest, OJSError, did_you_mean, shorten
from ..handlers.redaction import masked, names_of_any
from .entry import Answer, Entry, located
from .new_job import Reader
from .request import ARGUMENTS, Request, own_members, refuse_another_database
from .results import ItemResult, Outcome


class Items:
    """Items that are drawn from their source at once, and then read, all or a few at a time."""

    def __init__(self, jobs: QuerySet[Any], numbered: Iterable[tuple[int, Any]]) -> None:
        # Draw all items before `now` is set, because their source may be slow; copy them, because it may change them.
        self._drawn = deque((index, _draw(index, item, jobs.db)) for index, item in numbered)
        self._reader, self._now = Reader(jobs.model), database_now(jobs.db)
        self._log_unknown_types()

    def __len__(self) -> int:
        return len(self._drawn)

    def read(self, count: int | None = None) -> list[Answer]:
        """Return an entry for each valid item of the next ones, and a result with the error for each other one.

        It does not use the connection.
        """
        count = len(self) if count is None else min(count, len(self))
        return [_build(self._reader, *self._drawn.popleft(), self._now) for _ in range(count)]

    def _log_unknown_types(self) -> None:
        """Let the warnings be logged before `read`: the log may use the connection."""
        for request in {str(one.type): one for _, one in self._drawn if isinstance(one, Request)}.values():
            with suppress(OJSError):  # `read` finds it again
                self._reader.options_of(request)


def _draw(index: int, item: Any, using: str) -> Request | OJSError:
    try:
        request = request_of_item(item)
        refuse_another_database(request, using)
        return own_members(request)
    except OJSError as mistake:
        return located(index, mistake)


def _build(reader: Reader, index: int, request: Request | OJSError, now: datetime) -> Answer:
    error = request
    if not isinstance(request, OJSError):
        try:
            return Entry(index, reader.build(request, now))
        except OJSError as mistake:
            error = located(index, mistake)
    assert isinstance(error, OJSError)
    return ItemResult(None, Outcome.INVALID, index=index, error=error)


def request_of_item(item: Any) -> Request:
    """Read one item: an object with the arguments of `enqueue`, or the reason why there is none."""
    if isinstance(item, Request):
        return item
    if isinstance(item, OJSError):
        raise item
    if type(item) is not dict and not isinstance(item, Mapping):
        item = masked(item, names_of_any())
        raise InvalidRequest(
            f"must be an object with the arguments of enqueue() (got {shorten(item)}). Write {{'type': ...}}."
            " The item() of a handler makes one.",
            details={"value": shorten(item)},
        )
    if not item.keys() <= ARGUMENTS:
        name = next(name for name in item if name not in ARGUMENTS)
        raise InvalidRequest.at(
            str(name), "is not an argument of enqueue()", hint=did_you_mean(name, sorted(ARGUMENTS))
        )
    if "type" not in item:
        raise InvalidRequest.at("type", "is missing", hint="Write {'type': 'email.send', ...}.")
    return Request(**item)
