"""Which jobs of some queues are blocked: read before a claim's transaction, so it only says where to look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..ojs.blocking import FAIR, ID, LIMITED, PARTITIONS, fair_blocks_of
from .blocks import Blocks, blocks_between, blocks_with_slots, fair_partitions_in_a_circle
from .candidates import AvailableJobs, Candidate, Rank, rank, readable

LEAST_HEADS = 2
"""How many jobs of each partition the first look of a claim reads at least: most claims take one of each."""
LEAST_NEW, MOST_NEW = 10, 2_000
"""How many jobs of each kind the first look of a claim reads at least, and how many new ones any look reads at most."""
GROWTH = 4
"""How many times as many the next look of a claim reads: those that were read before must wait."""
BEFORE_ALL: Rank = (float("-inf"),)
"""A place before that of every job."""


@dataclass(slots=True)
class Waiting:
    """The first blocked jobs of some queues.

    ``lines``: the jobs by queue, in no order; ``fair``: those of each partition of a fair queue, in the order of
    their turns. ``opened``: the partitions that had slots, and the place behind which jobs that wait for them were not
    read; None if all were read.
    ``is_cut``: not all jobs were read that may be claimed. ``is_walk_cut``: not all partitions were asked for slots.
    ``is_narrow``: of some types that the claim takes, no jobs were read.
    """

    lines: dict[str, list[Candidate]] = field(default_factory=dict)
    fair: dict[str, list[list[Candidate]]] = field(default_factory=dict)
    partitions: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The partitions of all these jobs: a limit with it, by its id."""
    rates: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The partitions of all rates that count in so many seconds."""
    opened: dict[str, Rank | None] = field(default_factory=dict)
    read_in: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The queues whose jobs were read that wait for a partition."""
    cut_fair: set[str] = field(default_factory=set)
    """The partitions that had slots, and jobs of fair queues wait for them that were not read."""
    last_new: Rank | None = None
    """The place of the last new job that was read, if not all were."""
    is_cut: bool = False
    is_walk_cut: bool = False
    is_narrow: bool = False

    def jobs(self) -> Iterator[Candidate]:
        """Yield all these jobs, in no order."""
        yield from chain.from_iterable(self.lines.values())
        for partitions in self.fair.values():
            yield from chain.from_iterable(partitions)

    @property
    def has_jobs(self) -> bool:
        """Whether there are any."""
        return any(True for _ in self.jobs())

    def has_all_of(self, partition: str) -> bool:
        """Tell whether all jobs that wait for a partition were read."""
        is_read = partition in self.opened and self.opened[partition] is None and partition not in self.cut_fair
        return is_read and not self.is_narrow

    def may_be_preceded(self, job: Candidate) -> bool:
        """Tell whether a new job that was not read may come before this one and need the same slots."""
        return self.last_new is not None and bool(job.limits) and not job.fair_partition and rank(job) > self.last_new

    def cut(self, job: Candidate) -> None:
        """Note that jobs behind this one wait for the partition that blocks it, and were not read."""
        partition = job.blocked_by[:ID]
        if job.fair_partition:
            self.cut_fair.add(partition)
            return
        self.opened[partition] = min(self.opened[partition] or rank(job), rank(job))

    def add_partitions(self, jobs: Iterable[Candidate]) -> None:
        """Note the partitions of some jobs."""
        for job in jobs:
            for limit in job.limits:
                self.partitions[limit["id"]] = limit
                if "seconds" in limit:
                    self.rates[limit["seconds"]].add(limit["id"])


@dataclass(slots=True)
class RoundRobin:
    """Where the looks of this process at each queue ended.

    ``fair``: the partition that had the last turn; ``skipped``: the last one of those in which a look has found no job;
    ``partitions``: what blocks the job at which the last walk ended.
    """

    fair: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    partitions: dict[str, str] = field(default_factory=dict)


def look(
    available: AvailableJobs,
    blocks: Mapping[str, Blocks],
    count: int,
    turns: RoundRobin,
    repeated: int = 0,
    again: Collection[str] = (),
) -> Waiting:
    """Read the first blocked jobs of some queues, enough to claim ``count`` of them.

    ``turns`` is updated. ``repeated``: how often this claim has looked before.
    ``again``: partitions for which jobs wait that must be read.
    """
    one = _WaitingScan(available, count, GROWTH**repeated, turns, again)
    for queue, which in blocks.items():
        one.look_at(queue, which)
    return one.waiting


def first_in_line(available: AvailableJobs, queues: Iterable[str], partition: str) -> Rank | None:
    """Return the place of the first job of the queues that waits for a slot of a partition; None if none does."""
    found = available.first_of_partitions([(queue, partition) for queue in queues])
    # The partitions of a fair queue have an order of their own.
    return min((BEFORE_ALL if job.fair_partition else rank(job) for job in found), default=None)


@dataclass(slots=True)
class _WaitingScan:
    """One look for ``count`` jobs. It reads ``growth`` times as many as the first look of a claim."""

    available: AvailableJobs
    count: int
    growth: int
    turns: RoundRobin
    again: Collection[str]
    waiting: Waiting = field(default_factory=Waiting)

    @property
    def most(self) -> int:
        """How many jobs, or partitions, of a queue to read."""
        return max(self.count, LEAST_NEW) * self.growth

    def most_of_each(self, lines: int) -> int:
        """Return how many jobs to read of each of so many lines."""
        return (max(-(-2 * self.count // max(lines, 1)), LEAST_HEADS)) * self.growth

    def look_at(self, queue: str, blocks: Blocks) -> None:
        heads = self._first_of_open_partitions(queue) if blocks.partitions else []
        new = self._new(queue) if blocks.new else []
        partitions = self._first_of_fair(queue) if blocks.fair else []
        found = readable([*heads, *new, *partitions])
        self.waiting.lines[queue] = [job for job in found if not job.fair_partition]
        self.waiting.fair[queue] = _by_fair_partition(
            [job for job in found if job.fair_partition], self.turns.fair.get(queue, FAIR)
        )
        self.waiting.add_partitions(found)

    def _new(self, queue: str) -> list[Candidate]:
        most = min(self.most, MOST_NEW)
        found = self.available.first(queue, LIMITED, most)
        if len(found) == most:
            self.waiting.is_cut = True
            self.waiting.last_new = min(self.waiting.last_new or rank(found[-1]), rank(found[-1]))
        return found

    def _first_of_open_partitions(self, queue: str) -> list[Candidate]:
        """Return the first ``most`` jobs that wait for partitions with slots, and all of those that go by turns."""
        waiting, dialect = self.waiting, self.available.dialect
        after = self.turns.partitions.pop(queue, PARTITIONS)
        opened, end = blocks_with_slots(dialect, queue, self.available.now, after)
        if end is not None:
            self.turns.partitions[queue] = end
        waiting.is_walk_cut = waiting.is_walk_cut or end is not None or after > PARTITIONS
        again = [
            block
            for partition in self.again
            for block in (partition, *blocks_between(dialect, queue, *fair_blocks_of(partition)))
        ]
        opened = list(dict.fromkeys([*opened, *again]))
        each = self.most_of_each(len(opened))
        heads = self.available.first_of_each(queue, opened, each)
        found: list[Candidate] = []
        for block in opened:
            line = heads.get(block, [])
            waiting.opened.setdefault(block[:ID], None)
            waiting.read_in[block[:ID]].add(queue)
            if len(line) == each:
                waiting.cut(line[-1])
            found += line
        in_line = sorted((job for job in found if not job.fair_partition), key=rank)
        for job in in_line[self.most :]:
            waiting.cut(job)
        return [*(job for job in found if job.fair_partition), *in_line[: self.most]]

    def _first_of_fair(self, queue: str) -> list[Candidate]:
        """Return the first jobs of the partitions that have the next turns."""
        turns = self.turns
        partitions = fair_partitions_in_a_circle(
            self.available.dialect, queue, turns.skipped.pop(queue, turns.fair.get(queue, FAIR)), self.most
        )
        each = self.most_of_each(len(partitions))
        found = [job for line in self.available.first_of_each(queue, partitions, each).values() for job in line]
        if len(partitions) == self.most:
            self.waiting.is_cut = True
            if not found:
                turns.skipped[queue] = partitions[
                    -1
                ]  # they have no job for this claim: the next look begins behind them
        return found


def _by_fair_partition(jobs: Iterable[Candidate], last: str) -> list[list[Candidate]]:
    """Return the jobs of each partition in their order; the partition after the last turn comes first."""
    partitions: dict[str, list[Candidate]] = defaultdict(list)
    for job in sorted(jobs, key=rank):
        partitions[job.fair_partition or ""].append(job)
    return [
        partitions[partition] for partition in sorted(partitions, key=lambda partition: (partition <= last, partition))
    ]
