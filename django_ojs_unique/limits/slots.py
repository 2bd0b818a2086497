"""Slots: lock the keys of limits, count what runs under each, and take slots for the runs that a claim begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import QuerySet, Sum

from ..db.locking import unlocked
from ..models import LimitKey, LimitOverride, Slot
from .prune import delete_stale
from .waiting import IS_RUNNING, Rank, Waiting, first_in_line, rank

MOST_STALE = 100
"""How many slots of ended runs the keys of a claim may have before it deletes them; maintenance deletes the others."""


def ensure_keys(using: str, waiting: Waiting, now: datetime) -> None:
    """Store the keys that have no row yet, in a transaction of its own: others wait for it only for a moment."""
    rows, keys = LimitKey.objects.using(using), waiting.keys
    if not keys:
        return
    known = set(rows.filter(pk__in=keys).values_list("pk", flat=True))
    new = [
        LimitKey(pk=id, name=limit["name"], key=limit["key"], used_at=now)
        for id, limit in sorted(keys.items())
        if id not in known
    ]
    if new:
        rows.bulk_create(new, ignore_conflicts=True)


def forget_slots(using: str, jobs: Collection[UUID], token: UUID) -> None:
    """Delete the slots that jobs have taken under a lease token, as they were given back and have not started."""
    taken = Slot.objects.using(using).filter(job_id__in=jobs, lease_token=token)
    if keys := set(taken.values_list("key_id", flat=True)):
        taken.delete()
        # The jobs that wait are looked at again.
        LimitKey.objects.using(using).filter(pk__in=sorted(keys)).update(full_at=None, opens_at=None)


@dataclass(slots=True)
class _Key:
    """What a claim knows of a key whose row it has locked.

    ``recent``: the weight that has started in the last so many seconds. ``line``: jobs whose place is after this one
    must wait: it is the first job that waits without having been read, or the last one that was read. ``is_full``: a
    job has found no slot. ``is_closed``: a job must wait, so those behind it must wait, too.
    """

    row: LimitKey
    running: int = 0
    recent: dict[int, int] = field(default_factory=dict)
    line: Rank | None = None
    is_line_known: bool = False
    is_full: bool = False
    is_closed: bool = False
    is_used: bool = False
    opens_at: datetime | None = None


class Slots:
    """The slots of the keys for which jobs wait, in one claim and its transaction.

    A key that another claim has locked is left to it, with its jobs: ``passed_over`` tells whether there was one.
    """

    def __init__(self, ready: QuerySet[Any], waiting: Waiting, now: datetime) -> None:
        self._ready = ready
        self._now = now
        self._waiting = waiting
        self._taken: list[Slot] = []
        self._overrides = {row.name: row for row in LimitOverride.objects.using(ready.db)} if waiting.keys else {}
        rows = LimitKey.objects.using(ready.db).filter(pk__in=waiting.keys)
        self._keys = {row.pk: _Key(row) for row in unlocked(rows.order_by("pk"))} if waiting.keys else {}
        self.passed_over = len(self._keys) < len(waiting.keys)
        if self._keys:
            self._count_what_runs()
            self._count_what_started()

    def take(self, job: Any) -> str | None:
        """Take the slots that a job needs, and return None; else return the gate where it must wait.

        The gate is "" if it is not known whether there is a slot.
        """
        needed = [(self._keys.get(limit["id"]), limit) for limit in job.limits or ()]
        if any(key is None for key, _ in needed):
            return ""
        for key, limit in needed:
            assert key is not None
            key.is_full = key.is_full or not self._has_room(key, limit)
            key.is_closed = key.is_closed or key.is_full or self._is_behind(key, job)
            if key.is_closed:
                return key.row.pk
        for key, limit in needed:
            assert key is not None
            self._use(key, limit, job.pk)
        return None

    def store(self, token: UUID, claimed: Collection[UUID]) -> None:
        """Store the slots of the jobs that were ``claimed``, under their lease token, and which keys are full."""
        using = self._ready.db
        taken = [slot for slot in self._taken if slot.job_id in claimed]
        for slot in taken:
            slot.lease_token = token
        Slot.objects.using(using).bulk_create(taken)
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for id, key in self._keys.items():
            row = key.row
            before = row.full_at, row.full_since, row.opens_at
            after = before
            if key.is_full:
                full_at = None if key.opens_at else key.running
                after = full_at, row.full_since or self._now, key.opens_at
            elif not key.is_closed and self._waiting.opened.get(id, ...) is None:
                after = None, None, None
            if key.is_used or after != before:
                groups[after].append(id)
        for (full_at, full_since, opens_at), ids in groups.items():
            LimitKey.objects.using(using).filter(pk__in=ids).update(
                full_at=full_at, full_since=full_since, opens_at=opens_at, used_at=self._now
            )

    def _is_behind(self, key: _Key, job: Any) -> bool:
        """Tell whether jobs wait for the key that were not read and come before this one."""
        if job.gate == key.row.pk:
            return False
        if not key.is_line_known:
            self._find_line(key)
        return key.line is not None and rank(job) > key.line

    def _find_line(self, key: _Key) -> None:
        row, opened = key.row, self._waiting.opened
        key.is_line_known = True
        if row.pk in opened:
            key.line = opened[row.pk]
        elif (row.full_at, row.opens_at) != (None, None):
            key.line = first_in_line(self._ready, self._waiting.lines, row.pk)
            if key.line is None:
                opened[row.pk] = None

    def _has_room(self, key: _Key, limit: Mapping[str, Any]) -> bool:
        running, rate = self._numbers(limit)
        weight = _weight(limit, running, rate)
        if running is not None and key.running + weight > running:
            return False
        if rate is not None:
            seconds = limit["seconds"]
            if key.recent.get(seconds, 0) + weight > rate:
                key.opens_at = self._when_open(key, seconds, key.recent[seconds] + weight - rate)
                return False
        return True

    def _use(self, key: _Key, limit: Mapping[str, Any], id: UUID) -> None:
        running, rate = self._numbers(limit)
        weight = _weight(limit, running, rate)
        key.is_used = True
        key.running += weight
        for seconds in key.recent:
            key.recent[seconds] += weight
        kept_until = self._now + timedelta(seconds=limit.get("seconds", 0))
        self._taken.append(Slot(key_id=key.row.pk, job_id=id, weight=weight, taken_at=self._now, kept_until=kept_until))

    def _numbers(self, limit: Mapping[str, Any]) -> tuple[int | None, int | None]:
        """Return how many may run, and start in the limit's time: as an operator says, else as the job says."""
        running, rate = limit.get("running"), limit.get("rate")
        if (row := self._overrides.get(limit["name"])) is not None:
            running = row.running or running
            rate = (row.rate or rate) if "seconds" in limit else None
        return running, rate

    def _when_open(self, key: _Key, seconds: int, needed: int) -> datetime:
        """Return when so much weight will have left the time in which the rate counts."""
        length = timedelta(seconds=seconds)
        slots = Slot.objects.using(self._ready.db).filter(key=key.row.pk, taken_at__gt=self._now - length)
        for taken_at, weight in slots.order_by("taken_at").values_list("taken_at", "weight")[:needed]:
            needed -= weight
            if needed <= 0:
                return taken_at + length
        return self._now + length

    def _count_what_runs(self) -> None:
        places = ", ".join(["%s"] * len(self._keys))
        is_running = IS_RUNNING.format(jobs=self._ready.model._meta.db_table)
        stale = 0
        with connections[self._ready.db].cursor() as cursor:
            cursor.execute(
                f"SELECT key_id, SUM(CASE WHEN is_running THEN weight ELSE 0 END),"
                " SUM(CASE WHEN is_running THEN 0 ELSE 1 END) FROM (SELECT key_id, weight,"
                f" {is_running} AS is_running FROM {Slot._meta.db_table} AS slot WHERE key_id IN ({places})) AS taken"
                " GROUP BY key_id",
                list(self._keys),
            )
            for key, weight, ended in cursor.fetchall():
                self._keys[key].running = int(weight)
                stale += int(ended)
        if stale > MOST_STALE:
            delete_stale(self._ready, self._now, list(self._keys))

    def _count_what_started(self) -> None:
        by_seconds: dict[int, list[str]] = defaultdict(list)
        for id, limit in self._waiting.keys.items():
            if "seconds" in limit and id in self._keys:
                by_seconds[limit["seconds"]].append(id)
        for seconds, ids in by_seconds.items():
            slots = Slot.objects.using(self._ready.db).filter(
                key__in=ids, taken_at__gt=self._now - timedelta(seconds=seconds)
            )
            started = dict(slots.values_list("key").annotate(Sum("weight")))
            for id in ids:
                self._keys[id].recent[seconds] = started.get(id, 0)


def _weight(limit: Mapping[str, Any], *most: int | None) -> int:
    """Return what a job counts for: no more than an operator allows, so that it can run at all."""
    weight: int = min(limit.get("weight", 1), *(number for number in most if number is not None))
    return weight
