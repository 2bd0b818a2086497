"""Import what a worker may need later, so that no job waits for it, and no deploy mixes two versions in a process."""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from django.db import connections

from ..db.dialects import kind_of

_PACKAGES = ("enqueue", "workflows", "operations", "limits", "execution", "maintenance", "worker")


def import_all(using: str) -> None:
    """Import the modules of all packages that do the work, and the dialect of the database."""
    kind_of(connections[using])
    root = __package__.rpartition(".")[0]
    for package in _PACKAGES:
        for module in iter_modules(import_module(f"{root}.{package}").__path__):
            import_module(f"{root}.{package}.{module.name}")
