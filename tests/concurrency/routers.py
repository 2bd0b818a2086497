"""Routers that tests install."""

from __future__ import annotations

from typing import Any


class WriteToOther:
    """Writes go to ``other``; reads to ``default``, as if it were a replica that lags forever behind."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "other"

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "default"


class ReadFromOther:
    """Reads go to ``other``, an empty replica; writes to ``default``."""

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "other"
