"""Find and repair inconsistencies of uniqueness (verify), and apply a changed policy to stored jobs (rekey)."""

from .problems import Kind
from .rekey import Rekeyed, rekey
from .verify import Findings, verify

__all__ = ["Findings", "Kind", "Rekeyed", "rekey", "verify"]
