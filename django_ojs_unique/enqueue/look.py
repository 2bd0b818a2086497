"""The look of an enqueue: read and lock what is stored under its unique keys.

Where rows are not enough, it locks the keys themselves: on MariaDB by key locks, on SQLite by the write lock.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db.models import QuerySet

from ..db.constraints import holding_unique_key, of_fingerprint
from ..db.dialects import dialect_of
from ..db.inserts import in_groups
from ..ojs.states import INCOMPLETE, TERMINAL
from ..unique.conflict import counts
from ..unique.plan import Family
from ..unique.policy import UniquePolicy, ended_states
from ..unique.row import JobRow
from .duplicates import by_id, newest_finished, outside, stored_matches, stored_matches_of_any
from .entry import Entry
from .unit_of_work import LostRace

_LOOKED_AT = (
    "id", "type", "queue", "state", "key", "fingerprint", "unique_states", "created_at", "scheduled_at", "enqueued_at",
    "expires_at", "started_at", "workflow_id", "awaited", "workflow_only",
)  # fmt: skip


class Look:
    """What is stored under the unique keys of some entries."""

    def __init__(self, jobs: QuerySet[Any], entries: Sequence[Entry]) -> None:
        self._jobs, self._dialect = jobs, dialect_of(jobs)
        self.judged_at = entries[0].new_job.judged_at  # only a single job has one
        self._is_single = len(entries) == 1
        self._replaceable = entries[0].new_job.replaceable  # the same for all
        self._policies: dict[str, list[UniquePolicy]] = defaultdict(list)
        self._keyed: set[str] = set()
        self._adopting: set[str] = set()
        """The fingerprints of jobs whose workflow will wait for a duplicate instead, and write its row."""
        for new_job in (entry.new_job for entry in entries):
            if new_job.key is not None:
                self._keyed.add(new_job.values["fingerprint"])
            elif (policy := new_job.policy) is not None:
                policies = self._policies[new_job.values["fingerprint"]]
                if policy not in policies:
                    policies.append(policy)
                if new_job.values.get("workflow_id") is not None:
                    self._adopting.add(new_job.values["fingerprint"])

    def lock_keys(self) -> None:
        """Begin the transaction, and make other enqueues of these keys wait, where the constraint cannot do that."""
        self._dialect.read_anew()
        self._dialect.lock_keys([*self._policies, *self._keyed])

    def families(self, now: datetime, *, is_lost: bool) -> dict[str, Family]:
        """Return what is stored, by fingerprint; the rows that an entry may change are locked.

        After a lost race, it queries with locks only: the snapshot of the caller's transaction may hide new rows.
        """
        is_hidden = is_lost or self._dialect.reads_old
        families = {
            fingerprint: Family(counted={state for policy in policies for state in policy.states})
            for fingerprint, policies in self._policies.items()
        }
        for row in self._stored(now, is_lost=is_lost, is_hidden=is_hidden):
            if row.fingerprint in families:  # it may have left uniqueness before its lock
                families[row.fingerprint].rows.append(row)
        if self._replaceable is not None:
            rows = [row for family in families.values() for row in family.rows]
            spared = {row.pk for row in outside(self._replaceable, rows)}
            for family in families.values():
                family.spared = spared
        for fingerprints in in_groups(sorted(self._keyed)):
            families |= {fingerprint: Family() for fingerprint in fingerprints}
            holders = self._jobs.filter(holding_unique_key(), fingerprint__in=fingerprints)
            for holder in self._dialect.lock(holders, by_key=False):
                families[holder.fingerprint].rows.append(holder)
        return families

    def for_rivals(self, families: Mapping[str, Family], known: Collection[UUID], now: datetime) -> None:
        """Raise LostRace for a job that was inserted or retried between the look and the insert, and still counts.

        From the insert on, every other enqueue of these keys waits. A rival that has finished holds no key. The
        constraint stops the insert beside one that lives, unless a job gave way that held the key for it.
        """
        counting = [
            fingerprint
            for fingerprint, policies in self._policies.items()
            if families[fingerprint].gave_way or not all(INCOMPLETE.issuperset(policy.states) for policy in policies)
        ]
        for fingerprints in in_groups(counting):
            for row in self._find(fingerprints, now):
                policies = self._policies[row.fingerprint]
                if row.pk not in known and any(self._counts(policy, row, now) for policy in policies):
                    raise LostRace

    def _stored(self, now: datetime, *, is_lost: bool, is_hidden: bool) -> Iterable[JobRow]:
        if self._is_single and not self._adopting:
            for fingerprint, (policy,) in self._policies.items():
                return self._of_one(fingerprint, policy, now, by_key=not is_lost, is_hidden=is_hidden)
        return self._of_many(now, is_hidden=is_hidden)

    def _of_one(
        self, fingerprint: str, policy: UniquePolicy, now: datetime, *, by_key: bool, is_hidden: bool
    ) -> list[JobRow]:
        jobs = self._jobs
        matches = stored_matches(jobs, fingerprint, policy, self.judged_at or now)
        ended = newest_finished(jobs, fingerprint, policy)
        if ended and not policy.replaces and not is_hidden:
            stored = by_id([matches, *ended])
            may_be_written = any(map(_is_for_workflows, stored.values()))
            if not may_be_written and all(
                self._counts(policy, row, now) for row in stored.values() if row.holds_unique_key
            ):
                return [*stored.values()]  # nothing is released, or written
        # First the unfinished ones: one that ends before its lock is among the finished ones then.
        stored = {row.pk: row for row in self._dialect.lock(matches, by_key=by_key)}
        for query in ended:
            stored = {row.pk: row for row in (query.select_for_update() if is_hidden else query)} | stored
        return [*stored.values()]

    def _of_many(self, now: datetime, *, is_hidden: bool) -> Iterable[JobRow]:
        found: dict[UUID, JobRow] = {}
        for fingerprints in in_groups(self._policies):
            if is_hidden:
                matches = self._matches(fingerprints, now).filter(of_fingerprint(fingerprint__in=fingerprints))
                found |= {row.pk: row for row in self._dialect.lock(matches, by_key=False)}
            else:
                found |= {row.pk: row for row in self._find(fingerprints, now)}
        if not is_hidden and (changeable := {pk for pk, row in found.items() if self._may_change(row, now)}):
            found = {pk: row for pk, row in found.items() if pk not in changeable}
            for pks in in_groups(sorted(changeable)):
                rows = self._jobs.filter(pk__in=pks).only(*_LOOKED_AT)
                found |= {row.pk: row for row in self._dialect.lock(rows, by_key=False)}
        return found.values()

    def _find(self, fingerprints: Sequence[str], now: datetime) -> Iterable[JobRow]:
        ended = ended_states(self._policies_of(fingerprints))
        found: Iterable[JobRow] = self._dialect.find(self._matches(fingerprints, now), fingerprints, ended)
        return found

    def _matches(self, fingerprints: Collection[str], now: datetime) -> QuerySet[Any]:
        """Select the jobs that the policies of these fingerprints may count, or that hold one of them."""
        return stored_matches_of_any(self._jobs, self._policies_of(fingerprints), self.judged_at or now).only(
            *_LOOKED_AT
        )

    def _policies_of(self, fingerprints: Collection[str]) -> Collection[UniquePolicy]:
        return {id(policy): policy for name in fingerprints for policy in self._policies[name]}.values()

    def _may_change(self, row: JobRow, now: datetime) -> bool:
        """Tell whether an entry may replace a stored job, release its unique key, or need it, too."""
        if row.fingerprint in self._adopting or _is_for_workflows(row):
            return True
        return any(
            policy.replaces or (row.holds_unique_key and not self._counts(policy, row, now))
            for policy in self._policies[row.fingerprint]
        )

    def _counts(self, policy: UniquePolicy, row: JobRow, now: datetime) -> bool:
        return counts(policy, row, now, self.judged_at)


def _is_for_workflows(row: JobRow) -> bool:
    return bool(row.workflow_only) and row.state not in TERMINAL
