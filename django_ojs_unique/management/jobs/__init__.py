"""The subcommands of ``manage.py jobs``, one class each."""

from .change_jobs import Cancel, EnqueueAgain, Release, Retry
from .change_queues import Limit, Pause, Resume
from .explain import Duplicates, Explain
from .integrity import Rekey, Verify
from .show_jobs import List, Show
from .show_system import Crons, Queues, Workers
from .subcommand import Subcommand

SUBCOMMANDS: list[type[Subcommand]] = [
    List,
    Show,
    Explain,
    Duplicates,
    Cancel,
    Retry,
    EnqueueAgain,
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
