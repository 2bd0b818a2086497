"""The first statements of an enqueue, before locks: an INSERT in the hope that all jobs are new, or a look for one.

Each is exact, or decides nothing. For many jobs there is an INSERT only where the policies count unfinished jobs only,
and without keys.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import Any

from django.db import OperationalError, transaction
from django.db.models import QuerySet

from .. import lifecycle
from ..conf import settings
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..db.transactions import may_start_over
from ..hooks import is_traced
from ..ojs.states import INCOMPLETE, TERMINAL
from ..unique.conflict import FREE, Action, Verdict, judge
from . import announcements
from .entry import Answer, Entry, refresh_times
from .errors import id_taken, naming_what_is_missing
from .items import Items
from .new_job import NewJob

FIRST, NEXT = 200, 400
"""The sizes of the pieces. The first one is small, because the database has nothing to do while it is read."""


def at_once(dialect: Dialect, new_job: NewJob) -> Verdict[Any] | None:
    """Insert a job, or find and record the newest duplicate; return None when only locks can decide.

    The first statement inserts a new job, and the second one finds a duplicate; the other way round, if the last
    enqueue with these options met a duplicate. Both orders are exact. The usual duplicate is the only unfinished job of
    its fingerprint, and one index search finds it; the others are left to the locks, as is a job that is judged by
    another time.
    """
    if new_job.judged_at is not None:
        return None
    job, options, policy = new_job.values, new_job.options, new_job.policy
    if policy is None:
        if (new_job.key is None or dialect.may_insert_first) and dialect.insert(job):
            return FREE
        if new_job.key is None:
            raise id_taken(new_job.job)
        return None
    now = job["created_at"]
    start = policy.window_start(now)
    may_insert = dialect.decides_at_once(policy)
    looks_first = options.met_duplicate and not dialect.single_writer
    if may_insert and not looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return FREE
    existing, is_recorded = None, False
    if not policy.replaces:
        existing, is_recorded = announcements.find_and_record(dialect, new_job, policy, start)
    options.met_duplicate = existing is not None
    if existing is not None:
        verdict = judge([existing], policy, now, replace_active=False)
        if verdict.action is Action.ADMIT or (verdict.action is Action.IGNORE and not _may_go_on(dialect, existing)):
            return None
        if not is_recorded:
            announcements.record(dialect.connection.alias, [(new_job, verdict)])
        return verdict
    if may_insert and looks_first and dialect.insert_unless_duplicate(job, policy, start):
        return FREE
    return None


def _may_go_on(dialect: Dialect, existing: Any) -> bool:
    """Tell a workflow's job that a caller needs it, too; return whether it is not too late for that."""
    if not existing.workflow_only or existing.state in TERMINAL:
        return True
    existing.workflow_only = None
    jobs = dialect.model._base_manager.using(dialect.connection.alias)
    return bool(lifecycle.keep_for_a_caller(jobs.filter(pk=existing.pk)))


def decide_at_once(jobs: QuerySet[Any], entries: Sequence[Entry], *, refuse: bool) -> bool:
    """Decide on all entries, a lone one by `at_once`; return False, with nothing written, when only locks can decide.

    With ``refuse``, an error must not be recorded.
    """
    if refuse or len(entries) > 1 or not _is_ordinary(entries[0].new_job):
        return _insert_all_or_none(jobs, entries)
    refresh_times(entries, jobs.db)
    if (verdict := at_once(dialect_of(jobs), entries[0].new_job)) is None:
        return False
    entries[0].take(verdict)
    return True


def _is_ordinary(new_job: NewJob) -> bool:
    """Whether it has no id of its caller, which may be taken, and no workflow, which would wait for its duplicate."""
    return not new_job.has_id and new_job.values.get("workflow_id") is None


def _insert_all_or_none(jobs: QuerySet[Any], entries: Sequence[Entry]) -> bool:
    dialect = dialect_of(jobs)
    if not _insert_decides(dialect, entries):
        return False
    refresh_times(entries, jobs.db)
    with transaction.atomic(using=jobs.db):
        if dialect.insert_all(_in_order(entries), unless_live=True):
            return True
        transaction.set_rollback(True, jobs.db)
    return False


def insert_pieces(jobs: QuerySet[Any], items: Items) -> Iterator[list[Answer]]:
    """Insert items piece by piece, each by one statement that is a transaction of its own; read the next one meanwhile.

    Yield each piece that is stored. If a job of a piece is not new, yield the piece with all items after it: these must
    be decided, except the jobs that are marked as stored. An exception while a piece is read leaves the piece before it
    stored, without results and signals.

    All items are left to be decided in the caller's transaction, where this would lock fingerprints out of their order;
    or if signals share a transaction with their jobs, or with a tracer, which surrounds a whole batch.
    """
    if settings.joins_signals or is_traced() or not dialect_of(jobs).inserts_alone():
        yield items.read()
        return
    piece = items.read(FIRST)
    while piece:
        read_next = cache(lambda: items.read(NEXT))  # once: during the insert, or after it
        entries = [answer for answer in piece if isinstance(answer, Entry)]
        if not _insert_new(jobs, entries, read_next if items else None):
            yield [*piece, *read_next(), *items.read()]
            return
        yield piece
        piece = read_next()


def _insert_new(jobs: QuerySet[Any], entries: Sequence[Entry], overlap: Callable[[], Any] | None) -> bool:
    """Insert and mark the jobs that are new; return whether these are all."""
    if not entries:
        return True
    dialect, using = dialect_of(jobs), jobs.db
    if not _insert_decides(dialect, entries):
        return False
    refresh_times(entries, using)
    try:
        with naming_what_is_missing(jobs):
            ids = dialect.insert_new(_in_order(entries), overlap)
    except OperationalError as error:
        if not may_start_over(using, error):
            raise
        return False
    if ids is None:
        return False
    for entry in entries:
        if entry.new_job.values["id"] in ids:
            entry.new_job.mark_stored(using)
        else:
            entry.new_job.options.met_duplicate = True
    return len(ids) == len(entries)


def _insert_decides(dialect: Dialect, entries: Sequence[Entry]) -> bool:
    """Whether one INSERT of these jobs is exact, and will probably insert all of them.

    It is not exact for jobs with a key or an id of their caller, for two jobs of one fingerprint, and for policies that
    count finished jobs. It probably fails for options with which the last enqueue met a duplicate.
    """
    new_jobs = [entry.new_job for entry in entries]
    for options in {new_job.options for new_job in new_jobs}:
        policy = options.policy
        if options.met_duplicate:
            return False
        if policy is not None and not (dialect.decides_at_once(policy) and INCOMPLETE.issuperset(policy.states)):
            return False
    if any(new_job.key is not None or new_job.has_id for new_job in new_jobs):
        return False
    fingerprints = [new_job.values["fingerprint"] for new_job in new_jobs if new_job.policy is not None]
    return len(set(fingerprints)) == len(fingerprints)


def _in_order(entries: Sequence[Entry]) -> list[dict[str, Any]]:
    """Return the values of the jobs in the order in which all enqueues insert; see `submit`."""
    return sorted((entry.new_job.values for entry in entries), key=lambda job: job.get("fingerprint") or "")
