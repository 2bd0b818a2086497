"""Schedule: enqueue the periodic jobs that are due (HTTP binding, section 10). Any number of workers may do it.

One database owns what a handler declares: only its workers write that entry, and enqueue the jobs of it there.
A lock on the entry lets only one worker fire an occurrence. The job's id is made from the occurrence, so the database
refuses a second job for it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timedelta
from functools import partial
from hashlib import sha256
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db import DEFAULT_DB_ALIAS, OperationalError, router, transaction
from django.db.models import F, Q, QuerySet

from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..db.transactions import is_busy, starting_over
from ..enqueue.request import Request
from ..exceptions import DuplicateJob, InvalidRequest, InvalidTransition, JobIdTaken, OJSError
from ..handlers.registry import HEAL, Definition, registry
from ..lifecycle.events import collected
from ..models import CronJob, Job
from ..models.cron import LONGEST_NAME
from ..ojs.cron import Cron, OverlapPolicy
from ..ojs.states import TERMINAL, JobState
from ..signals import announce, cron_skipped, cron_triggered

logger = logging.getLogger("django_ojs_unique.worker")

_DECLARED = ("expression", "timezone", "overlap_policy", "type", "args", "options", "declared")
_TIMES = {"expression", "timezone"}


def sync(using: str, now: datetime) -> None:
    """Write the periodic jobs that handlers declare for this database into the table.

    Operators decide whether an entry is enabled.
    """
    entries = CronJob.objects.using(using)
    declared = _declared(using, now)
    stored = entries.in_bulk(list(declared))
    new = [declared[name] for name in sorted(declared.keys() - stored.keys())]
    if new:
        starting_over(using, lambda: entries.bulk_create(new, ignore_conflicts=True))
    for name, old in stored.items():
        starting_over(using, partial(_update, entries, old, declared[name]))


def tick(using: str, now: datetime) -> datetime | None:
    """Enqueue a job for each entry that is due; return when the next one is, or None.

    After a pause only the latest occurrence counts. Entries that only other programs declare are skipped. An entry
    whose lock is not free within the database's lock timeout stays due; the other entries go on.
    """
    mine = names_of_mine(using)
    entries = due(using, now, mine)
    for name in list(entries.values_list("name", flat=True)):
        try:
            starting_over(using, partial(_fire, entries.filter(name=name), now))
        except OperationalError as error:
            if not is_busy(error):
                raise
            logger.warning("%s waits for what somebody else has locked: %s", name, error, extra={"cron_name": name})
    upcoming = _mine(using, mine).filter(next_run_at__gt=now).order_by("next_run_at")
    moment: datetime | None = upcoming.values_list("next_run_at", flat=True).first()
    return moment


def due(using: str, now: Any, mine: Sequence[str]) -> QuerySet[CronJob]:
    """Select the entries for which `tick` enqueues a job; ``mine``: see `names_of_mine`."""
    return _mine(using, mine).filter(next_run_at__lte=now).order_by("next_run_at", "name")


def owner_of(cron: Cron | None = None) -> str:
    """Return the database whose workers enqueue a handler's periodic job, or its scan without ``cron``."""
    chosen: str | None = None if cron is None else cron.using
    return chosen or router.db_for_write(Job)


def names_of_mine(using: str) -> tuple[str, ...]:
    """Return the names of the entries that the handlers of this process declare for a database."""
    return tuple(name for each in registry.definitions() for name in _names_of(each, using))


def _mine(using: str, names: Sequence[str]) -> QuerySet[CronJob]:
    """Select the enabled entries, without those that only other programs declare, and those of other databases."""
    mine = Q(declared=False) | Q(name__in=names)
    entries: QuerySet[CronJob] = CronJob.objects.using(using).filter(mine, enabled=True)
    return entries


def is_at_rest(using: str, now: datetime) -> bool:
    """Tell whether `sync` and `tick` have nothing to do: one query, and no lock."""
    declared = _declared(using, now)
    is_due = Q(enabled=True, next_run_at__lte=now)
    looked_at = CronJob.objects.using(using).filter(Q(is_due, declared=False) | Q(name__in=list(declared)))
    stored = {entry.name: entry for entry in looked_at}
    return stored.keys() == declared.keys() and not any(
        (old.enabled and old.next_run_at is not None and old.next_run_at <= now) or _changes(old, declared[name])
        for name, old in stored.items()
    )


def run_now(name: str, now: datetime, using: str) -> tuple[str, UUID] | None:
    """Enqueue a job of an entry now, enabled or not, by its overlap and unique policies; its next occurrence stays.

    Return the outcome, and the id of the job or of the one that was in the way; None if there is no such entry. Raises
    OJSError for what cannot be enqueued, and OperationalError if the entry stays locked.
    """
    return starting_over(using, partial(_run_now, CronJob.objects.using(using).filter(pk=name), now))


def past_job_ids(entry: CronJob, now: datetime, most: int) -> list[UUID]:
    """Return the ids that the jobs of the latest occurrences have, the newest first, whether or not they were enqueued.

    Occurrences are counted by the times that the entry has now, and from its creation on; none if these are invalid.
    """
    try:
        cron = entry.cron
    except InvalidRequest:
        return []
    return [job_id(entry.name, occurrence) for occurrence in cron.last(most, entry.created_at, now)]


def job_id(name: str, occurrence: datetime) -> UUID:
    """Return the id of an entry's job: a UUIDv7 of the occurrence's time, with a hash in place of the random bits."""
    milliseconds = int(occurrence.timestamp() * 1000)
    number = milliseconds << 80 | int.from_bytes(
        sha256(f"{name} {occurrence.isoformat()}".encode()).digest()[:10], "big"
    )
    number = number & ~(0xF << 76) | 0x7 << 76  # the version
    number = number & ~(0x3 << 62) | 0x2 << 62  # the variant
    return UUID(int=number)


def _declared(using: str, now: datetime) -> dict[str, CronJob]:
    """Return the entries that the handlers of this process declare for a database, by their names."""
    declared: dict[str, CronJob] = {}
    for definition in registry.definitions():
        try:
            declared |= {entry.name: entry for entry in _entries_of(definition, using, now)}
        except InvalidRequest as error:  # it never fires in the project's time zone
            logger.error("Cannot schedule %s: %s", definition.type, error, extra={"cron_name": definition.type})
    return declared


def _entries_of(definition: Definition, using: str, now: datetime) -> Iterator[CronJob]:
    names, cron = list(_names_of(definition, using)), definition.cron
    if cron is not None and definition.type in names:
        cron = replace(cron, timezone=cron.timezone or settings.TIME_ZONE or "UTC")
        yield CronJob.of(cron, now, name=definition.type, declared=True, type=definition.type)
    if definition.heal is not None and (name := _name_of_scan(definition)) in names:
        elsewhere = {} if using == DEFAULT_DB_ALIAS else {"using": using}
        cron = Cron(f"@every {definition.heal.every}", "UTC", args={"type": definition.type, **elsewhere})
        options = {} if definition.queue is None else {"queue": definition.queue}
        yield CronJob.of(cron, now, name=name, declared=True, type=HEAL, options=options)


def _names_of(definition: Definition, using: str) -> Iterator[str]:
    if definition.cron is not None and owner_of(definition.cron) == using:
        yield definition.type
    if definition.heal is not None and owner_of() == using:
        yield _name_of_scan(definition)


def _name_of_scan(definition: Definition) -> str:
    return f"heal.{definition.type}"[:LONGEST_NAME]


def _update(entries: QuerySet[CronJob], old: CronJob, entry: CronJob) -> None:
    if changes := _changes(old, entry):
        # If another worker has changed the times meanwhile, it has written the other fields as well.
        entries.filter(pk=old.pk, expression=old.expression, timezone=old.timezone).update(**changes)


def _changes(old: CronJob, entry: CronJob) -> dict[str, Any]:
    changes = {name: getattr(entry, name) for name in _DECLARED if getattr(old, name) != getattr(entry, name)}
    if old.next_run_at is None or _TIMES & changes.keys():
        changes["next_run_at"] = entry.next_run_at
    return changes


def _fire(due: QuerySet[CronJob], now: datetime) -> None:
    """Enqueue the job of one entry if it is still due, and store the outcome in the entry."""
    with transaction.atomic(using=due.db), collected(due.db):
        entry = unlocked(due).first()
        if entry is not None:
            CronJob.objects.using(due.db).filter(pk=entry.pk).update(**_occur(entry, now, due.db))


def _run_now(entries: QuerySet[CronJob], now: datetime) -> tuple[str, UUID] | None:
    with transaction.atomic(using=entries.db), collected(entries.db):
        dialect_of(entries).take_write_lock()
        entry = entries.select_for_update().first()
        if entry is None:
            return None
        outcome, id = _enqueue(entry, entry.cron, now, entries.db)
        entries.update(**_written(entry, outcome, id, now, entries.db))
        return outcome, id


def _occur(entry: CronJob, now: datetime, using: str) -> dict[str, Any]:
    """Enqueue the job of the latest due occurrence; return the changes to write to the entry."""
    assert entry.next_run_at is not None
    try:
        cron = entry.cron
    except InvalidRequest as error:
        _log_failure(entry, error)
        return {"next_run_at": None, **_outcome(entry, "failed", now)}
    changes: dict[str, Any] = {"next_run_at": cron.next_after(now)}
    occurrence = cron.latest_until(entry.next_run_at - timedelta.resolution, now)
    if occurrence is None:  # the row was changed manually
        return changes
    try:
        outcome, id = _enqueue(entry, cron, occurrence, using)
    except OJSError as error:
        _log_failure(entry, error)
        outcome, id = "failed", None
    return changes | _written(entry, outcome, id, now, using)


_ENQUEUED = ("created", "replaced")


def _written(entry: CronJob, outcome: str, id: UUID | None, now: datetime, using: str) -> dict[str, Any]:
    """Announce an outcome; return the changes to write to the entry."""
    _announce(entry, outcome, id, using)
    changes = _outcome(entry, outcome, now)
    if outcome in _ENQUEUED:
        changes |= {"last_run_at": now, "last_job_id": id, "run_count": F("run_count") + 1}
    return changes


def _outcome(entry: CronJob, outcome: str, now: datetime) -> dict[str, Any]:
    count = entry.outcome_count if outcome == entry.last_outcome else 0
    return {
        "last_outcome": outcome,
        "last_outcome_at": now,
        "outcome_count": 0 if outcome in _ENQUEUED else count + 1,
    }


def _enqueue(entry: CronJob, cron: Cron, occurrence: datetime, using: str) -> tuple[str, UUID]:
    """Enqueue the job of an occurrence by the overlap policy; return the outcome and the id of the job.

    If the job has a key, the enqueue may have rewritten the job of another occurrence; then the id is that job's. If no
    job was enqueued, it is that of the job that was in the way. Raises OJSError for what cannot be enqueued.
    """
    jobs, id = Job.objects.using(using), job_id(entry.name, occurrence)
    if entry.last_job_id == id:
        return "already", id
    previous = None
    if entry.last_job_id is not None:
        previous = jobs.filter(pk=entry.last_job_id).exclude(state__in=sorted(TERMINAL)).first()
    if previous is not None and (
        cron.overlap_policy == OverlapPolicy.SKIP
        or (cron.overlap_policy == OverlapPolicy.ENQUEUE and previous.state != JobState.ACTIVE)
    ):
        logger.info("Skipped %s: job %s has not finished.", entry, previous.pk, extra={"cron_name": entry.name})
        return "skipped", previous.pk
    try:
        with transaction.atomic(using=using):
            if previous is not None and cron.overlap_policy == OverlapPolicy.CANCEL_PREVIOUS:
                with suppress(InvalidTransition):  # it has finished meanwhile
                    previous.cancel()
            try:
                request = Request(**entry.job_at(occurrence), id=id, elsewhere=True, context=None, judged_at=occurrence)
                result = jobs.enqueue_request(request)
            except DuplicateJob as duplicate:
                if previous is not None and previous.state == JobState.CANCELLED:
                    transaction.set_rollback(True, using=using)  # undo the cancellation: it may be what refused the job
                met = duplicate.existing_job_id
                return ("already" if met == id else "rejected"), met
            outcome = "already" if result.deduplicated and result.job.pk == id else str(result.outcome)
            return outcome, result.job.pk
    except JobIdTaken:
        return "already", id


def _announce(entry: CronJob, outcome: str, id: UUID | None, using: str) -> None:
    if outcome in _ENQUEUED:
        announce(cron_triggered, CronJob, entry=entry, job_id=id, using=using)
    elif outcome != "already":
        announce(cron_skipped, CronJob, entry=entry, reason=outcome, using=using)


def _log_failure(entry: CronJob, error: OJSError) -> None:
    logger.error("Cannot enqueue the job of %s: %s", entry, error, extra={"cron_name": entry.name})
