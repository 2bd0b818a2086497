"""Gates: what an available job must pass before a worker may claim it. They are texts in the claim's index."""

from __future__ import annotations

from typing import Final

OPEN: Final = ""
"""Nothing: any worker may claim the job."""
LIMITED: Final = "0"
"""Its limits: no claim has looked at them yet."""
LANES: Final = "f"
"""A gate that begins so is a lane of a fair queue; the claims go round the lanes."""
KEYS: Final = "k"
"""A gate that begins so is the id of a limit's key. An available job waits for a slot of it, and in a fair queue its
lane follows; the row of a running job is a slot of it."""
AFTER_KEYS: Final = "l"
"""All gates of keys come before it, and all lanes before those."""
ID: Final = 33
"""The length of a key's id and of a lane, in characters."""
LONGEST: Final = 2 * ID
"""The longest gate, in characters."""


def through(gate: str) -> str:
    """Return a bound between a gate and all later ones."""
    return gate + LANES


def lanes_of(key: str) -> tuple[str, str]:
    """Return the bounds between which the gates of a key's lanes are."""
    return key + LANES, key + KEYS
