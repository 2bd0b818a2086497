"""Upkeep: find and mend what does not agree about uniqueness, and follow a policy that changed."""

from .kinds import Kind
from .rekey import Rekeyed, rekey
from .verify import Findings, verify

__all__ = ["Findings", "Kind", "Rekeyed", "rekey", "verify"]
