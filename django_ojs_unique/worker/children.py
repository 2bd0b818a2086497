"""The end of a worker's process beside processes that its handlers have started with `multiprocessing`."""

from __future__ import annotations

import os
import sys
from typing import Any, NoReturn


def children(*, daemon: bool) -> list[Any]:
    """Return the processes of `multiprocessing` that this one has started and that live: daemons, or others."""
    multiprocessing = sys.modules.get("multiprocessing")
    living = [] if multiprocessing is None else multiprocessing.active_children()
    return [child for child in living if child.daemon is daemon]


def end_at_once(code: int) -> NoReturn:
    """End this process without its threads, and its daemons with it, as the interpreter would when it ends."""
    try:
        for child in children(daemon=True):
            child.terminate()
    finally:
        os._exit(code)
