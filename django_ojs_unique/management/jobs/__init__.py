"""The subcommands of ``manage.py jobs``, one class each."""

from .look import List, Queues, Show
from .operate import Cancel, Limit, Pause, Resume, Retry
from .subcommand import Subcommand
from .upkeep import Rekey, Verify
from .why import Duplicates, Explain

SUBCOMMANDS: list[type[Subcommand]] = [
    List,
    Show,
    Explain,
    Duplicates,
    Cancel,
    Retry,
    Queues,
    Pause,
    Resume,
    Limit,
    Verify,
    Rekey,
]

__all__ = ["SUBCOMMANDS", "Subcommand"]
