"""Receivers of the signals of an enqueue."""

from __future__ import annotations

import pytest

from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_enqueued

pytestmark = pytest.mark.django_db


@pytest.mark.parametrize("options", [{}, {"unique": {"keys": ["type"]}}, {"key": "k"}], ids=["plain", "policy", "key"])
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_receiver_may_save_the_job(options, many):
    def receive(job, **_):
        job.meta = {"seen": True}
        job.save()

    job_enqueued.connect(receive)
    try:
        if many:
            Job.objects.enqueue_many([{"type": "email.send", **options}])
        else:
            Job.objects.enqueue("email.send", **options)
    finally:
        job_enqueued.disconnect(receive)
    assert Job.objects.get().meta == {"seen": True}
