"""The base class of what jobs carry from their enqueue to their runs, such as the tenant."""

from .handlers.carried import Context

__all__ = ["Context"]
