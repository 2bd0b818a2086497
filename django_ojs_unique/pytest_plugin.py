"""The pytest plugin. It imports Django only when a test uses the fixture, so other projects are not affected."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from .testing import JobFixture


@pytest.fixture
def ojs_jobs() -> Iterator[JobFixture]:
    """Capture what the test enqueues on any database; run jobs, travel in time, and assert what was enqueued."""
    from .testing import JobFixture

    jobs = JobFixture()
    with jobs.listening():
        yield jobs
