"""Tests of code that enqueues: run jobs inline, capture and assert what was enqueued and suppressed, travel in time.

All of it works in the test's own transaction, and leaves nothing behind when the test ends, however it ends.
"""

from .asserts import assert_deduplicated, assert_enqueued, assert_not_enqueued
from .capture import Captured, Suppressed, capture_jobs
from .declare import temporary_handlers
from .running import Ran, run_jobs, run_one, tick
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
    "capture_jobs",
    "run_jobs",
    "run_one",
    "temporary_handlers",
    "tick",
    "travel",
]
