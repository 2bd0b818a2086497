"""Numbers of things in English, for commands and errors."""

from __future__ import annotations


def counted(number: int, what: str) -> str:
    """Say how many there are: "1 job", "2,000 jobs"."""
    return f"{number:,} {what}{'' if number == 1 else 's'}"
