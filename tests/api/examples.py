"""The programs in ``examples/``."""

from __future__ import annotations

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from typing import Any

EXAMPLES = Path(__file__).parents[2] / "examples"


def load(name: str) -> Any:
    """Import an example."""
    specification = spec_from_file_location(f"examples_{name.removesuffix('.py')}", EXAMPLES / name)
    assert specification is not None
    assert specification.loader is not None
    module = module_from_spec(specification)
    specification.loader.exec_module(module)
    return module
