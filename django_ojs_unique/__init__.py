"""Background jobs in the project's own database, with unique jobs exactly as the Open Job Spec defines them.

The names below can be imported before Django is configured. Models and managers are in `django_ojs_unique.models`.
"""

from typing import TYPE_CHECKING, TypeAlias

from .enqueue.results import Outcome
from .exceptions import (
    DuplicateJob,
    InvalidPolicy,
    InvalidRequest,
    InvalidRetryPolicy,
    InvalidWorkflow,
    LeaseLost,
    OJSError,
)
from .handlers.context import JobContext
from .handlers.control import Discard, Retry, Skip, TimeLimitExceeded
from .handlers.declare import job
from .ojs.cron import Cron
from .ojs.limits import Limit
from .ojs.retry import RetryPolicy
from .ojs.states import JobState
from .unique import presets
from .unique.policy import OnConflict, UniquePolicy
from .workflows.compose import batch, chain, group

if TYPE_CHECKING:
    from .enqueue import results
    from .models import Job

    BulkEnqueueResult: TypeAlias = results.BulkEnqueueResult[Job]
    EnqueueResult: TypeAlias = results.EnqueueResult[Job]
    ItemResult: TypeAlias = results.ItemResult[Job]
else:
    from .enqueue.results import BulkEnqueueResult, EnqueueResult, ItemResult

    _ELSEWHERE = {
        **dict.fromkeys(
            ("Job", "CronJob", "Event", "LimitOverride", "Queue", "SuppressedEnqueue", "WorkerProcess", "Workflow"),
            "models",
        ),
        **dict.fromkeys(("run_jobs", "run_one", "travel", "tick", "capture_jobs", "assert_enqueued"), "testing"),
        **dict.fromkeys(("OJSBackend",), "tasks"),
    }

    def __getattr__(name: str):  # an ImportError, as `from ... import` hides the words of an AttributeError
        if name in _ELSEWHERE:
            message = (
                f"{name} is in {__name__}.{_ELSEWHERE[name]}: write from {__name__}.{_ELSEWHERE[name]} import {name}"
            )
            raise ImportError(message, name=__name__)
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "BulkEnqueueResult",
    "Cron",
    "Discard",
    "DuplicateJob",
    "EnqueueResult",
    "InvalidPolicy",
    "InvalidRequest",
    "InvalidRetryPolicy",
    "InvalidWorkflow",
    "ItemResult",
    "JobContext",
    "JobState",
    "LeaseLost",
    "Limit",
    "OJSError",
    "OnConflict",
    "Outcome",
    "Retry",
    "RetryPolicy",
    "Skip",
    "TimeLimitExceeded",
    "UniquePolicy",
    "batch",
    "chain",
    "group",
    "job",
    "presets",
]
__version__ = "0.1.0"
