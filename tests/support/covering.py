"""The part of a matrix that each run tries; the rest is left to `make release-check`."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import combinations, product
from typing import Any

import pytest


def covering(*axes: Iterable[Any]) -> list[Any]:
    """Return all combinations for `parametrize`; mark those ``release`` whose pairs of values others have as well."""
    lists = [[*enumerate(axis)] for axis in axes]
    fewest = min(map(len, lists))
    # In this order the first ones share as few pairs as those of a Latin square.
    cases = sorted(product(*lists), key=lambda case: sum(place for place, _ in case) % fewest)
    seen: set[Any] = set()
    chosen = []
    for case in cases:
        pairs = {*combinations([(axis, place) for axis, (place, _) in enumerate(case)], 2)}
        values = (value for _, value in case)
        chosen.append(pytest.param(*values, marks=[pytest.mark.release] if pairs <= seen else []))
        seen |= pairs
    return chosen
