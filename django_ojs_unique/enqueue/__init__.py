"""Enqueue: from a caller's arguments to one row, or to the reason why nothing is stored."""

from typing import Final


class _Inherit:
    def __repr__(self) -> str:
        return "<the handler's>"


INHERIT: Final = _Inherit()
"""The default of options that None switches off: use what the handler declared."""
