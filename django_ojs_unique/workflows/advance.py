"""Advance workflows: find those whose jobs have ended, and lock each; `progress` moves it on.

The end of a job is a fact in its own row, which any code may write: a worker, an operator, a raw UPDATE. No such code
knows of workflows. Advancing is another transaction: it reads those facts under the lock of the root workflow. So it
may be done twice, late, or by many processes at once, and nothing is lost if a process dies before or within it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any
from uuid import UUID

from django.db import InterfaceError, OperationalError, connections, transaction
from django.db.models import QuerySet
from django.db.models.functions import Coalesce

from ..db.dialects import dialect_of
from ..enqueue.unit_of_work import UnitOfWork
from .progress import Ended, Progress
from .tables import Tables, below

BATCH = 1000
"""How many ends one look finds at most."""


def advance_due(using: str) -> tuple[int, bool]:
    """Advance the workflows that wait for a job that has ended.

    Return how many were advanced, and whether some are left, because another process has locked them or there are many.
    """
    tables = Tables.on(using)
    ended = dict(tables.ended.values_list("pk", "replaced_by")[:BATCH])
    if not ended:
        return 0, False
    waiting = _by_root(tables.waiting.filter(job_id__in=ended))
    retried = _by_root(tables.retried.filter(job_id__in=ended))
    unawaited = set(ended).difference(*waiting.values(), *retried.values())
    if unawaited:
        _release(tables, unawaited)
    roots = waiting.keys() | retried.keys()

    def advance(root: UUID) -> bool:
        jobs = waiting[root] | retried[root]
        return _advance(tables, root, {job: ended[job] for job in jobs}, is_retried=bool(retried[root]))

    done = _each(roots, advance)
    return done, done < len(roots) or len(ended) == BATCH


def advance_all(using: str) -> None:
    """Advance all workflows that wait for a job that has ended, except those that another process has locked."""
    is_left = True
    while is_left:
        advanced, is_left = advance_due(using)
        is_left = is_left and advanced > 0


def fail_deleted(using: str, root: UUID | None = None) -> int:
    """Let members fail whose jobs were deleted, of ``root`` only, if given; return how many workflows that advanced."""
    tables = Tables.on(using)
    gone = tables.gone if root is None else tables.gone.filter(below(root, "workflow"))
    return _each(_by_root(gone[:BATCH]), lambda root: _advance(tables, root, {}, is_gone=True))


def lock_root(tables: Tables, root: Any, *, waits: bool) -> Any | None:
    """Lock a root workflow until the transaction ends; return None if it is gone, or locked and this does not wait."""
    rows = tables.workflows.filter(pk=root)
    skips = not waits and connections[tables.using].features.has_select_for_update_skip_locked
    locked = rows.select_for_update(skip_locked=skips).first()
    if locked is not None:
        # Under REPEATABLE READ, a snapshot that is older than the last advance raises an error at the next lock.
        rows.update(state=locked.state)
    return locked


def _each(roots: Iterable[UUID], advance: Callable[[UUID], bool]) -> int:
    """Advance workflows; return how many were. One that fails does not stop the others: its error is raised last."""
    done, failed = 0, None
    for root in sorted(roots):
        try:
            done += advance(root)
        except (InterfaceError, OperationalError):
            raise
        except Exception as error:
            failed = error
    if failed is not None:
        raise failed
    return done


def _advance(tables: Tables, root: UUID, ended: Ended, *, is_retried: bool = False, is_gone: bool = False) -> bool:
    """Advance one workflow, unless another process does; return whether it was advanced.

    ``is_retried``: failed jobs were retried; ``is_gone``: jobs were deleted.
    """
    for work in UnitOfWork(tables.using):
        with work, transaction.atomic(using=tables.using):
            dialect_of(tables.jobs).take_write_lock()
            locked = lock_root(tables, root, waits=False)
            if locked is not None:
                progress = Progress(tables, locked)
                if is_retried:
                    progress.reopen()
                progress.run(ended, progress.fail_deleted() if is_gone else ())
    return locked is not None


def _by_root(members: QuerySet[Any]) -> dict[UUID, set[UUID]]:
    """Return the jobs of members by root workflow."""
    found: dict[UUID, set[UUID]] = defaultdict(set)
    for root, job in members.values_list(Coalesce("workflow__root", "workflow"), "job_id"):
        found[root].add(job)
    return found


def _release(tables: Tables, ids: Iterable[Any]) -> None:
    """Forget ends that no workflow waits for: a retried job's, or one of a workflow that was deleted."""
    for work in UnitOfWork(tables.using):
        with work, transaction.atomic(using=tables.using):
            dialect_of(tables.jobs).take_write_lock()
            rows = tables.ended.filter(pk__in=ids).order_by("pk").select_for_update()
            if locked := list(rows.values_list("pk", flat=True)):
                tables.release(locked)
