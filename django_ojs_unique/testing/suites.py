"""The helpers as a mixin for `unittest`, and as the value of the pytest fixture."""

from __future__ import annotations

from .asserts import assert_deduplicated, assert_enqueued, assert_not_enqueued
from .capture import Captured, capture_jobs
from .running import run_jobs, run_one, temporary_handlers, tick
from .time_travel import travel


class _Helpers:
    run_jobs = staticmethod(run_jobs)
    run_one = staticmethod(run_one)
    tick = staticmethod(tick)
    travel = staticmethod(travel)
    temporary_handlers = staticmethod(temporary_handlers)


class JobTestMixin(_Helpers):
    """Methods for a `TestCase` or a `TransactionTestCase`: the functions of `django_ojs_unique.testing`."""

    capture_jobs = staticmethod(capture_jobs)
    assert_enqueued = staticmethod(assert_enqueued)
    assert_not_enqueued = staticmethod(assert_not_enqueued)
    assert_deduplicated = staticmethod(assert_deduplicated)


class JobFixture(_Helpers, Captured):
    """The value of the fixture ``ojs_jobs``: the test's captured enqueues with their assertions, and the helpers."""
