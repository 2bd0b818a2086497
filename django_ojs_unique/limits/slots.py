"""Slots: lock the keys of limits, count what runs under each, and take slots for the runs that a claim begins."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.db.models import F, Min, QuerySet, Sum

from ..db.cursors import Plan, execute
from ..db.dialects import dialect_of
from ..db.locking import skipping_locked
from ..db.rows import RowReader
from ..models import LimitKey, LimitOverride, Slot
from ..models.limit import in_force, weight_in_force
from ..ojs.gates import ID, LIMITED
from .candidates import AvailableJobs, Candidate, Rank, rank
from .index_scan import IS_RUNNING
from .locked_key import COLUMNS, LockedKey
from .prune import delete_stale
from .waiting import Waiting, first_in_line

USED_AGAIN = timedelta(hours=1)
"""How old the time of a key's last use may be, before a claim writes it again."""
HEAVY_PAUSE = timedelta(seconds=1)
"""When a claim looks again at a key that has free slots, but fewer than the next job weighs."""
MOST_STALE = 100
"""How many slots of ended runs the keys of a claim may have before it deletes them; maintenance deletes the others."""
MOST_KNOWN = 100_000
"""How many keys a process remembers as stored, before it forgets them all: about 12 MB."""


_known: dict[str, set[str]] = defaultdict(set)
"""By database: the keys that had rows when this process last looked."""


def ensure_keys(available: AvailableJobs, waiting: Waiting) -> None:
    """Store the keys that have no row yet, in a transaction of its own: others wait for it only for a moment."""
    known = _known[available.using]
    new = waiting.keys.keys() - known
    if new:
        rows = [
            LimitKey(pk=id, name=limit["name"], key=limit["key"], used_at=available.now)
            # In the same order in all claims, so that none waits for another in turn.
            for id, limit in sorted((id, waiting.keys[id]) for id in new)
        ]
        LimitKey.objects.using(available.using).bulk_create(rows, ignore_conflicts=True)
        if len(known) > MOST_KNOWN:
            known.clear()
        known |= new


def forget_slots(using: str, jobs: Collection[UUID], token: UUID) -> None:
    """Delete the slots that jobs have taken under a lease token, as they were requeued and have not started."""
    taken = Slot.objects.using(using).filter(job_id__in=jobs, lease_token=token)
    if keys := set(taken.values_list("key_id", flat=True)):
        taken.delete()
        # The jobs that wait are looked at again.
        LimitKey.objects.using(using).filter(pk__in=sorted(keys)).update(full_at=None, opens_at=None)


class Slots:
    """The slots of the keys for which jobs wait, in one claim and its transaction.

    A key that another claim has locked is left to it, with its jobs: ``passed_over`` tells whether there was one.
    If the rows of some keys are gone, ``are_known`` is false: then store them, and begin again.
    """

    def __init__(self, available: AvailableJobs, waiting: Waiting) -> None:
        self._ready = available
        self._now = available.now
        self._waiting = waiting
        self._taken: list[dict[str, Any]] = []
        self._keys = self._lock()
        # After the locks: where a transaction reads from a snapshot, it has all claims that held them before.
        self._overrides = self._read_overrides() if self._keys else {}
        missing = waiting.keys.keys() - self._keys.keys()
        self.passed_over = bool(missing)
        self.unread_keys: set[str] = set()
        """The keys with slots whose waiting jobs the next look must read: later ones would pass them."""
        self.are_known = not missing or self._forget(missing)
        if self._keys:
            self._count_what_runs()
            self._count_what_started()

    @property
    def leaves_unread(self) -> bool:
        """Whether jobs wait for a key that may have slots left, and were not read."""
        for id, place in self._waiting.opened.items():
            if place is None and id not in self._waiting.cut_lanes:
                continue
            if id not in self._waiting.keys:
                return True  # none of its jobs was read
            if id in self._keys and not self._keys[id].is_full:
                return True
        return False

    def take(self, job: Candidate) -> bool:
        """Take the slots that a job needs; return whether it got them.

        Its ``gate`` becomes the one where it stands while it runs, or must wait; it stays while that is not known.
        """
        needed: list[tuple[LockedKey, Mapping[str, Any]]] = []
        for limit in job.limits:
            if (key := self._keys.get(limit["id"])) is None:
                return False
            needed.append((key, limit))
        for key, limit in needed:
            if not key.is_closed:
                key.is_full = not self._has_room(key, limit)
                is_behind = not key.is_full and self._is_behind(key, job)
                if is_behind and key.is_unread:
                    self.unread_keys |= {key.id for key, _ in needed if self._is_behind(key, job) and key.is_unread}
                    return False
                key.is_closed = key.is_full or is_behind
            if key.is_closed:
                job.gate = key.id + (job.lane or "")
                return False
        job.gate = job.lane or LIMITED
        for number, (key, limit) in enumerate(needed):
            self._use(key, limit, job, is_first=number == 0)
        return True

    def store(self, token: UUID, claimed: AbstractSet[UUID]) -> None:
        """Store the slots of the jobs that were ``claimed``, under their lease token, and which keys are full.

        The keys for which a job took slots, but was not claimed, are looked at again.
        """
        using = self._ready.using
        slots = [{**slot, "lease_token": token} for slot in self._taken if slot["job_id"] in claimed]
        if slots:
            dialect_of(Slot.objects.using(using)).insert_rows(slots)
        touches = self._ready.dialect.repeats_reads
        awaited = {job.gate[:ID] for job in self._waiting.jobs() if job.id not in claimed}
        groups: dict[tuple[Any, ...], list[str]] = defaultdict(list)
        for id, key in self._keys.items():
            after = key.stored
            if id in self.unread_keys or not key.users <= claimed:
                after = None, key.full_since, None
            elif key.is_full:
                full_at = None if key.is_early else key.running
                after = full_at, key.full_since or self._now, key.looks_at
            elif key.is_closed or id in awaited:
                after = key.full_at, key.full_since or self._now, key.opens_at
            elif self._waiting.has_all_of(id):
                after = None, None, None
            # Where a later claim may read from an older snapshot, it must meet a row that was written since.
            if after != key.stored or (key.users and (touches or self._now - key.used_at > USED_AGAIN)):
                groups[after].append(id)
        for (full_at, full_since, opens_at), ids in groups.items():
            self._rows_of(ids).update(full_at=full_at, full_since=full_since, opens_at=opens_at, used_at=self._now)

    def _forget(self, missing: Collection[str]) -> bool:
        """Forget the keys whose rows were pruned; return whether all are there, only locked."""
        locked = set(self._rows_of(list(missing)).values_list("pk", flat=True))
        _known[self._ready.using] -= set(missing) - locked
        return len(locked) == len(missing)

    def _lock(self) -> dict[str, LockedKey]:
        if not self._waiting.keys:
            return {}
        dialect = dialect_of(LimitKey.objects.using(self._ready.using))
        reader, table = RowReader(LimitKey, dialect.connection, COLUMNS), LimitKey._meta.db_table
        among, ids = dialect.among("id", list(self._waiting.keys))
        columns, lock = ", ".join(COLUMNS), skipping_locked(dialect)
        statement = f"SELECT {columns} FROM {table} WHERE {among} ORDER BY id {lock}"
        # A kept plan of PostgreSQL would compare each row of a small table with every id.
        rows = execute(dialect, statement, ids, plan=Plan.ONCE)[1]
        return {key.id: key for key in (LockedKey(*row) for row in reader.convert(rows))}

    def _read_overrides(self) -> dict[str, LimitOverride]:
        dialect = self._ready.dialect
        reader = RowReader(LimitOverride, dialect.connection, ("name", "running", "rate"))
        rows = execute(dialect, f"SELECT name, running, rate FROM {LimitOverride._meta.db_table}", ())[1]
        return {row.name: row for row in map(reader.read, rows)}

    def _rows_of(self, ids: list[str]) -> QuerySet[LimitKey]:
        rows = LimitKey.objects.using(self._ready.using)
        condition, parameters = self._ready.dialect.among("id", ids)
        return rows.extra(where=[condition], params=parameters)

    def _is_behind(self, key: LockedKey, job: Candidate) -> bool:
        """Tell whether jobs that wait for the key, and were not read, come before this one."""
        if not key.is_cutoff_known:
            key.is_cutoff_known, key.cutoff = True, self._find_cutoff(key)
        if job.lane and not key.is_unread:
            return False  # the jobs of lanes go by their turns
        return key.cutoff is not None and rank(job) > key.cutoff

    def _find_cutoff(self, key: LockedKey) -> Rank | None:
        waiting = self._waiting
        place, is_opened = waiting.opened.get(key.id), key.id in waiting.opened
        unread = waiting.lines.keys() - waiting.read_in.get(key.id, set())
        if not unread or (not waiting.is_walk_cut if is_opened else key.full_since is None):
            return place
        first = first_in_line(self._ready, unread, key.id)
        key.is_unread = first is not None
        if first is None:
            waiting.opened.setdefault(key.id, None)
        return min((one for one in (place, first) if one is not None), default=None)

    def _has_room(self, key: LockedKey, limit: Mapping[str, Any]) -> bool:
        running, rate = self._numbers(limit)
        weight = weight_in_force(limit, running, rate)
        if running is not None and key.running + weight > running:
            if key.running < running:
                key.looks_at = self._now + HEAVY_PAUSE
            return False
        if rate is not None:
            seconds = limit["seconds"]
            if key.recent[seconds] + weight > rate:
                key.is_early = True
                key.looks_at = key.first_start.get(seconds, self._now) + timedelta(seconds=seconds)
                return False
        return True

    def _use(self, key: LockedKey, limit: Mapping[str, Any], job: Candidate, *, is_first: bool) -> None:
        weight = limit.get("weight", 1)
        key.users.add(job.id)
        key.running += weight
        if "seconds" in limit:
            for seconds in key.recent:
                key.recent[seconds] += weight
        if is_first and weight == 1 and "seconds" not in limit:
            job.gate = key.id  # its row is the slot
            return
        kept_until = self._now + timedelta(seconds=limit.get("seconds", 0))
        taken = {"key_id": key.id, "job_id": job.id, "weight": weight}
        self._taken.append({**taken, "taken_at": self._now, "kept_until": kept_until})

    def _numbers(self, limit: Mapping[str, Any]) -> tuple[int | None, int | None]:
        return in_force(limit, self._overrides.get(limit["name"]))

    def _count_what_runs(self) -> None:
        """Count the running rows that stand at the gates of the keys, and the further slots of running rows."""
        dialect, jobs, ids, stale = self._ready.dialect, self._ready.table, list(self._keys), 0
        at_gates, gates = dialect.among("gate", ids)
        of_keys, keys = dialect.among("key_id", ids)
        _, found = execute(
            dialect,
            f"SELECT gate, COUNT(*), 0 FROM {jobs} WHERE state = 'active' AND finished_at IS NULL AND {at_gates}"
            " GROUP BY gate UNION ALL SELECT key_id, SUM(CASE WHEN is_running THEN weight ELSE 0 END),"
            " SUM(CASE WHEN is_running THEN 0 ELSE 1 END) FROM (SELECT key_id, weight,"
            f" {IS_RUNNING.format(jobs=jobs)} AS is_running FROM {Slot._meta.db_table} AS slot WHERE {of_keys})"
            " AS taken GROUP BY key_id",
            [*gates, *keys],
            plan=Plan.FRESH,
        )
        for id, weight, ended in found:
            self._keys[id].running += int(weight)
            stale += int(ended)
        if stale > MOST_STALE:
            delete_stale(self._ready.jobs, self._now, ids)

    def _count_what_started(self) -> None:
        for seconds, keys in self._waiting.rates.items():
            ids = [id for id in keys if id in self._keys]
            for id in ids:
                self._keys[id].recent[seconds] = 0
            slots = started_since(self._ready.using, self._now - timedelta(seconds=seconds)).filter(key__in=ids)
            for id, weight, first in slots.values_list("key").annotate(Sum("weight"), Min("taken_at")):
                self._keys[id].recent[seconds] = weight
                self._keys[id].first_start[seconds] = first


def started_since(using: str, moment: datetime) -> QuerySet[Slot]:
    """Return the slots that a rate counts: of jobs that have one and have started after a moment."""
    return Slot.objects.using(using).filter(kept_until__gt=F("taken_at"), taken_at__gt=moment)
