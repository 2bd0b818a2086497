"""The programs in ``examples/``."""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

from tests.support.processes import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    """Import an example."""
    specification = spec_from_file_location(f"examples_{name.removesuffix('.py')}", EXAMPLES / name)
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


def eventually(enough: Callable[[], bool]) -> None:
    """Return as soon as it is so."""
    deadline = time.monotonic() + PATIENCE
    while not enough():
        assert time.monotonic() < deadline, "It never came to pass."
        time.sleep(0.01)
