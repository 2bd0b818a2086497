"""Remove the job that holds a key (Graphile Worker, "Removing jobs")."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import connections, transaction
from django.db.models import Q, QuerySet

from .. import lifecycle
from ..db.constraints import holding_unique_key
from ..db.dialects import dialect_of
from ..exceptions import InvalidRequest
from ..ojs.names import job_type
from ..ojs.states import JobState
from ..unique.fingerprint import CONTEXT, canonical_key, fingerprint
from ..unique.keys import JobKey, KeyScope
from ..unique.row import JobRow
from .unit_of_work import LostRace, UnitOfWork


def remove(
    jobs: QuerySet[Any], key: str, type: str | None, key_scope: KeyScope | str | None, carried: Mapping[str, Any] | None
) -> JobRow | None:
    """Remove the job that holds a key, and return it; see `JobQuerySet.remove`.

    ``carried``: what a job carries that is enqueued where the caller is.
    """
    named = JobKey(key, scope=KeyScope.TYPE if key_scope is None else key_scope)
    which = Q() if type is None else Q(type=job_type(type))
    if key_scope is not None:
        is_global = Q(fingerprint=fingerprint(canonical_key(named.text, type=None, meta={CONTEXT: carried})))
        which &= is_global if named.scope is KeyScope.GLOBAL else ~is_global
    if carried and "unique" in carried:
        scopes = [
            None,
            *({type} if type else jobs.filter(key=named.text).order_by().values_list("type", flat=True).distinct()),
        ]
        which &= Q(
            fingerprint__in=[
                fingerprint(canonical_key(named.text, type=one, meta={CONTEXT: carried})) for one in scopes
            ]
        )
    # The snapshot of a caller's transaction may show an earlier holder of the key: then use only a query with locks.
    by_key = not connections[jobs.db].in_atomic_block
    for work in UnitOfWork(jobs.db):
        with work:
            removed = _remove(jobs, named.text, which, by_key=by_key and not work.lost_races)
    return removed


def _remove(jobs: QuerySet[Any], key: str, which: Q, *, by_key: bool) -> JobRow | None:
    """Remove, or raise LostRace when the holder of the key changed or ended between the query and the lock."""
    dialect = dialect_of(jobs)
    holders = jobs.filter(holding_unique_key(), which, key=key)
    with transaction.atomic(using=jobs.db):
        dialect.take_write_lock()
        # MariaDB compares text without case, accents and trailing spaces.
        seen = [text for text in holders.values_list("key", flat=True) if text == key]
        found = [job for job in dialect.lock(holders, by_key=by_key) if job.holds_unique_key and job.key == key]
        if len(found) < len(seen) and (by_key or dialect.lets_rivals_in):
            raise LostRace
        if len(found) > 1:
            types = sorted(job.type for job in found)
            raise InvalidRequest.at(
                "key",
                f"is held by {len(types)} jobs, of the types {', '.join(types)}",
                value=key,
                hint="Say which with type= or key_scope=.",
            )
        for job in found:
            if job.state == JobState.ACTIVE:
                lifecycle.detach(jobs, [job])
            else:
                QuerySet.delete(jobs.filter(pk=job.pk))  # a key is never held for another job
        return found[0] if found else None
