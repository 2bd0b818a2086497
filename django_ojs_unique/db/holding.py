"""Which rows hold their unique key for others, and who does when they go.

A live job may not hold its key, because a newer one was admitted past it, or because it was retried by force. Then
another row holds the key in every state, so that the constraint stops each enqueue that cannot see the live job.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any, Final, TypeVar

from django.db import transaction
from django.db.models import QuerySet

from ..ojs.states import ALL
from .constraints import holding_unique_key, released
from .dialects import dialect_of
from .inserts import in_groups

T = TypeVar("T")


def delete(jobs: QuerySet[Any], delete: Callable[[], T]) -> T:
    """Let ``delete`` delete the jobs; what one of them holds for others stays held. Return what it returns."""
    rows = everything(jobs).filter(pk__in=jobs.order_by().values("pk"))
    # Only these can hold a key for others when they are deleted. There are few among many finished jobs.
    holding = rows.filter(holding_unique_key() | released(), fingerprint__isnull=False)
    return free(holding, lambda rows: delete())


def free(jobs: QuerySet[Any], change: Callable[[QuerySet[Any]], T]) -> T:
    """Lock jobs, change them so that they hold no key, and return what ``change`` returns."""
    with transaction.atomic(using=jobs.db):
        dialect = dialect_of(jobs)
        dialect.take_write_lock()
        # If its signals have receivers, Django reads the rows before it deletes them: hence the lock, too.
        rows = dialect.lock(jobs.only(*HOLDS), by_key=False)
        changed = change(jobs.filter(pk__in=[row.pk for row in rows]))
        hold_for_others(jobs, held_for_others(rows))
        return changed


HOLDS: Final = ("state", "key", "fingerprint", "unique_states")
"""The fields that `held_for_others` needs."""


def held_for_others(rows: Iterable[Any]) -> set[str]:
    """Return the fingerprints that rows hold in every state, perhaps because of live jobs that do not hold them."""
    return {row.fingerprint for row in rows if row.holds_unique_key and row.unique_states == ALL and row.key is None}


def hold_for_others(jobs: QuerySet[Any], fingerprints: Collection[str]) -> None:
    """Keep each fingerprint held, in every state, while a live job of it does not hold it.

    The row that holds it goes on, or else one of these live jobs begins. So the constraint stops every enqueue that
    cannot see them. The row is written in any case, so that whoever decides about it at this time waits or starts over.
    Raises IntegrityError if another transaction took the key, unless the caller has taken it from a row.
    """
    all_jobs = everything(jobs)
    dialect, rows = dialect_of(all_jobs), all_jobs.only("fingerprint")
    for some in in_groups(sorted(fingerprints)):
        left = dialect.lock(rows.filter(released(), key=None, fingerprint__in=some), by_key=False)
        holders = {row.fingerprint: row.pk for row in left}
        if holders:
            for row in dialect.lock(rows.filter(holding_unique_key(), fingerprint__in=sorted(holders)), by_key=False):
                holders[row.fingerprint] = row.pk
            QuerySet.update(all_jobs.filter(pk__in=list(holders.values())), unique_states=ALL)


def everything(jobs: QuerySet[Any]) -> Any:
    """Return all jobs of the database of ``jobs``: without its filters, and without those of a proxy's manager."""
    model: Any = jobs.model._meta.concrete_model
    return model._base_manager.using(jobs.db)
