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
from itertools import groupby, takewhile
from typing import Any, TypeAlias

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.dialect import Dialect
from ..db.dialects import dialect_of, dialect_on
from ..db.fast.cursors import Plan, execute
from ..db.fast.rows import loaded
from ..db.inserts import ROWS_AT_ONCE
from ..db.locking import skipping_locked
from ..db.transactions import is_busy, is_transient, starting_over
from ..enqueue.bulk import enqueue_read
from ..enqueue.new_job import Reader
from ..enqueue.remove import remove
from ..enqueue.request import own_members
from ..enqueue.results import Outcome
from ..exceptions import Contended, InvalidRequest, OJSError, did_you_mean
from ..models import InboxRequest
from ..ojs.canonical import to_nfc
from ..wire.enqueue import read_job, relocated

logger = logging.getLogger("django_ojs_unique.worker")

LARGE = 8 * 2**10
"""A request with more characters of args, or of options, is read and decided alone: a thousand of them may not fit."""
_PAYLOADS = ("args", "options")
_HIGHEST = 2**63 - 1
"""No id is higher, and none is lower than the negative one."""
_TABLE = InboxRequest._meta.db_table
_WAITING = f"FROM {_TABLE} WHERE refused_at IS NULL"
_OF_A_REMOVAL = {"key": "options.key", "key_scope": "options.key_scope"}
"""The options of a removal, and how an error names them."""

Columns: TypeAlias = tuple[int, str, str | None, Any, Any]
"""The id, the action, the type, and the `_PAYLOADS` as text."""
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
    """Decide the first requests that nobody has locked, of at most ``most`` ids.

    If they fail together, each is decided alone: one that fails alone is refused, or left while it waits for others.
    Raises what the database raises in an outage.
    """
    first = _first(jobs.db, -_HIGHEST)
    while first is not None:
        # A range of ids, and not a LIMIT: without statistics, PostgreSQL would sort all that wait.
        last = min(first + most - 1, _HIGHEST)
        if (decided := _decide_together(jobs, (first, last))).more or last == _HIGHEST:
            return decided
        first = _first(jobs.db, last + 1)
    return Decided()


def _first(using: str, lowest: int) -> int | None:
    dialect = dialect_on(InboxRequest, connections[using])
    statement = f"SELECT id {_WAITING} AND id >= %s ORDER BY refused_at, id LIMIT 1"
    rows = execute(dialect, statement, [lowest], plan=Plan.FRESH)[1]
    return rows[0][0] if rows else None


def _decide_together(jobs: QuerySet[Any], ids: tuple[int, int]) -> Decided:
    together: list[int] = []
    try:
        return starting_over(jobs.db, partial(_decide, jobs, ids, together))
    except Exception as error:
        if not together or _is_outage(error):
            raise
        logger.info("The requests %d to %d fail together; each is decided alone.", together[0], together[-1])
    return Decided(sum(_decide_alone(jobs, key) for key in together), more=True)


def _decide_alone(jobs: QuerySet[Any], key: int) -> int:
    try:
        return starting_over(jobs.db, partial(_decide, jobs, (key, key), [])).count
    except Exception as error:
        if _is_outage(error):
            raise
        if is_busy(error) or isinstance(error, Contended):
            logger.info("The request %d waits for others; left for later.", key)
            return 0
        logger.exception("The request %d in the inbox is refused.", key)
        # Not the error's text, which may quote the args.
        problem = f"Deciding it raised {type(error).__name__}. The log of who decided it says more."
        row = InboxRequest.objects.using(jobs.db).filter(pk=key)
        return row.refuse({"code": "internal_error", "message": problem}, database_now(jobs.db))


def _is_outage(error: Exception) -> bool:
    """Whether no single request can be to blame, and the transaction cannot go on."""
    is_down = isinstance(error, (OperationalError, InterfaceError)) and not is_busy(error)
    return is_down or is_transient(error)


def _decide(jobs: QuerySet[Any], ids: tuple[int, int], locked: list[int]) -> Decided:
    """Decide some ids from the first to the last, in one transaction; note in ``locked`` which ones it is about."""
    requests = InboxRequest.objects.using(jobs.db)
    with transaction.atomic(using=jobs.db):
        dialect = dialect_of(requests)
        dialect.read_anew()
        found = _lock(dialect, ids)
        locked[:] = [row[0] for row in found]
        if not found:
            return Decided()
        now, reader = database_now(jobs.db), Reader(jobs.model)
        asked = [_Asked(*row[:3], loaded(row[3]), loaded(row[4]), now, reader) for row in found]
        held = _held(jobs.db, asked)
        mine = [one for one in asked if one.lane is None or one.key < held.get(one.lane, sys.maxsize)]
        valid = (one for one in mine if one.error is None)
        for action, some in groupby(valid, key=lambda one: one.action):
            (_remove if action == InboxRequest.Action.REMOVE else _enqueue)(jobs, [*some])
        _delete(dialect, [one.key for one in mine if one.error is None])
        for one in mine:
            if one.error is not None:
                one.refuse(requests, now)
    return Decided(len(mine), more=True)


def _lock(dialect: Dialect, ids: tuple[int, int]) -> list[Columns]:
    """Lock and read requests, in order: all up to the first large one, or that one alone."""
    text = dialect.connection.ops.cast_char_field_without_max_length
    small = [f"CASE WHEN LENGTH(CAST({name} AS {text})) <= {LARGE} THEN {name} END" for name in _PAYLOADS]
    found = _read(dialect, small, ids)
    fitting = [*takewhile(lambda row: None not in row[-2:], found)]
    return fitting if fitting or not found else _read(dialect, _PAYLOADS, [found[0][0]] * 2)


def _read(dialect: Dialect, payloads: Sequence[str], ids: Sequence[int]) -> list[Columns]:
    statement = (
        f"SELECT id, action, type, {', '.join(payloads)} {_WAITING} AND id BETWEEN %s AND %s ORDER BY id"
        f" {skipping_locked(dialect)}"
    )
    return execute(dialect, statement, ids, plan=Plan.FRESH)[1]


def _delete(dialect: Dialect, keys: Sequence[int]) -> None:
    if dialect.locks_past_ranges or _has_gaps(keys):
        InboxRequest.objects.using(dialect.connection.alias).filter(pk__in=keys).delete()
    else:
        execute(dialect, f"DELETE FROM {_TABLE} WHERE id BETWEEN %s AND %s", (keys[0], keys[-1]), plan=Plan.FRESH)


def _has_gaps(keys: Sequence[int]) -> bool:
    """Whether not all ids from the first to the last are there: a thousand parameters take longer than deciding."""
    return not keys or keys[-1] - keys[0] >= len(keys)


class _Asked:
    """A request as it was read: what it ``wants``, or the ``error``. Those of one ``lane`` keep their order."""

    __slots__ = ("action", "error", "key", "lane", "wants")

    def __init__(
        self, key: int, action: str, type: str | None, args: Any, options: Any, now: datetime, reader: Reader
    ) -> None:
        self.key, self.action = key, action
        self.wants: Any = None
        self.error: OJSError | None = None
        self.lane: Lane | None = None
        try:
            if action == InboxRequest.Action.ENQUEUE:
                self.wants = _Enqueue(type, args, options, now, reader)
                if not self.wants.is_unique:
                    return
            elif action == InboxRequest.Action.REMOVE:
                self.wants = _read_removal(type, options)
            else:
                hint = did_you_mean(action, InboxRequest.Action)
                raise InvalidRequest.at("action", "is not a known choice", value=action, hint=hint)
            self.lane = _lane(type, options)
        except OJSError as error:
            self.error = error

    def refuse(self, rows: Any, now: datetime) -> None:
        assert self.error is not None
        logger.warning("The request %d in the inbox is refused: %s", self.key, self.error.message)
        rows.filter(pk=self.key).refuse(error_of(self.error), now)


class _Enqueue:
    """A valid request to enqueue: what the client wrote, and the new job."""

    __slots__ = ("new_job", "written")

    def __init__(self, type: str | None, args: Any, options: Any, now: datetime, reader: Reader) -> None:
        self.written = read_job({"type": type, "args": args, "options": options}, now)
        if self.written.max_per_second is not None:
            hint = "Set it with `jobs limit --per-second`."
            raise InvalidRequest.at("options.rate_limit", "is for HTTP only", hint=hint)
        request = self.written.request
        request.context = None  # not what happens to be active where it is decided
        request.full_row = False
        try:
            self.new_job = reader.build(own_members(request), now)
        except OJSError as error:
            raise self.written.locate(error) from None

    @property
    def is_unique(self) -> bool:
        """Whether a key or a policy decides about it, also one of its handler."""
        return self.new_job.key is not None or self.new_job.policy is not None


def error_of(error: OJSError) -> dict[str, Any]:
    """Return what is stored about the error of a request."""
    message = error.wire_message if isinstance(error, InvalidRequest) else error.message
    field = error.details.get("field")
    return {"code": error.code, "message": str(message), **({"field": field} if field else {})}


def _read_removal(type: str | None, options: Any) -> dict[str, Any]:
    """Return the arguments of `remove`."""
    if not isinstance(options, dict):
        raise InvalidRequest.at("options", "must be an object", value=options)
    for name in options:
        if name not in _OF_A_REMOVAL:
            hint = did_you_mean(name, _OF_A_REMOVAL)
            raise InvalidRequest.at(f"options.{name}", "is not an option of a removal", hint=hint)
    if "key" not in options:
        raise InvalidRequest.at("options.key", "is missing", hint="Write the key of the job to remove.")
    return {"key": options["key"], "type": type, "key_scope": options.get("key_scope")}


def _lane(type: str | None, options: Any) -> Lane:
    """Return what requests have in common that may be about the same job: their key, or else their type."""
    key = options.get("key") if isinstance(options, dict) else None
    return ("type", type) if key is None else ("key", to_nfc(str(key)))


def _held(using: str, asked: Sequence[_Asked]) -> dict[Lane, int]:
    """Return the lanes of the requests that others have locked, or left for later, with the first id of each."""
    if all(one.lane is None for one in asked) or dialect_of(rows := waiting(using)).single_writer:
        return {}
    keys = [one.key for one in asked]
    earlier = rows.filter(pk__lt=keys[-1]).exclude(pk__in=keys) if _has_gaps(keys) else rows.filter(pk__lt=keys[0])
    held: dict[Lane, int] = {}
    for key, type, options in earlier.values_list("pk", "type", "options").iterator():
        held.setdefault(_lane(type, options), key)
    return held


def _enqueue(jobs: QuerySet[Any], asked: Sequence[_Asked]) -> None:
    results = enqueue_read(jobs, (one.wants.new_job for one in asked))
    for one, result in zip(asked, results, strict=True):
        if result.outcome is Outcome.INVALID:
            one.error = one.wants.written.locate(result.error)


def _remove(jobs: QuerySet[Any], asked: Sequence[_Asked]) -> None:
    for one in asked:
        try:
            remove(jobs, **one.wants, carried={"unique": None})
        except OJSError as error:
            one.error = relocated(error, _OF_A_REMOVAL)
