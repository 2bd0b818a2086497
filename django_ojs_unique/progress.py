"""Progress bars of long work. They are those of `tqdm`, where it is installed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

Bars = Callable[..., Any]
"""Makes progress bars from `tqdm`'s ``desc`` and ``total``."""


class NoBar:
    """What is used here of a bar of `tqdm`; it shows nothing."""

    disable = True
    n = 0

    def __init__(self, **options: Any) -> None:
        self.total = options.get("total")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        pass

    def update(self, more: int = 1) -> None:
        pass

    def close(self) -> None:
        pass


def progress(verbosity: int, **options: Any) -> Any:
    """Return a bar that counts jobs on stderr.

    It shows nothing with verbosity 0, if stderr is no terminal, or without `tqdm`
    (``pip install django-ojs-unique[progress]``).
    """
    try:
        from tqdm import tqdm  # most commands show none
    except ImportError:
        return NoBar(**options)
    return tqdm(unit="job", disable=None if verbosity else True, **options)
