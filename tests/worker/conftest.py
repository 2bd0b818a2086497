from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.utils import timezone

from django_ojs_unique.models import Job
from django_ojs_unique.worker.claim import claim

from .commands import Site, site

LEASE = timedelta(seconds=30)


@pytest.fixture
def take() -> Callable[..., list[Job]]:
    """Claim jobs as a worker would."""

    def take(
        limit: int = 10, *, queues: tuple[str, ...] = ("default",), types: tuple[str, ...] = ("t",), **changes: Any
    ):
        options = {"worker_id": "w1", "lease": LEASE, "now": timezone.now(), **changes}
        return claim(Job.objects.all(), queues=queues, types=types, limit=limit, **options)

    return take


@pytest.fixture
def place(tmp_path: Path, transactional_db: None) -> Iterator[Site]:
    """A folder and a database in which commands run beside the test."""
    with site(tmp_path) as place:
        yield place
