"""Two loops that take turns, and the ratio of their rates."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Call = Callable[[int], object]


def report(name: str, pairs: Sequence[Sequence[float]], goal: str) -> float:
    """Print the median rates of turns in pairs (bare, ours) and the median ratio of ours to bare; return the ratio."""
    ratios = sorted(ours / bare for bare, ours in pairs)
    bare, ours = (statistics.median(column) for column in zip(*pairs, strict=True))
    print(
        f"{name:<44} bare {bare:>7,.0f}/s  ours {ours:>7,.0f}/s  ratio"
        f" {statistics.median(ratios):.2f} ({ratios[0]:.2f}-{ratios[-1]:.2f})  goal {goal}"
        + ("" if goal == "-" else " met" if statistics.median(ratios) >= float(goal) else " MISSED"),
        flush=True,
    )
    return statistics.median(ratios)


@dataclass(frozen=True)
class Turns:
    """The length of a turn in seconds, and the number of pairs of turns."""

    seconds: float
    rounds: int

    def compare(self, name: str, bare: Call, ours: Call, goal: str) -> float:
        """Print the rates of two loops and the median ratio of ours to the bare one, pair by pair; return the ratio."""
        for call in (bare, ours):
            for number in range(30):
                call(-1 - number)
        pairs, count = [], 0
        for _ in range(self.rounds):
            rates = []
            for call in (bare, ours):
                rate, count = self._turn(call, count)
                rates.append(rate)
            pairs.append(rates)
        return report(name, pairs, goal)

    def _turn(self, call: Call, count: int) -> tuple[float, int]:
        begin = time.perf_counter()
        end, done = begin + self.seconds, 0
        while (now := time.perf_counter()) < end:
            for _ in range(10):
                call(count)
                count += 1
                done += 1
        return done / (now - begin), count
