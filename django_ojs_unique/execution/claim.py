"""Claim the next jobs of some queues under one lease token, so that no two workers run the same job."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from datetime import datetime, timedelta
from functools import cache, cached_property
from operator import attrgetter
from time import monotonic
from typing import Any
from uuid import UUID, uuid4

from django.db.models import QuerySet

from ..db.dialect import Front
from ..db.dialects import dialect_of
from ..db.fast.rows import UnreadRows
from ..limits.candidates import rank
from ..ojs.states import JobState
from .claim_limited import ClaimOptions, Share, claim_limited
from .leases import Lease
from .queue_rules import Rules, rules_of

NEEDED = (
    "id", "type", "queue", "args", "meta", "tags", "extra", "priority", "attempt", "max_attempts", "timeout_ms",
    "visibility_timeout_ms", "created_at", "enqueued_at", "scheduled_at", "errors", "workflow_id",
)  # fmt: skip
"""The fields of a job that an attempt needs; the other fields are read on access."""


_priority = attrgetter("priority")
_age = attrgetter("enqueued_at", "id")


class Claimed(Sequence[Any]):
    """The jobs of one claim, in the order in which they should start. Like a queryset, it builds them on first use."""

    def __init__(self, found: UnreadRows | list[Any], changes: dict[str, Any], error: Exception | None = None) -> None:
        self._found = found
        """Unread rows are in no order."""
        self._changes = changes
        """What the claim has changed in each job."""
        self.error = error
        """Why the claim ended early, after it had claimed these jobs."""

    def __len__(self) -> int:
        return len(self._found)

    def __getitem__(self, index: Any) -> Any:
        return self._jobs[index]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._jobs)

    @property
    def is_limited(self) -> bool:
        """Whether the claim regarded limits: then its jobs are those of all shares."""
        return isinstance(self._found, list)

    @property
    def are_as_stored(self) -> bool:
        """Whether the statement that claimed the jobs has returned their rows, so that each field has its new value."""
        return not self.is_limited

    @cached_property
    def _jobs(self) -> list[Any]:
        jobs = list(self._found)
        if not self.is_limited:
            # Two sorts by plain attributes are faster than one by a function; the second keeps the order of equals.
            try:
                jobs.sort(key=_age)
                jobs.sort(key=_priority, reverse=True)
            except TypeError:  # somebody has removed a time manually
                jobs.sort(key=rank)
        for job in jobs:
            job.__dict__.update(self._changes)
        return jobs


def claim(
    jobs: QuerySet[Any],
    *,
    queues: Collection[str],
    types: Sequence[str] | None,
    limit: int,
    worker_id: str | None,
    lease: Lease | timedelta,
    now: datetime,
    token: UUID | None = None,
    with_rules: Collection[str] | None = None,
    passed_over: Callable[[], None] = lambda: None,
    overlap: Callable[[], Any] | None = None,
    only: UUID | None = None,
    fronts: Sequence[Front] = (),
    also: Sequence[Share] = (),
    leaves_slots: bool = True,
    fields: tuple[str, ...] = NEEDED,
) -> Claimed:
    """Claim up to ``limit`` available jobs, the highest priority first, then first in, first out across the queues.

    ``types`` None means any type. The jobs share one lease ``token``, by default a new one. A job's own
    ``visibility_timeout_ms`` is the length of its lease; the others get ``lease``. Jobs that another worker is claiming
    are skipped, not waited for, where the database can (SKIP LOCKED). Paused queues are skipped. A job with limits is
    claimed if each of its partitions has a slot; in a fair queue, the partitions take turns in the claims of a process.
    Only one worker at a time claims from a queue with a limit, or jobs of a partition: when another one has locked its
    row, that is skipped. ``passed_over`` is called then, and when too many partitions were to be asked for slots:
    claim again soon. ``with_rules`` are the queues with a limit or with blocked jobs, as
    far as the caller knows; other such queues are seen only if there is nothing else to claim. None means to query for
    them, as databases do that cannot claim at once.
    ``overlap`` is called before or while the database claims, unless there is nothing to claim from; it must not use
    the connection. ``only`` is the id of the one job to claim, if the rules allow it. ``fronts`` are where to begin in
    queues without rules, if not at their first jobs. ``also`` are jobs of other types, claimed in the same order if
    `Claimed.is_limited`. ``leaves_slots``: whether the first job of a queue that is not among these is left a slot for
    a while. ``fields`` are read, the others on access.
    """
    began = monotonic()
    nothing = Claimed([], {})
    if not queues:
        return nothing
    lease = lease if isinstance(lease, Lease) else Lease(lease)
    token = token or uuid4()
    dialect = dialect_of(jobs)
    if dialect.claims_at_once and with_rules is not None and set(with_rules).isdisjoint(queues):
        rules = Rules(list(queues), [], {})
    else:
        rules = rules_of(jobs, queues, now)
    if not rules.queues:
        return nothing
    begun = None if overlap is None else cache(overlap)  # only its first call does something
    own = Share(types, limit)
    wanted = ClaimOptions(
        (own, *also), worker_id, token, lease, now, began, fields, passed_over, only, leaves_slots, begun
    )
    found: UnreadRows | list[Any] = []
    error: Exception | None = None
    at_once = dialect.claims_at_once and not rules.limited and not rules.blocks and only is None
    if at_once:
        open_fronts = [front for front in fronts if front.queue in rules.queues]
        request = wanted._replace(shares=(own,)).request(dict.fromkeys(rules.queues, limit), fronts=open_fronts)
        found = dialect.claim(request, begun)
    if not at_once or (not found and with_rules is not None and (rules := rules_of(jobs, queues, now)).blocks):
        if begun is not None and not (dialect.claims_at_once and rules.blocks):
            begun()  # for blocked jobs, it is done while the chosen jobs are claimed
        found, error = claim_limited(jobs, rules, wanted)
    if begun is not None:
        begun()
    changes = {
        "state": JobState.ACTIVE,
        "started_at": now,
        "worker_id": worker_id,
        "lease_token": token,
        "finished_at": None,
    }
    return Claimed(found, changes, error)
