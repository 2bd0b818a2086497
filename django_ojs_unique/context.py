"""What a job carries from its enqueue to its runs, such as the tenant: the base class of what you write."""

from .handlers.carried import Context

__all__ = ["Context"]
