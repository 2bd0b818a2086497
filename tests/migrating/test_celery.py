"""The forwarder of the guide; Celery itself is not needed for it."""

from __future__ import annotations

from types import SimpleNamespace
from uuid import uuid4

import pytest
from django.utils import timezone

from django_ojs_unique import OnConflict, job
from django_ojs_unique.models import Job

pytestmark = pytest.mark.django_db


@pytest.fixture
def forward(modules_of):
    return modules_of("migrate-from-celery.md").forwarding.forward


def a_message(*args, **kwargs):
    return SimpleNamespace(id=str(uuid4()), args=args, kwargs=kwargs)


@pytest.mark.parametrize("on_conflict", [None, *OnConflict])
@pytest.mark.parametrize("moment", [{}, {"state": "active"}, {"state": "completed", "finished_at": timezone.now()}])
def test_a_second_delivery_changes_nothing(forward, moment, on_conflict):
    @job("moved", unique=None if on_conflict is None else {"keys": ["args"], "on_conflict": on_conflict})
    def moved(number): ...

    message = a_message(1)
    forward(message, moved)
    Job._base_manager.filter(pk=message.id).update(**{"state": "available", **moment})
    forward(message, moved)
    assert list(Job.objects.values_list("state", flat=True)) == [moment.get("state", "available")]
    assert str(Job.objects.get().pk) == message.id


@pytest.mark.parametrize("on_conflict", ["reject", "ignore"])
def test_a_message_whose_work_is_queued_here_is_dropped(forward, on_conflict):
    @job("moved", unique={"keys": ["args"], "on_conflict": on_conflict})
    def moved(number): ...

    here = moved.enqueue(1).job
    forward(a_message(1), moved)
    assert Job.objects.get() == here
