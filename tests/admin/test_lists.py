"""Every list of the admin shows its rows, searches and changes nothing."""

import pytest
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Job, Queue, SuppressedEnqueue, WorkerProcess

pytestmark = pytest.mark.django_db


def rows():
    """Make a row of each kind."""
    now = timezone.now()
    policy = UniquePolicy(on_conflict="ignore")
    Job.objects.enqueue("email.send", unique=policy)
    Job.objects.enqueue("email.send", unique=policy)
    Queue.objects.pause("emails")
    WorkerProcess.objects.create(
        id="host:1:ab", hostname="host", pid=1, queues=["*"], concurrency=4, started_at=now, heartbeat_at=now
    )


@pytest.mark.slow
@pytest.mark.parametrize("model", [Job, Queue, WorkerProcess, SuppressedEnqueue])
def test_each_page_shows_its_rows_searches_and_changes_nothing(model, admin_client):
    rows()
    name = model._meta.model_name
    page = reverse(f"admin:django_ojs_unique_{name}_changelist")
    row = model.objects.first()
    assert admin_client.get(page).context["cl"].result_count >= 1
    assert admin_client.get(page, {"q": str(row.pk)}).status_code == 200
    assert admin_client.get(reverse(f"admin:django_ojs_unique_{name}_change", args=[row.pk])).status_code == 200
    assert admin_client.get(reverse(f"admin:django_ojs_unique_{name}_add")).status_code == 403
    admin_client.post(reverse(f"admin:django_ojs_unique_{name}_delete", args=[row.pk]))
    assert model.objects.filter(pk=row.pk).exists()
