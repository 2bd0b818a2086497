"""Find and repair inconsistencies of uniqueness (`verify`), and apply a changed policy to stored jobs (`rekey`)."""

from .operations.integrity import Findings, Kind, Rekeyed, rekey, verify

__all__ = ["Findings", "Kind", "Rekeyed", "rekey", "verify"]
