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
"""A gate that begins so is the id of a limit's key, for whose slot the job waits."""
AFTER_KEYS: Final = "l"
"""All gates of keys come before it, and all lanes before those."""
LONGEST: Final = 33
"""The longest gate, in characters."""
