"""Tools to test code that enqueues: run jobs inline, capture and assert enqueued and suppressed jobs, travel in time.

All of them work inside the test's own transaction, and leave nothing behind when the test ends, even if it fails.
"""

from ..execution.inline import Ran
from .asserts import assert_deduplicated, assert_enqueued, assert_not_enqueued, assert_workflow_enqueued
from .capture import Captured, Suppressed, capture_jobs
from .running import crash_at, run_jobs, run_one, temporary_handlers, tick
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


class _Helpers:
    run_jobs = staticmethod(run_jobs)
    run_one = staticmethod(run_one)
    tick = staticmethod(tick)
    travel = staticmethod(travel)
    temporary_handlers = staticmethod(temporary_handlers)
    assert_workflow_enqueued = staticmethod(assert_workflow_enqueued)


class JobTestMixin(_Helpers):
    """Methods for a `TestCase` or a `TransactionTestCase`: the functions of this module."""

    capture_jobs = staticmethod(capture_jobs)
    assert_enqueued = staticmethod(assert_enqueued)
    assert_not_enqueued = staticmethod(assert_not_enqueued)
    assert_deduplicated = staticmethod(assert_deduplicated)


class JobFixture(_Helpers, Captured):
    """The value of the fixture ``ojs_jobs``: the test's captured enqueues with their assertions, and the helpers."""
