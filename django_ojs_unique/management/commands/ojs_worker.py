"""``manage.py ojs_worker``: `runworker` under a name that no other package uses."""

from .runworker import Command

__all__ = ["Command"]
