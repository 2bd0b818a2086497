"""The subcommands of ``manage.py jobs``, one class each."""

from .change_jobs import Cancel, EnqueueAgain, Release, Remove, Retry
from .change_queues import Limit, Pause, Resume
from .explain import Duplicates, Explain
from .inbox import Inbox
from .limits import Limits
from .show_jobs import List, Show
from .show_system import Crons, Queues, Workers
from .subcommand import Subcommand
from .upkeep import IndexArgs, Rekey, Verify
from .workflows import CancelWorkflow, ShowWorkflow, Workflows

SUBCOMMANDS: list[type[Subcommand]] = [
    List,
    Show,
    Explain,
    Duplicates,
    Cancel,
    Retry,
    EnqueueAgain,
    Release,
    Remove,
    Inbox,
    Queues,
    Workers,
    Crons,
    Workflows,
    ShowWorkflow,
    CancelWorkflow,
    Pause,
    Resume,
    Limit,
    Limits,
    Verify,
    Rekey,
    IndexArgs,
]

__all__ = ["SUBCOMMANDS", "Subcommand"]
