"""Handlers that vanish."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from django_ojs_unique.handlers.registry import Registry, registry


@contextmanager
def declared() -> Iterator[Registry]:
    """Undo, behind the block's end, what the block did to the registry of handlers."""
    before = registry.definitions()
    try:
        yield registry
    finally:
        forget_all()
        for definition in before:
            registry.register(definition)


def forget_all() -> None:
    """Empty the registry."""
    for type in list(registry):
        registry.unregister(type)
