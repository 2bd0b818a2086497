"""What waits at the gates of some queues: read before a claim's transaction, so it only says where to look."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

from ..ojs.gates import ID, KEYS, LANES, LIMITED, lanes_of
from .candidates import AvailableJobs, Candidate, Rank, rank, readable
from .index_scan import Gates, gates_with_slots, lanes_in_a_circle, walk

LEAST_HEADS = 2
"""How many jobs of a key, or of a lane, the first look of a claim reads at least: most claims take one of each."""
LEAST_NEW, MOST_NEW = 10, 2_000
"""How many jobs of each kind the first look of a claim reads at least, and how many new ones any look reads at most."""
GROWTH = 4
"""How many times as many the next look of a claim reads: those that were read before must wait."""
BEFORE_ALL: Rank = (float("-inf"),)
"""A place before that of every job."""


@dataclass(slots=True)
class Waiting:
    """The first jobs at the gates of some queues.

    ``lines``: the jobs by queue, in no order; ``lanes``: those of each lane, in the order of their turns. ``opened``:
    the keys that had slots, and the place behind which jobs that wait for them were not read; None if all were read.
    ``is_cut``: not all jobs were read that may be claimed. ``is_walk_cut``: not all keys were asked for slots.
    """

    lines: dict[str, list[Candidate]] = field(default_factory=dict)
    lanes: dict[str, list[list[Candidate]]] = field(default_factory=dict)
    keys: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    """The keys of all these jobs: a limit with it, by its id."""
    rates: dict[int, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The keys of all rates that count in so many seconds."""
    opened: dict[str, Rank | None] = field(default_factory=dict)
    read_in: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The queues whose jobs were read that wait for a key."""
    cut_lanes: set[str] = field(default_factory=set)
    """The keys that had slots, and jobs in lanes wait for them that were not read."""
    last_new: Rank | None = None
    """The place of the last new job that was read, if not all were."""
    is_cut: bool = False
    is_walk_cut: bool = False

    def jobs(self) -> Iterator[Candidate]:
        """Yield all these jobs, in no order."""
        yield from chain.from_iterable(self.lines.values())
        for lanes in self.lanes.values():
            yield from chain.from_iterable(lanes)

    @property
    def has_jobs(self) -> bool:
        """Whether there are any."""
        return any(True for _ in self.jobs())

    def has_all_of(self, key: str) -> bool:
        """Tell whether all jobs that wait for a key were read."""
        return key in self.opened and self.opened[key] is None and key not in self.cut_lanes

    def may_be_preceded(self, job: Candidate) -> bool:
        """Tell whether a new job that was not read may come before this one and need the same slots."""
        return self.last_new is not None and bool(job.limits) and not job.lane and rank(job) > self.last_new

    def cut(self, job: Candidate) -> None:
        """Note that jobs behind this one wait for the key at whose gate it is, and were not read."""
        key = job.gate[:ID]
        if job.lane:
            self.cut_lanes.add(key)
            return
        self.opened[key] = min(self.opened[key] or rank(job), rank(job))

    def add_keys(self, jobs: Iterable[Candidate]) -> None:
        """Note the keys of some jobs."""
        for job in jobs:
            for limit in job.limits:
                self.keys[limit["id"]] = limit
                if "seconds" in limit:
                    self.rates[limit["seconds"]].add(limit["id"])


@dataclass(slots=True)
class RoundRobin:
    """Where the looks of this process at each queue ended.

    ``lanes``: the lane that had the last turn; ``skipped``: the last one of those in which a look has found no job;
    ``keys``: the gate at which the last walk ended.
    """

    lanes: dict[str, str] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    keys: dict[str, str] = field(default_factory=dict)


def look(
    available: AvailableJobs,
    gates: Mapping[str, Gates],
    count: int,
    turns: RoundRobin,
    repeated: int = 0,
    again: Collection[str] = (),
) -> Waiting:
    """Read the first jobs at the ``gates`` of some queues, enough to claim ``count`` of them.

    ``turns`` is updated. ``repeated``: how often this claim has looked before.
    ``again``: keys for which jobs wait that must be read.
    """
    one = _WaitingScan(available, count, GROWTH**repeated, turns, again)
    for queue, which in gates.items():
        one.look_at(queue, which)
    return one.waiting


def first_in_line(available: AvailableJobs, queues: Iterable[str], key: str) -> Rank | None:
    """Return the place of the first job of the queues that waits for a slot of a key; None if none does."""
    first: list[Rank] = []
    for queue in queues:
        first += map(rank, available.first(queue, key, 1))
        if available.any_between(queue, *lanes_of(key)):
            first.append(BEFORE_ALL)  # lanes have an order of their own
    return min(first, default=None)


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
        """How many jobs, or lanes, of a queue to read."""
        return max(self.count, LEAST_NEW) * self.growth

    def most_of_each(self, lines: int) -> int:
        """Return how many jobs to read of each of so many lines."""
        return (max(-(-2 * self.count // max(lines, 1)), LEAST_HEADS)) * self.growth

    def look_at(self, queue: str, gates: Gates) -> None:
        heads = self._first_of_open_keys(queue) if gates.keys else []
        new = self._new(queue) if gates.new else []
        lanes = self._first_of_lanes(queue) if gates.lanes else []
        found = readable([*heads, *new, *lanes])
        self.waiting.lines[queue] = [job for job in found if not job.lane]
        self.waiting.lanes[queue] = _by_lane([job for job in found if job.lane], self.turns.lanes.get(queue, LANES))
        self.waiting.add_keys(found)

    def _new(self, queue: str) -> list[Candidate]:
        most = min(self.most, MOST_NEW)
        found = self.available.first(queue, LIMITED, most)
        if len(found) == most:
            self.waiting.is_cut = True
            self.waiting.last_new = min(self.waiting.last_new or rank(found[-1]), rank(found[-1]))
        return found

    def _first_of_open_keys(self, queue: str) -> list[Candidate]:
        """Return the first ``most`` jobs that wait for keys with slots, and all that were read of those in lanes."""
        waiting, dialect = self.waiting, self.available.dialect
        after = self.turns.keys.pop(queue, KEYS)
        opened, end = gates_with_slots(dialect, queue, self.available.now, after)
        if end is not None:
            self.turns.keys[queue] = end
        waiting.is_walk_cut = waiting.is_walk_cut or end is not None or after > KEYS
        again = [gate for key in self.again for gate in (key, *walk(dialect, queue, *lanes_of(key)))]
        opened = list(dict.fromkeys([*opened, *again]))
        each = self.most_of_each(len(opened))
        heads = self.available.first_of_each(queue, opened, each)
        found: list[Candidate] = []
        for gate in opened:
            line = heads.get(gate, [])
            waiting.opened.setdefault(gate[:ID], None)
            waiting.read_in[gate[:ID]].add(queue)
            if len(line) == each:
                waiting.cut(line[-1])
            found += line
        in_line = sorted((job for job in found if not job.lane), key=rank)
        for job in in_line[self.most :]:
            waiting.cut(job)
        return [*(job for job in found if job.lane), *in_line[: self.most]]

    def _first_of_lanes(self, queue: str) -> list[Candidate]:
        """Return the first jobs of the lanes that have the next turns."""
        turns = self.turns
        lanes = lanes_in_a_circle(
            self.available.dialect, queue, turns.skipped.pop(queue, turns.lanes.get(queue, LANES)), self.most
        )
        each = self.most_of_each(len(lanes))
        found = [job for line in self.available.first_of_each(queue, lanes, each).values() for job in line]
        if len(lanes) == self.most:
            self.waiting.is_cut = True
            if not found:
                turns.skipped[queue] = lanes[-1]  # they have no job for this claim: the next look begins behind them
        return found


def _by_lane(jobs: Iterable[Candidate], last: str) -> list[list[Candidate]]:
    """Return the jobs of each lane in their order; the lane after the last turn comes first."""
    lanes: dict[str, list[Candidate]] = defaultdict(list)
    for job in sorted(jobs, key=rank):
        lanes[job.lane or ""].append(job)
    return [lanes[lane] for lane in sorted(lanes, key=lambda lane: (lane <= last, lane))]
