"""Every surface says every number as plain SQL does, in a database with a state of every kind."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from django_ojs_unique.models import Job, SuppressedEnqueue, WorkerProcess
from tests.reporting.everywhere import situation
from tests.reporting.everywhere.groups import OVERALL
from tests.reporting.everywhere.jobs import JOBS
from tests.reporting.everywhere.past import PAST
from tests.reporting.everywhere.surfaces import Surfaces
from tests.reporting.everywhere.system import AROUND

pytestmark = [pytest.mark.every_database, pytest.mark.django_db, pytest.mark.slow]

NUMBERS = {**JOBS, **AROUND, **OVERALL, **PAST}
QUESTIONS = [
    pytest.param(name, surface, id=f"{name}: {surface}")
    for name, number in NUMBERS.items()
    for surface in number.surfaces
]


@pytest.fixture(scope="module")
def everything(django_db_setup: None, django_db_blocker: Any) -> Iterator[None]:
    """Fill the database once: the transactions of the tests are within this one."""
    with django_db_blocker.unblock(), situation.handlers(), transaction.atomic():
        logging.disable(logging.WARNING)
        situation.fill()
        logging.disable(logging.NOTSET)
        yield
        transaction.set_rollback(True)


@pytest.fixture
def ask(everything: None) -> Surfaces:
    now = timezone.now()
    WorkerProcess.objects.exclude(id__startswith="silent").update(heartbeat_at=now)
    # These are what happened in the last minute, which a slow machine lets pass before it asks.
    Job._base_manager.filter(type="step", finished_at__gt=now - situation.HOUR).update(finished_at=now)
    SuppressedEnqueue.objects.filter(created_at__gt=now - situation.HOUR).update(created_at=now)
    return Surfaces()


@pytest.mark.parametrize(("name", "surface"), QUESTIONS)
def test_a_surface_says_what_plain_sql_says(ask: Surfaces, name: str, surface: str) -> None:
    number = NUMBERS[name]
    told = number.surfaces[surface](ask)
    if told != number.sql():  # a minute may have ended between the two questions
        told = number.surfaces[surface](ask)
    expected = number.sql()
    assert told == expected
    assert expected, "the database has nothing of this kind"
