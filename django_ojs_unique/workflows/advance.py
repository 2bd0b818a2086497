"""Advance workflows: count the jobs that have ended, and enqueue what is due then.

The end of a job is a fact in its own row, which any code may write: a worker, an operator, a raw UPDATE. No such code
knows of workflows. Advancing is another transaction: it reads those facts under the lock of the root workflow. So it
may be done twice, late, or by many processes at once, and nothing is lost if a process dies before or within it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import connections, transaction
from django.db.models import Exists, OuterRef, QuerySet
from django.db.models.functions import Coalesce

from ..db.dialects import dialect_of
from ..ojs.workflows import MemberOutcome
from ..unit_of_work import UnitOfWork
from .progress import Progress
from .tables import Tables

BATCH = 1000
"""How many ends one look finds at most."""


def advance_due(using: str) -> tuple[int, bool]:
    """Advance the workflows that wait for a job that has ended.

    Return how many were advanced, and whether some are left, because another process has locked them or there are many.
    """
    tables = Tables.on(using)
    ended = list(_ended(tables).values_list("pk", flat=True)[:BATCH])
    if not ended:
        return 0, False
    waiting = _by_root(tables.awaiting.filter(job_id__in=ended))
    done = sum(
        _advance(tables, root, revived=any(outcome == MemberOutcome.FAILED for _, outcome in members))
        for root, members in sorted(waiting.items())
    )
    unawaited = set(ended).difference(job for members in waiting.values() for job, _ in members)
    if unawaited:
        _release(tables, unawaited)
    return done, done < len(waiting) or len(ended) == BATCH


def fail_deleted(using: str) -> int:
    """Let members fail whose jobs were deleted; return how many workflows that has advanced."""
    tables = Tables.on(using)
    kept = tables.jobs.filter(pk=OuterRef("job_id"))
    gone = tables.waiting.exclude(Exists(kept))[:BATCH]
    return sum(_advance(tables, root, gone=True) for root in sorted(_by_root(gone)))


def lock_root(tables: Tables, root: Any, *, waits: bool) -> Any | None:
    """Lock a root workflow until the transaction ends; return None if it is gone, or locked and this does not wait."""
    rows = tables.workflows.filter(pk=root)
    skips = not waits and connections[tables.using].features.has_select_for_update_skip_locked
    locked = rows.select_for_update(skip_locked=skips).first()
    if locked is not None:
        # Under REPEATABLE READ, a snapshot that is older than the last advance raises an error at the next lock.
        rows.update(state=locked.state)
    return locked


def _advance(tables: Tables, root: UUID, *, revived: bool = False, gone: bool = False) -> bool:
    """Advance one workflow, unless another process does; return whether it was advanced.

    ``revived``: failed jobs were revived; ``gone``: jobs were deleted.
    """
    for work in UnitOfWork(tables.using):
        with work, transaction.atomic(using=tables.using):
            dialect_of(tables.jobs).take_write_lock()
            locked = lock_root(tables, root, waits=False)
            if locked is not None:
                progress = Progress(tables, locked)
                if revived:
                    progress.reopen()
                progress.run(progress.fail_deleted() if gone else ())
    return locked is not None


def _ended(tables: Tables) -> QuerySet[Any]:
    return tables.jobs.filter(awaited__isnull=False, finished_at__isnull=False)


def _by_root(members: QuerySet[Any]) -> dict[UUID, list[tuple[UUID, str]]]:
    """Return the jobs and the outcomes of members by root workflow."""
    found: dict[UUID, list[tuple[UUID, str]]] = defaultdict(list)
    for root, job, outcome in members.values_list(Coalesce("workflow__root", "workflow"), "job_id", "outcome"):
        found[root].append((job, outcome))
    return found


def _release(tables: Tables, ids: Iterable[Any]) -> None:
    """Forget ends that no workflow waits for: a revived job's, or one of a workflow that was deleted."""
    for work in UnitOfWork(tables.using):
        with work, transaction.atomic(using=tables.using):
            dialect_of(tables.jobs).take_write_lock()
            rows = _ended(tables).filter(pk__in=ids).order_by("pk").select_for_update()
            if locked := list(rows.values_list("pk", flat=True)):
                tables.release(locked)
