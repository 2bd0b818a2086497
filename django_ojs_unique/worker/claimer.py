"""Claimer: claims jobs for the free places of a worker, and requeues those that did not start."""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID, uuid4

from django.db.models import QuerySet

from ..db.clock import database_now
from ..db.dialect import FEW_ROWS
from ..db.dialects import dialect_of
from ..db.transactions import is_busy
from ..execution import leases
from ..execution.claim import Claimed, claim
from ..execution.claim_limited import Share, can_claim, wait_for_slots
from ..execution.leases import Lease
from ..execution.queue_rules import queues_with_rules
from ..execution.run import Run
from ..handlers.registry import registry
from .claimed_runs import ClaimedRuns
from .fronts import Fronts
from .outages import DATABASE_FAILED
from .poller import LISTENING_POLL, Poller
from .pools import EventLoopPool, Pool, ThreadPool
from .summary import Meter, Summary

logger = logging.getLogger("django_ojs_unique.worker")

SMALL_CLAIM, LARGEST_CLAIM = FEW_ROWS, 200
"""How many jobs to claim at once: few, whose plan is kept, until a claim has found as many as it asked for."""
RULES_SECONDS = LISTENING_POLL * 0.9
"""How long the claimer relies on which queues have rules; every poll of a listening worker reads them again."""


class Claimer:
    """Claims jobs when the ``poller`` says so, adds them to ``runs``, and puts them into the pools.

    It counts what it requeues in ``summary`` and ``meter``.
    """

    def __init__(
        self,
        jobs: QuerySet[Any],
        worker_id: str,
        lease: timedelta,
        *,
        threads: ThreadPool,
        event_loop: EventLoopPool,
        runs: ClaimedRuns,
        poller: Poller,
        summary: Summary,
        max_jobs: int | None,
    ) -> None:
        self._jobs = jobs
        self._worker_id = worker_id
        self._lease = lease
        self._threads = threads
        self._event_loop = event_loop
        self._runs = runs
        self._poller = poller
        self._summary = summary
        self.meter = Meter()
        self._max_jobs = max_jobs
        self._uncertain_claims = UncertainClaims(jobs, lease)
        self._most: dict[Pool, int] = {}
        """How many jobs the next claim for a pool may ask for; SMALL_CLAIM if it is not here."""
        self._unread: dict[Pool, tuple[Sequence[Any], float, UUID]] = {}
        """Claimed jobs that are no runs yet, when they were claimed, on the monotonic clock, and their lease token."""
        self._ready: dict[Pool, list[Run]] = {}
        """The runs that are not yet in their pools."""
        self._empty: dict[Pool, float] = {}
        """Since when no more jobs are known for a pool, on the monotonic clock: its last claim found too few."""
        self._fronts: dict[Pool, Fronts] = {}
        self._worked: dict[Pool, bool] = {}
        """Whether the last claim for a pool found jobs."""
        self._with_rules: tuple[frozenset[str], float] = frozenset(), float("-inf")
        """The queues with a limit or with blocked jobs, and when they were read on the monotonic clock."""

    def claim(self, *, ask_for_rules: bool = False) -> bool:
        """Claim jobs for the free places in the pools; return whether there were any.

        Where one statement claims a batch, batch N starts while the server claims batch N + 1.
        If there is no next call, `start_all` must be called. ``ask_for_rules``: do not rely on the last second's
        knowledge of which queues have rules.
        """
        found = full = False
        types_of = self._types()
        skipped = {} if ask_for_rules else self._known_to_be_empty(types_of)
        began = self._poller.begin()
        pools = [pool for pool in types_of if pool not in skipped]
        while pools:
            shares = self._shares({pool: types_of[pool] for pool in pools})
            if pools[0] in shares:
                claimed = self._claim(shares, ask_for_rules=ask_for_rules)
                found = found or bool(claimed)
                pools = [pool for pool in pools[1:] if not (claimed.is_limited and pool in shares)]
            else:
                self._start([pools.pop(0)])
                full = True
        self._poller.end(min([began, *skipped.values()]), found=found, full=full, partial=bool(skipped))
        return found

    def has_missed_jobs(self) -> bool:
        """Tell, after a claim in vain, whether there are jobs nevertheless, which the claims of others have locked."""
        now = database_now(self._jobs.db)
        return self._poller.has_passed_over or can_claim(self._jobs, self._poller.queues(), self._all_types(), now)

    def has_jobs_without_slots(self) -> bool:
        """Tell whether jobs wait for slots, which runs have here or elsewhere."""
        return wait_for_slots(self._jobs, self._poller.queues(), self._all_types(), database_now(self._jobs.db))

    def made_room(self, queue: str) -> None:
        """Look again, because a job of a queue with rules has ended: no enqueue tells of the room."""
        if queue in self._with_rules[0]:
            self._poller.call()  # jobs of other queues may wait for the same slots

    def start_all(self) -> None:
        """Let all claimed jobs start."""
        self._start([self._threads, self._event_loop])

    def hold_all(self) -> None:
        """Make runs of all claimed jobs, so that they can be requeued."""
        for pool in list(self._unread):
            with suppress(Exception):  # jobs that cannot be read are requeued as those of uncertain claims
                self._take_on(pool)

    def requeue(self) -> None:
        """Requeue the jobs that were taken back before they started."""
        self._note_requeued(self._runs.requeue())

    def requeue_uncertain(self) -> None:
        """Requeue the jobs of claims whose answer was lost."""
        if requeued := self._uncertain_claims.requeue():
            self._note_requeued(requeued)
            self._poller.call()

    def _room(self, pool: Pool) -> int:
        room = pool.room(LARGEST_CLAIM, self._count_unread(pool))
        return min(room, self._remaining(), self._most.get(pool, SMALL_CLAIM))

    def _shares(self, types_of: Mapping[Pool, Sequence[str]]) -> dict[Pool, Share]:
        """Return what to claim for each pool with room."""
        shares: dict[Pool, Share] = {}
        remaining = self._remaining()
        for pool, types in types_of.items():
            if (room := min(self._room(pool), remaining)) > 0:
                shares[pool] = Share(types, room)
                remaining -= room
        return shares

    def _claim(self, shares: Mapping[Pool, Share], *, ask_for_rules: bool) -> Claimed:
        """Claim a batch for the first pool, and if it is limited, for all; start the batches before it."""
        pool, *others = shares
        types, room = shares[pool]
        try:
            queues = self._poller.queues()
            with_rules = self._queues_with_rules() if queues and not ask_for_rules else None
            fronts = self._look_for_fronts(pool, queues, types or ())
            claimed_at = time.monotonic()
            with self._uncertain_claims.claiming() as token:
                jobs = claim(
                    self._jobs,
                    queues=queues,
                    types=types,
                    limit=room,
                    worker_id=self._worker_id,
                    lease=Lease(self._lease, unconfirmed=True),
                    now=database_now(self._jobs.db),
                    token=token,
                    with_rules=with_rules,
                    passed_over=self._poller.passed_over,
                    overlap=partial(self._start, shares) if self._unread.keys() & shares.keys() else None,
                    fronts=fronts.of(queues),
                    also=[shares[other] for other in others],
                )
                if jobs.error is not None and not _is_answer(jobs.error):
                    raise jobs.error
        finally:
            self._start(shares)
        if jobs and jobs.is_limited:
            names, read_at = self._with_rules
            self._with_rules = names.union(queues), read_at
        for each, batch in _batches(jobs, shares).items():
            if each is pool:
                fronts.pass_by(batch)
            is_all = len(batch) < shares[each].limit
            if is_all and queues:
                self._poller.exhausted()
            self._note(each, batch, is_all=is_all)
            if batch:
                self._unread[each] = batch, claimed_at, token
                if len(batch) < LARGEST_CLAIM or not dialect_of(self._jobs).claims_at_once:
                    self._start([each])
                    time.sleep(0)  # lets another thread of this process go on at once: its handlers start now
        return jobs

    def _note(self, pool: Pool, batch: Sequence[Any], *, is_all: bool) -> None:
        """Note what a claim has found for a pool: all jobs that it could take, or as many as it asked for."""
        self._most[pool] = SMALL_CLAIM if is_all else LARGEST_CLAIM
        self._worked[pool] = bool(batch)
        if is_all:
            self._empty[pool] = self._poller.queried_at
        else:
            self._empty.pop(pool, None)

    def _look_for_fronts(self, pool: Pool, queues: Collection[str], types: Collection[str]) -> Fronts:
        """Return the fronts for a pool, which are looked for while it works."""
        fronts = self._fronts.setdefault(pool, Fronts(self._jobs))
        if not (queues and dialect_of(self._jobs).finds_fronts):
            return fronts
        if self._worked.get(pool) or (fronts.are_used and fronts.are_rows_dead):
            fronts.look(queues, types)
            if fronts.are_used and fronts.are_rows_dead:
                self._poller.relies_until(fronts.until)
        else:
            fronts.leave()  # so that a job of any priority starts at once
        return fronts

    def _take_on(self, pool: Pool) -> None:
        """Make runs of the jobs that were claimed last for a pool; they are ready to start."""
        if pool not in self._unread:
            return
        jobs, claimed_at, token = self._unread.pop(pool)
        offered, runs = Lease(self._lease), self._ready.setdefault(pool, [])
        with self._uncertain_claims.claiming(token):
            self.meter.claimed(jobs)
            for job in jobs:
                lease = offered.of(job)
                until = claimed_at + lease.total_seconds()
                run = Run(job, pool=pool, lease=lease, lease_until=until)
                self._runs.add(run)
                runs.append(run)

    def _start(self, pools: Iterable[Pool]) -> None:
        """Let the jobs start that were claimed last for these pools."""
        for pool in pools:
            self._take_on(pool)
            if runs := self._ready.pop(pool, []):
                pool.put(runs)

    def _known_to_be_empty(self, pools: Collection[Pool]) -> dict[Pool, float]:
        """Return the pools for which the last claim found too few jobs, and since when; none if that is so for all.

        While the others have jobs, each claim for such a pool would read the whole queue. A call or the next interval
        ends this. It is not for queues with a limit, where also the end of a job makes room.
        """
        now, interval = time.monotonic(), self._poller.interval
        empty = {pool: since for pool, since in self._empty.items() if now < since + interval}
        if not empty or not empty.keys() < set(pools) or self._queues_with_rules() != frozenset():
            return {}
        # Read last: a call may come during the query for the limits.
        return {} if self._poller.called or self._poller.called_at >= min(empty.values()) else empty

    def _types(self) -> dict[Pool, list[str]]:
        """Return the types that each pool runs, without a pool that runs none."""
        pools: dict[Pool, list[str]] = {self._threads: [], self._event_loop: []}
        for definition in registry.definitions():
            pools[self._event_loop if definition.is_async else self._threads].append(definition.type)
        return {pool: types for pool, types in pools.items() if types}

    def _all_types(self) -> list[str]:
        return [type for types in self._types().values() for type in types]

    def _queues_with_rules(self) -> frozenset[str] | None:
        """Return the queues with rules, or None where each claim queries for the rules anyway."""
        if not dialect_of(self._jobs).claims_at_once:
            return None
        names, read_at = self._with_rules
        now = time.monotonic()
        if now - read_at > RULES_SECONDS:
            names = queues_with_rules(self._jobs, self._poller.queues())
            self._with_rules = names, now
        return names

    def _remaining(self) -> int:
        if self._max_jobs is None:
            return sys.maxsize
        claimed = len(self._runs) + sum(map(self._count_unread, self._unread))
        return self._max_jobs - self._summary.finalized - claimed

    def _count_unread(self, pool: Pool) -> int:
        return len(self._unread[pool][0]) if pool in self._unread else 0

    def _note_requeued(self, count: int) -> None:
        if count:
            self._empty.clear()
        self._summary.requeued += count
        self.meter.requeued(count)


def _batches(jobs: Claimed, shares: Mapping[Pool, Share]) -> Mapping[Pool, Sequence[Any]]:
    """Return the claimed jobs of each pool; a claim that is not limited was for the first one only."""
    if len(shares) == 1 or not jobs.is_limited:
        return {next(iter(shares)): jobs}
    pool_of = {type: pool for pool, share in shares.items() for type in share.types or ()}
    batches: dict[Pool, list[Any]] = {pool: [] for pool in shares}
    for job in jobs:
        batches[pool_of[job.type]].append(job)
    return batches


class UncertainClaims:
    """Remembers the tokens of claims that got no answer, and requeues their jobs; the attempt does not count.

    Without that, a claim that was committed while its answer was lost would cost its jobs an attempt and a lease. The
    server may commit it after a first check, so the check is repeated until its lease would have run out.
    """

    def __init__(self, jobs: QuerySet[Any], lease: timedelta) -> None:
        self._jobs = jobs
        self._lease = lease
        self._until: dict[UUID, float] = {}

    @contextmanager
    def claiming(self, token: UUID | None = None) -> Iterator[UUID]:
        """Yield the token for a claim, by default a new one, and keep it if there is no answer or it cannot be read."""
        token = token or uuid4()
        try:
            yield token
        except BaseException as error:
            if not _is_answer(error):
                self._until[token] = time.monotonic() + self._lease.total_seconds()
            raise

    def requeue(self) -> int:
        """Requeue the jobs that such claims have claimed by now; return how many."""
        requeued = leases.requeue_claims(self._jobs, self._until) if self._until else 0
        if requeued:
            logger.warning("Requeued %d jobs: the answer to their claim was lost.", requeued)
        now = time.monotonic()
        self._until = {token: until for token, until in self._until.items() if now < until}
        return requeued


def _is_answer(error: BaseException) -> bool:
    """Tell whether a transaction that failed was surely rolled back: busy is an answer."""
    return isinstance(error, DATABASE_FAILED) and is_busy(error)
