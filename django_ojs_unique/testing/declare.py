"""Handlers that a test declares for itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..registry import registry


@contextmanager
def temporary_handlers() -> Iterator[None]:
    """Forget at the end of the block what `@job` declared in it, and know again what it replaced."""
    before = registry.definitions()
    try:
        yield
    finally:
        for type in list(registry):
            registry.unregister(type)
        for definition in before:
            registry.register(definition)
