"""Decide the requests in the inbox, in their order, each once: in one transaction with the removal of its row.

Several deciders work side by side, because each skips the rows that others have locked. A later request of a key or a
policy must not overtake an earlier one that somebody else holds, so it is left for later.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from itertools import groupby
from typing import Any, TypeAlias

from django.db import InterfaceError, OperationalError, transaction
from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..db.inserts import ROWS_AT_ONCE
from ..db.locking import any_of, unlocked
from ..db.sizes import bytes_of, fit
from ..db.transactions import is_busy, is_transient, starting_over
from ..enqueue.new_job import Reader
from ..enqueue.remove import remove
from ..enqueue.results import Outcome
from ..exceptions import Contended, InvalidRequest, OJSError, did_you_mean
from ..models import InboxRequest
from ..ojs.canonical import to_nfc
from ..options import INHERIT
from ..wire.enqueue import EnqueueBody, read_job, relocated

logger = logging.getLogger("django_ojs_unique.worker")

LARGEST_BATCH = 16 * 2**20
"""How many bytes of requests to read at once; a larger one is read alone."""
_OF_A_REMOVAL = {"key": "options.key", "key_scope": "options.key_scope"}
"""The options of a removal, and how an error names them."""

Lane: TypeAlias = tuple[str, str | None]


@dataclass(frozen=True, slots=True)
class Decided:
    """How many requests were decided or refused, and whether there may be ``more`` that nobody else decides."""

    count: int = 0
    more: bool = False


def waiting(using: str) -> QuerySet[Any]:
    """Select the requests that are not decided, the first one first."""
    return InboxRequest.objects.using(using).waiting()


def decide(jobs: QuerySet[Any], most: int = ROWS_AT_ONCE) -> Decided:
    """Decide the first requests that nobody has locked, at most ``most``.

    If they fail together, each is decided alone: one that fails alone is refused, or left while it waits for others.
    Raises what the database raises in an outage.
    """
    if not any_of(rows := waiting(jobs.db)):
        return Decided()
    together: list[int] = []
    try:
        return starting_over(jobs.db, partial(_decide, jobs, rows, most, together))
    except Exception as error:
        if not together or _is_outage(error):
            raise
        logger.info("The requests %d to %d fail together; each is decided alone.", together[0], together[-1])
    alone = [_decide_alone(jobs, rows.filter(pk=key), key) for key in together]
    return Decided(sum(alone), more=True)


def _decide_alone(jobs: QuerySet[Any], row: QuerySet[Any], key: int) -> int:
    try:
        return starting_over(jobs.db, partial(_decide, jobs, row, 1, [])).count
    except Exception as error:
        if _is_outage(error):
            raise
        if is_busy(error) or isinstance(error, Contended):
            logger.info("The request %d waits for others; left for later.", key)
            return 0
        logger.exception("The request %d in the inbox is refused.", key)
        # Not the error's text, which may quote the args.
        problem = f"Deciding it raised {type(error).__name__}. The log of who decided it says more."
        return row.update(refused_at=database_now(jobs.db), error={"code": "internal_error", "message": problem})


def _is_outage(error: Exception) -> bool:
    """Whether no single request can be to blame, and the transaction cannot go on."""
    is_down = isinstance(error, (OperationalError, InterfaceError)) and not is_busy(error)
    return is_down or is_transient(error)


def _decide(jobs: QuerySet[Any], rows: QuerySet[Any], most: int, locked: list[int]) -> Decided:
    """Decide in one transaction; note in ``locked`` the ids of the requests that it is about."""
    with transaction.atomic(using=jobs.db):
        dialect_of(rows).read_anew()
        sizes = dict(unlocked(rows).values_list("pk", bytes_of(("args", "options")))[:most])
        count, _ = fit(sizes.values(), LARGEST_BATCH)
        locked[:] = [*sizes][:count]
        if not locked:
            return Decided()
        now, reader = database_now(jobs.db), Reader(jobs.model)
        # By their ids alone: with old statistics, PostgreSQL would read all that wait.
        requests = InboxRequest.objects.using(jobs.db)
        asked = [_Asked(row, now, reader) for row in requests.filter(pk__in=locked).order_by("pk")]
        held = _held(jobs.db, asked)
        mine = [one for one in asked if one.lane is None or one.row.pk < held.get(one.lane, sys.maxsize)]
        valid = (one for one in mine if one.error is None)
        for action, some in groupby(valid, key=lambda one: one.row.action):
            (_remove if action == InboxRequest.Action.REMOVE else _enqueue)(jobs, [*some])
        requests.filter(pk__in=[one.row.pk for one in mine if one.error is None]).delete()
        for one in mine:
            if one.error is not None:
                one.refuse(now)
    return Decided(len(mine), more=len(sizes) == most or len(mine) < len(sizes))


class _Asked:
    """A request as it was read: what it ``wants``, or the ``error``. Those of one ``lane`` keep their order."""

    __slots__ = ("error", "lane", "row", "wants")

    def __init__(self, row: InboxRequest, now: datetime, reader: Reader) -> None:
        self.row = row
        self.wants: Any = None
        self.error: OJSError | None = None
        self.lane: Lane | None = None
        try:
            self._read(now, reader)
        except OJSError as error:
            self.error = error

    def _read(self, now: datetime, reader: Reader) -> None:
        row = self.row
        if row.action == InboxRequest.Action.REMOVE:
            self.wants = _read_removal(row)
        elif row.action == InboxRequest.Action.ENQUEUE:
            self.wants = _read_enqueue(row, now)
            if not _is_unique(self.wants, reader):
                return
        else:
            hint = did_you_mean(row.action, InboxRequest.Action)
            raise InvalidRequest.at("action", "is not a known choice", value=row.action, hint=hint)
        self.lane = _lane(row.type, row.options)

    def refuse(self, now: datetime) -> None:
        assert self.error is not None
        logger.warning("The request %d in the inbox is refused: %s", self.row.pk, self.error.message)
        self.row.refuse(error_of(self.error), now)


def error_of(error: OJSError) -> dict[str, Any]:
    """Return what is stored about the error of a request."""
    message = error.wire_message if isinstance(error, InvalidRequest) else error.message
    field = error.details.get("field")
    return {"code": error.code, "message": str(message), **({"field": field} if field else {})}


def _read_enqueue(row: InboxRequest, now: datetime) -> EnqueueBody:
    wanted = read_job({"type": row.type, "args": row.args, "options": row.options}, now)
    if wanted.max_per_second is not None:
        raise InvalidRequest.at("options.rate_limit", "is for HTTP only", hint="Set it with `jobs limit --per-second`.")
    wanted.request.context = None  # not what happens to be active where it is decided
    wanted.request.full_row = False
    return wanted


def _is_unique(wanted: EnqueueBody, reader: Reader) -> bool:
    """Whether a key or a policy decides about the request, also one of its handler."""
    request = wanted.request
    if request.key is not None or request.unique is not INHERIT:
        return request.key is not None or request.unique is not None
    try:
        return reader.options_of(request).policy is not None
    except OJSError as error:
        raise wanted.locate(error) from None


def _read_removal(row: InboxRequest) -> dict[str, Any]:
    """Return the arguments of `remove`."""
    if not isinstance(row.options, dict):
        raise InvalidRequest.at("options", "must be an object", value=row.options)
    for name in row.options:
        if name not in _OF_A_REMOVAL:
            hint = did_you_mean(name, _OF_A_REMOVAL)
            raise InvalidRequest.at(f"options.{name}", "is not an option of a removal", hint=hint)
    if "key" not in row.options:
        raise InvalidRequest.at("options.key", "is missing", hint="Write the key of the job to remove.")
    return {"key": row.options["key"], "type": row.type, "key_scope": row.options.get("key_scope")}


def _lane(type: str | None, options: Any) -> Lane:
    """Return what requests have in common that may be about the same job: their key, or else their type."""
    key = options.get("key") if isinstance(options, dict) else None
    return ("type", type) if key is None else ("key", to_nfc(str(key)))


def _held(using: str, asked: Sequence[_Asked]) -> dict[Lane, int]:
    """Return the lanes of the requests that others have locked, or left for later, with the first id of each."""
    rows = waiting(using)
    if dialect_of(rows).single_writer or all(one.lane is None for one in asked):
        return {}
    ids = [one.row.pk for one in asked]
    earlier = rows.filter(pk__lt=ids[-1]).exclude(pk__in=ids).values_list("pk", "type", "options")
    held: dict[Lane, int] = {}
    for key, type, options in earlier.iterator():
        held.setdefault(_lane(type, options), key)
    return held


def _enqueue(jobs: QuerySet[Any], asked: Sequence[_Asked]) -> None:
    results = jobs.enqueue_many([one.wants.request for one in asked], mode="partial")  # type: ignore[attr-defined]
    for one, result in zip(asked, results, strict=True):
        if result.outcome is Outcome.INVALID:
            one.error = one.wants.locate(result.error)


def _remove(jobs: QuerySet[Any], asked: Sequence[_Asked]) -> None:
    for one in asked:
        try:
            remove(jobs, **one.wants, carried={"unique": None})
        except OJSError as error:
            one.error = relocated(error, _OF_A_REMOVAL)
