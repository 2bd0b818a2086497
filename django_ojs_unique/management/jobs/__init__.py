"""The subcommands of ``manage.py jobs``, one class each."""

from .around import Crons, Queues, Workers
from .look import List, Show
from .operate import Cancel, Limit, Pause, Release, Resume, Retry
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
    Release,
    Queues,
    Workers,
    Crons,
    Pause,
    Resume,
    Limit,
    Verify,
    Rekey,
]

__all__ = ["SUBCOMMANDS", "Subcommand"]
