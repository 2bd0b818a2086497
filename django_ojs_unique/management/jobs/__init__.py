"""The subcommands of ``manage.py jobs``, one class each."""

from .args_index import IndexArgs
from .change_jobs import Cancel, EnqueueAgain, Release
from .change_queues import Limit, Pause, Resume
from .explain import Duplicates, Explain
from .integrity import Rekey, Verify
from .limits import Limits
from .retry_jobs import Retry
from .show_jobs import List, Show
from .show_system import Crons, Queues, Workers
from .subcommand import Subcommand
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
