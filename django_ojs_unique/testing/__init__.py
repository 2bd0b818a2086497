"""Tools to test code that enqueues: run jobs inline, capture and assert enqueued and suppressed jobs, travel in time.

All of them work inside the test's own transaction, and leave nothing behind when the test ends, even if it fails.
"""

from ..execution.inline import Ran
from .asserts import assert_deduplicated, assert_enqueued, assert_not_enqueued, assert_workflow_enqueued
from .capture import Captured, Suppressed, capture_jobs
from .running import crash_at, run_jobs, run_one, temporary_handlers, tick
from .suites import JobFixture, JobTestMixin
from .time_travel import travel

__all__ = [
    "Captured",
    "JobFixture",
    "JobTestMixin",
    "Ran",
    "Suppressed",
    "assert_deduplicated",
    "assert_enqueued",
    "assert_not_enqueued",
    "assert_workflow_enqueued",
    "capture_jobs",
    "crash_at",
    "run_jobs",
    "run_one",
    "temporary_handlers",
    "tick",
    "travel",
]
