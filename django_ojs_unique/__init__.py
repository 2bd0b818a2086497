"""Background jobs in the project's own database, with the Open Job Spec's unique jobs, exactly.

The names below import without a configured Django; models and managers live in `django_ojs_unique.models`.
"""

from .control import Discard, Retry, Skip, TimeLimitExceeded
from .exceptions import DuplicateJob, InvalidPolicy, InvalidRequest, InvalidRetryPolicy, OJSError
from .handlers import JobContext, job
from .ojs import presets
from .ojs.cron import Cron
from .ojs.policy import OnConflict, UniquePolicy
from .ojs.retry import RetryPolicy
from .ojs.states import JobState
from .outcomes import BatchResult, EnqueueResult, ItemResult, Outcome

__all__ = [
    "BatchResult",
    "Cron",
    "Discard",
    "DuplicateJob",
    "EnqueueResult",
    "InvalidPolicy",
    "InvalidRequest",
    "InvalidRetryPolicy",
    "ItemResult",
    "JobContext",
    "JobState",
    "OJSError",
    "OnConflict",
    "Outcome",
    "Retry",
    "RetryPolicy",
    "Skip",
    "TimeLimitExceeded",
    "UniquePolicy",
    "job",
    "presets",
]
__version__ = "0.1.0"
