"""Handlers that exist only in a test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ..handlers.registry import registry


@contextmanager
def temporary_handlers() -> Iterator[None]:
    """At the end of the block, remove the handlers that `@job` declared in it, and restore those that it replaced."""
    before = registry.definitions()
    try:
        yield
    finally:
        for type in list(registry):
            registry.unregister(type)
        for definition in before:
            registry.register(definition)
