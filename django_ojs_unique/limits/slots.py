"""Slots: lock the keys of limits, count what runs under each, and take slots for the runs that a claim begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connections
from django.db.models import F, QuerySet, Sum

from ..db.dialects import dialect_of
from ..db.locking import unlocked
from ..db.rows import read_fields
from ..models import LimitKey, LimitOverride, Slot
from ..models.limit import in_force, weight_in_force
from ..ojs.gates import ID, LIMITED
from .prune import delete_stale
from .waiting import IS_RUNNING, Rank, Waiting, first_in_line, rank

USED_AGAIN = timedelta(hours=1)
"""How old the time of a key's last use may be, before a claim writes it again."""
MOST_STALE = 100
"""How many slots of ended runs the keys of a claim may have before it deletes them; maintenance deletes the others."""
MOST_KNOWN = 100_000
"""How many keys a process remembers as stored, before it forgets them all: about 12 MB."""


_known: dict[str, set[str]] = defaultdict(set)
"""By database: the keys that had rows when this process last looked."""


def ensure_keys(using: str, waiting: Waiting, now: datetime) -> None:
    """Store the keys that have no row yet, in a transaction of its own: others wait for it only for a moment."""
    known = _known[using]
    new = waiting.keys.keys() - known
    if new:
        rows = [
            LimitKey(pk=id, name=limit["name"], key=limit["key"], used_at=now)
            # In the same order in all claims, so that none waits for another in turn.
            for id, limit in sorted((id, waiting.keys[id]) for id in new)
        ]
        LimitKey.objects.using(using).bulk_create(rows, ignore_conflicts=True)
        if len(known) > MOST_KNOWN:
            known.clear()
        known |= new


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

    ``running``: the weight that runs; ``recent``: the weight of jobs with a rate that has started in the last so many
    seconds. ``cutoff``: jobs whose place is after this one must wait: it is the first job that waits without having
    been read, or the last one that was read. ``is_full``: a job has found no slot. ``is_closed``: a job must wait, so
    those behind it must wait, too. ``users``: the jobs that have taken slots.
    """

    row: LimitKey
    running: int = 0
    recent: dict[int, int] = field(default_factory=dict)
    cutoff: Rank | None = None
    is_cutoff_known: bool = False
    is_unread: bool = False
    is_full: bool = False
    is_closed: bool = False
    opens_at: datetime | None = None
    users: set[UUID] = field(default_factory=set)


class Slots:
    """The slots of the keys for which jobs wait, in one claim and its transaction.

    A key that another claim has locked is left to it, with its jobs: ``passed_over`` tells whether there was one.
    If the rows of some keys are gone, ``are_known`` is false: then store them, and begin again.
    """

    def __init__(self, ready: QuerySet[Any], waiting: Waiting, now: datetime) -> None:
        self._ready = ready
        self._now = now
        self._waiting = waiting
        self._taken: list[dict[str, Any]] = []
        self._keys = self._lock()
        # After the locks: where a transaction reads from a snapshot, it has all claims that held them before.
        self._overrides = {row.name: row for row in LimitOverride.objects.using(ready.db)} if self._keys else {}
        missing = waiting.keys.keys() - self._keys.keys()
        self.passed_over = bool(missing)
        self.looks_again: set[str] = set()
        """The keys with slots for which jobs wait that must be read first."""
        self.are_known = not missing or self._forget(missing)
        if self._keys:
            self._count_what_runs()
            self._count_what_started()

    def take(self, job: Any) -> bool | None:
        """Take the slots that a job needs; return False if it must wait for one, None if that is not known.

        Its ``gate`` becomes the place where it stands while it runs, or where it must wait.
        """
        needed: list[tuple[_Key, dict[str, Any]]] = []
        for limit in job.limits:
            if (key := self._keys.get(limit["id"])) is None:
                return None
            needed.append((key, limit))
        for key, limit in needed:
            if not key.is_closed:
                key.is_full = not self._has_room(key, limit)
                is_behind = not key.is_full and self._is_behind(key, job)
                if is_behind and key.is_unread:
                    self.looks_again.add(key.row.pk)
                    return None
                key.is_closed = key.is_full or is_behind
            if key.is_closed:
                job.gate = key.row.pk + (job.lane or "")
                return False
        job.gate = job.lane or LIMITED
        for number, (key, limit) in enumerate(needed):
            self._use(key, limit, job, is_first=number == 0)
        return True

    def store(self, token: UUID, claimed: AbstractSet[UUID]) -> None:
        """Store the slots of the jobs that were ``claimed``, under their lease token, and which keys are full.

        The keys for which a job took slots, but was not claimed, are looked at again.
        """
        using = self._ready.db
        slots = [{**slot, "lease_token": token} for slot in self._taken if slot["job_id"] in claimed]
        if slots:
            dialect_of(Slot.objects.using(using)).insert_rows(slots)
        touches = dialect_of(self._ready).repeats_reads
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for id, key in self._keys.items():
            row = key.row
            before = row.full_at, row.full_since, row.opens_at
            after = before
            if id in self.looks_again or not key.users <= claimed:
                after = None, row.full_since, None
            elif key.is_full:
                full_at = None if key.opens_at else key.running
                after = full_at, row.full_since or self._now, key.opens_at
            elif not key.is_closed and self._waiting.opened.get(id, ...) is None:
                after = None, None, None
            # Where a later claim may read from an older snapshot, it must meet a row that was written since.
            if after != before or (key.users and (touches or self._now - row.used_at > USED_AGAIN)):
                groups[after].append(id)
        for (full_at, full_since, opens_at), ids in groups.items():
            self._rows_of(ids).update(full_at=full_at, full_since=full_since, opens_at=opens_at, used_at=self._now)

    def _forget(self, missing: Collection[str]) -> bool:
        """Forget the keys whose rows were pruned; return whether there were none."""
        locked = set(self._rows_of(list(missing)).values_list("pk", flat=True))
        _known[self._ready.db] -= set(missing) - locked
        return len(locked) == len(missing)

    def _lock(self) -> dict[str, _Key]:
        if not self._waiting.keys:
            return {}
        fields = ("id", "full_at", "full_since", "opens_at", "used_at")
        rows = unlocked(self._rows_of(list(self._waiting.keys)).order_by("pk"))
        return {row.pk: _Key(row) for row in read_fields(rows, fields)}

    def _rows_of(self, ids: list[str]) -> QuerySet[LimitKey]:
        rows = LimitKey.objects.using(self._ready.db)
        condition, parameters = dialect_of(self._ready).among("id", ids)
        return rows.extra(where=[condition], params=parameters)

    def _is_behind(self, key: _Key, job: Any) -> bool:
        """Tell whether jobs that wait for the key, and were not read, come before this one."""
        if job.gate[:ID] == key.row.pk:
            return False
        if not key.is_cutoff_known:
            key.is_cutoff_known, key.cutoff = True, self._find_cutoff(key)
        if job.lane and not key.is_unread:
            return False  # the jobs of lanes go by their turns
        return key.cutoff is not None and rank(job) > key.cutoff

    def _find_cutoff(self, key: _Key) -> Rank | None:
        opened, row = self._waiting.opened, key.row
        if row.pk in opened:
            return opened[row.pk]
        if (row.full_at, row.opens_at) == (None, None):
            return None
        first = first_in_line(self._ready, self._waiting.lines, row.pk)
        key.is_unread = first is not None
        if first is None:
            opened[row.pk] = None
        return first

    def _has_room(self, key: _Key, limit: Mapping[str, Any]) -> bool:
        running, rate = self._numbers(limit)
        weight = weight_in_force(limit, running, rate)
        if running is not None and key.running + weight > running:
            return False
        if rate is not None:
            seconds = limit["seconds"]
            if key.recent[seconds] + weight > rate:
                key.opens_at = self._when_open(key, seconds, key.recent[seconds] + weight - rate)
                return False
        return True

    def _use(self, key: _Key, limit: Mapping[str, Any], job: Any, *, is_first: bool) -> None:
        weight = limit.get("weight", 1)
        key.users.add(job.pk)
        key.running += weight
        if "seconds" in limit:
            for seconds in key.recent:
                key.recent[seconds] += weight
        if is_first and weight == 1 and "seconds" not in limit:
            job.gate = key.row.pk  # its row is the slot
            return
        kept_until = self._now + timedelta(seconds=limit.get("seconds", 0))
        taken = {"key_id": key.row.pk, "job_id": job.pk, "weight": weight}
        self._taken.append({**taken, "taken_at": self._now, "kept_until": kept_until})

    def _numbers(self, limit: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return in_force(limit, self._overrides.get(limit["name"]))

    def _when_open(self, key: _Key, seconds: int, needed: int) -> datetime:
        """Return when so much weight will have left the time in which the rate counts."""
        length = timedelta(seconds=seconds)
        slots = self._started(seconds).filter(key=key.row.pk)
        for taken_at, weight in slots.order_by("taken_at").values_list("taken_at", "weight")[:needed]:
            needed -= weight
            if needed <= 0:
                return taken_at + length
        return self._now + length

    def _count_what_runs(self) -> None:
        """Count the running rows that stand at the gates of the keys, and the further slots of running rows."""
        jobs, stale = self._ready.model._meta.db_table, 0
        dialect, ids = dialect_of(self._ready), list(self._keys)
        at_gates, gates = dialect.among("gate", ids)
        of_keys, keys = dialect.among("key_id", ids)
        with connections[self._ready.db].cursor() as cursor:
            cursor.execute(
                f"SELECT gate, COUNT(*), 0 FROM {jobs} WHERE state = 'active' AND finished_at IS NULL AND {at_gates}"
                " GROUP BY gate UNION ALL SELECT key_id, SUM(CASE WHEN is_running THEN weight ELSE 0 END),"
                " SUM(CASE WHEN is_running THEN 0 ELSE 1 END) FROM (SELECT key_id, weight,"
                f" {IS_RUNNING.format(jobs=jobs)} AS is_running FROM {Slot._meta.db_table} AS slot WHERE {of_keys})"
                " AS taken GROUP BY key_id",
                [*gates, *keys],
            )
            for id, weight, ended in cursor.fetchall():
                self._keys[id].running += int(weight)
                stale += int(ended)
        if stale > MOST_STALE:
            delete_stale(self._ready, self._now, ids)

    def _count_what_started(self) -> None:
        for seconds, keys in self._waiting.rates.items():
            ids = [id for id in keys if id in self._keys]
            slots = self._started(seconds).filter(key__in=ids)
            started = dict(slots.values_list("key").annotate(Sum("weight")))
            for id in ids:
                self._keys[id].recent[seconds] = started.get(id, 0)

    def _started(self, seconds: int) -> QuerySet[Slot]:
        return started_since(self._ready.db, self._now - timedelta(seconds=seconds))


def started_since(using: str, moment: datetime) -> QuerySet[Slot]:
    """Return the slots that a rate counts: of jobs that have one and have started after a moment."""
    return Slot.objects.using(using).filter(kept_until__gt=F("taken_at"), taken_at__gt=moment)
