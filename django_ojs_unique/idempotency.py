"""Help for handlers that are safe to repeat."""

from .execution.idempotency import Heal, ScanResult, locked, scan

__all__ = ["Heal", "ScanResult", "locked", "scan"]
