"""Find and repair inconsistencies of uniqueness (verify), and apply a changed policy to stored jobs (rekey)."""

from .problems import BY_HAND, Kind
from .rekey import Rekeyed, rekey
from .verify import Findings, verify

__all__ = ["BY_HAND", "Findings", "Kind", "Rekeyed", "rekey", "verify"]
