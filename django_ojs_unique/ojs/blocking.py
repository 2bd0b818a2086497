"""Blocking: what keeps an available job from being claimed. A row's ``blocked_by`` is a text in the claim's index."""

from __future__ import annotations

from typing import Final

UNBLOCKED: Final = ""
"""Nothing: any worker may claim the job."""
LIMITED: Final = "0"
"""Its limits: no claim has looked at them yet."""
FAIR: Final = "f"
"""A value that begins so is the job's partition in a fair queue: the partitions take turns."""
PARTITIONS: Final = "k"
"""A value that begins so is a partition of a limit. An available job waits for a slot of it, and in a fair queue its
partition there follows; the row of a running job is a slot of it."""
AFTER_PARTITIONS: Final = "l"
"""All partitions of limits come before it, and all of fair queues before those."""
ID: Final = 33
"""The length of a partition's id, in characters."""
LONGEST: Final = 2 * ID
"""The longest value, in characters."""


def through(block: str) -> str:
    """Return a bound between a value and all later ones."""
    return block + FAIR


def fair_blocks_of(partition: str) -> tuple[str, str]:
    """Return the bounds between which the values are of jobs in fair queues that wait for a limit's partition."""
    return partition + FAIR, partition + PARTITIONS
