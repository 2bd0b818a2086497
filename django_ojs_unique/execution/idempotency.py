"""Help for handlers that are safe to run again: lock a record while it changes, and enqueue missing jobs of records.

Together with ``@job(skip_unless=...)`` and a unique policy these make a job idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from typing import Any, TypeVar

from django.apps import apps
from django.core.exceptions import FieldError
from django.db import models, router, transaction

from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..enqueue.bulk import enqueue_read
from ..enqueue.duplicates import satisfied
from ..enqueue.new_job import NewJob, read
from ..enqueue.request import Request
from ..exceptions import HandlerError, InvalidRequest
from ..handlers.context import JobContext
from ..handlers.declare import job
from ..handlers.handler import Handler
from ..handlers.registry import HEAL, Definition, misfit, registry
from ..ojs.durations import format_duration, milliseconds
from ..ojs.states import JobState
from ..unique.policy import UniquePolicy

logger = logging.getLogger("django_ojs_unique.idempotency")

CHUNK = 1_000
"""How many records a scan holds in memory and enqueues in one transaction."""
MOST_LOGGED = 10
"""For how many records with invalid arguments a scan logs the error."""

M = TypeVar("M", bound=models.Model)


@contextmanager
def locked(target: type[M] | models.Manager[M] | models.QuerySet[M] | M, **lookup: Any) -> Iterator[M]:
    """Lock one row during the block and yield it, read again; the end of the block commits and unlocks.

    ``target`` is a model, a manager or a queryset, with ``lookup`` as for `QuerySet.get`; or it is an instance, which
    is refreshed. A queryset may have its own ``select_for_update(nowait=True)``. SQLite has no row locks: there the
    block holds the write lock of the whole database. Inside another ``atomic()`` the lock lasts until that one ends.

    Raises the model's DoesNotExist when the row is gone, TypeError when neither a filter nor ``lookup`` names a row.
    """
    if isinstance(target, models.Model):
        rows = type(target)._base_manager.using(router.db_for_write(type(target), instance=target))
        lookup = {"pk": target.pk, **lookup}
    else:
        rows = target.all() if isinstance(target, (models.Manager, models.QuerySet)) else target._default_manager.all()
    if not lookup and not rows.query.where:
        name = rows.model.__name__
        raise TypeError(f"locked({name}) does not say which row. Write locked({name}, pk=...).")
    if not rows.query.select_for_update:
        rows = rows.select_for_update()
    with transaction.atomic(using=rows.db):
        dialect_of(rows).take_write_lock()
        if isinstance(target, models.Model):
            target.refresh_from_db(from_queryset=rows)
            yield target
        else:
            yield rows.get(**lookup)


@dataclass(frozen=True, slots=True, kw_only=True)
class Heal:
    """Which records need a job: a periodic scan enqueues one for each that has none (``@job(..., heal=Heal(...))``).

    ``pending``: a queryset of the records, or a callable that returns one.
    ``args``: the arguments of a record's job: a callable that takes the record, or ``{argument: field}``.
    ``every``: the time between two scans: ISO 8601, a timedelta or seconds; stored as ISO 8601.

    Raises InvalidRequest, which names the field and says how to fix it.
    """

    pending: models.QuerySet[Any] | Callable[[], models.QuerySet[Any]] = field(repr=False)  # a queryset's repr runs it
    args: Mapping[str, str] | Callable[[Any], Any]
    every: str | timedelta | float = "PT5M"

    def __post_init__(self) -> None:
        length = timedelta(milliseconds=milliseconds(self.every, "heal.every"))
        if not isinstance(self.every, str):
            object.__setattr__(self, "every", format_duration(length))
        _refuse_strange_args(self.args)
        if isinstance(self.pending, models.QuerySet):
            self.rows()
        elif not callable(self.pending) or isinstance(self.pending, type):
            raise InvalidRequest.at(
                "heal.pending",
                "must be a queryset or a callable that returns one",
                value=self.pending,
                hint="Write Order.objects.filter(...).",
            )
        _declare()

    def refuse_a_misfit(self, definition: Definition) -> None:
        """Raise HandlerError unless the unique policy counts args and waiting jobs, and the args fit the handler.

        Under another policy each scan would enqueue every job once more.
        """
        policy = definition.unique
        if policy is None or "args" not in policy.keys or JobState.AVAILABLE not in policy.states:
            raise HandlerError(
                f"{definition.place}: heal= needs a unique policy that counts args and waiting jobs, or each scan"
                " would double the jobs. Write unique=UniquePolicy(keys=['type', 'args'], on_conflict='ignore')."
            )
        if isinstance(self.args, Mapping) and (problem := misfit(definition, dict.fromkeys(self.args))):
            raise HandlerError(f"heal.{problem}.")

    def rows(self) -> models.QuerySet[Any]:
        """Return what a scan reads, ordered by primary key: records, or tuples of key and fields in ``args``."""
        pending: Any = self.pending if isinstance(self.pending, models.QuerySet) else self.pending()
        if not isinstance(pending, models.QuerySet):
            raise InvalidRequest.at(
                "heal.pending", "must return a queryset", value=pending, hint="Return Order.objects.filter(...)."
            )
        if pending.query.is_sliced or pending.query.combinator or pending._fields is not None:  # type: ignore[attr-defined]
            raise InvalidRequest.at(
                "heal.pending",
                "must be a queryset of records, which a scan can page through",
                hint="Leave out slices, union(), values() and values_list().",
            )
        rows = pending.order_by("pk")
        if not isinstance(self.args, Mapping):
            return rows
        try:
            return rows.values_list("pk", *self.args.values())
        except FieldError as error:
            raise InvalidRequest.at("heal.args", str(error).rstrip(".")) from None

    def args_of(self, row: Any) -> Any:
        """Return the args of the job for one of the `rows`."""
        if isinstance(self.args, Mapping):
            return dict(zip(self.args, row[1:], strict=True))
        return self.args(row)


@dataclass(slots=True)
class ScanResult:
    """The counts of a scan: records whose job was created, was refused as a duplicate, or had invalid arguments."""

    created: int = 0
    refused: int = 0
    invalid: int = 0

    @property
    def records(self) -> int:
        """All records it has seen."""
        return self.created + self.refused + self.invalid

    def __str__(self) -> str:
        return f"{self.created:,} created, {self.refused:,} refused, {self.invalid:,} invalid"


def scan(
    type_or_handler: str | Handler[Any, Any],
    *,
    using: str | None = None,
    progress: Callable[[float, str], None] | None = None,
) -> ScanResult:
    """Enqueue a job for every pending record that has none, as the handler's ``heal`` says.

    ``using`` is the database of the jobs; ``progress`` is called with a fraction and a note after each 1,000 records.
    Memory use does not depend on their number. Records with invalid arguments are counted, and the first 10 are logged;
    the scan goes on.

    Raises UnknownJobType, or HandlerError when the handler has no ``heal``.
    """
    result = ScanResult()
    for fraction, result in _scanning(type_or_handler, using):
        if progress is not None:
            progress(fraction, str(result))
    return result


def _heal(context: JobContext, type: str, using: str | None = None) -> dict[str, int]:
    """Scan as a job; stop early when the job is cancelled."""
    result = ScanResult()
    for fraction, result in _scanning(type, using):
        context.progress(fraction, str(result))
        if context.cancelled:
            break
    return asdict(result)


def _declare() -> None:
    """Register the job type of the scan; only projects that use `Heal` need it."""
    job(HEAL, unique=UniquePolicy(keys=["type", "args"], on_conflict="ignore"), takes_context=True)(_heal)


def _scanning(type_or_handler: str | Handler[Any, Any], using: str | None) -> Iterator[tuple[float, ScanResult]]:
    """Scan; yield the fraction done and the result so far after each chunk."""
    definition = type_or_handler.definition if isinstance(type_or_handler, Handler) else registry.get(type_or_handler)
    if definition.heal is None:
        raise HandlerError(f"{definition.place} declares no heal=, so nothing says which records wait for it.")
    definition.heal.refuse_a_misfit(definition)
    model: Any = apps.get_model("django_ojs_unique", "Job")
    jobs = model._default_manager.using(using or router.db_for_write(model))
    rows = definition.heal.rows()
    total = rows.count()
    result = ScanResult()
    for chunk in _chunks(rows):
        _enqueue_missing(definition, jobs, chunk, result)
        yield min(result.records / total, 1.0) if total else 1.0, result
    logger.info("Scanned %s: %s.", definition.type, result)


def _chunks(rows: models.QuerySet[Any]) -> Iterator[list[Any]]:
    """Yield pages by primary key: without a long transaction or a server-side cursor."""
    chunk = list(rows[:CHUNK])
    while chunk:
        yield chunk
        chunk = list(rows.filter(pk__gt=_pk(chunk[-1]))[:CHUNK])


def _enqueue_missing(definition: Definition, jobs: models.QuerySet[Any], chunk: list[Any], result: ScanResult) -> None:
    assert definition.heal is not None
    now = database_now(jobs.db)
    wanted: dict[str, NewJob] = {}
    valid = 0
    for row in chunk:
        try:
            incoming = read(Request(definition.type, definition.heal.args_of(row)), jobs.model, now)
        except Exception:
            result.invalid += 1
            if result.invalid <= MOST_LOGGED:
                logger.exception("Record %s gets no job %s: its arguments are invalid.", _pk(row), definition.type)
        else:
            valid += 1
            wanted.setdefault(incoming.values["fingerprint"], incoming)
    assert definition.unique is not None
    done = satisfied(jobs, wanted, definition.unique, now)
    missing = [incoming for fingerprint, incoming in wanted.items() if fingerprint not in done]
    answers = list(enqueue_read(jobs, missing))
    created = sum(answer.created for answer in answers)
    result.created += created
    result.refused += valid - created


def _pk(row: Any) -> Any:
    return row[0] if isinstance(row, tuple) else row.pk


def _refuse_strange_args(args: Any) -> None:
    if not callable(args) and not (
        isinstance(args, Mapping) and args and all(isinstance(name, str) for name in (*args, *args.values()))
    ):
        raise InvalidRequest.at(
            "heal.args",
            "must be a callable that takes a record, or an object of argument and field names",
            value=args,
            hint="Write {'order_id': 'pk'}.",
        )
