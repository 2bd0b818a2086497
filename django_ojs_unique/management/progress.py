"""Progress bars."""

from __future__ import annotations

from typing import Any


def progress(verbosity: int, **options: Any) -> Any:
    """Return a `tqdm` that counts jobs on stderr; it shows nothing with verbosity 0, or if stderr is no terminal."""
    from tqdm import tqdm  # most commands show none

    return tqdm(unit="job", disable=None if verbosity else True, **options)
