"""Help for handlers that are safe to repeat."""

from .execution.idempotency import Heal, SweepResult, locked, sweep

__all__ = ["Heal", "SweepResult", "locked", "sweep"]
