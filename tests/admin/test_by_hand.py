"""Rows that somebody wrote manually, and forms that somebody made up, get a page and no error 500."""

import pytest
from django.db import connection
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique.models import CronJob, Job, Queue, WorkerProcess

pytestmark = pytest.mark.django_db

DIGITS = f"[{'9' * 5000}]"
DEEP = "[" * 5000 + "]" * 5000


def url(name, *args):
    return reverse(f"admin:django_ojs_unique_{name}", args=args)


def write(row, **columns):
    """Write text into columns, as SQL does."""
    key = row._meta.pk.get_db_prep_value(row.pk, connection)
    changes = ", ".join(f"{connection.ops.quote_name(column)} = %s" for column in columns)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {row._meta.db_table} SET {changes} WHERE id = %s", [*columns.values(), key])


def a_job(**options):
    return Job.objects.enqueue("email.send", **options).job


@pytest.mark.slow
@pytest.mark.parametrize("column", ["args", "meta", "retry_options", "errors", "result", "unique"])
def test_a_job_shows_json_that_python_cannot_read(admin_client, column):
    job = a_job(unique={})
    write(job, **{column: DIGITS})
    for page in (url("job_change", job.pk), url("job_changelist")):
        assert admin_client.get(page).status_code == 200


@pytest.mark.slow
def test_a_worker_with_unreadable_queues_leaves_the_dashboard_standing(admin_client):
    now = timezone.now()
    worker = WorkerProcess.objects.create(
        id="w", hostname="h", pid=1, queues=["*"], concurrency=1, started_at=now, heartbeat_at=now
    )
    write(worker, queues=DIGITS)
    assert admin_client.get(url("dashboard")).status_code == 200
    assert admin_client.get(url("workerprocess_changelist")).status_code == 200


@pytest.mark.slow
def test_errors_of_any_kind_are_shown(admin_client):
    job = a_job()
    for errors in ([{"retryable": True, "retry_delay_ms": 10**300}], [[], None, 7, "no record"], {"no": "list"}):
        Job.objects.filter(pk=job.pk).update(errors=errors)
        assert admin_client.get(url("job_change", job.pk)).status_code == 200


def test_of_thousands_of_errors_the_newest_hundred_are_shown(admin_client):
    job = a_job()
    Job.objects.filter(pk=job.pk).update(errors=[{"message": f"failure {n}"} for n in range(3000)])
    page = admin_client.get(url("job_change", job.pk)).content.decode()
    assert page.count('class="ojs-failure"') == 100
    assert "failure 2999" in page
    assert "failure 2899<" not in page


def test_a_job_whose_fingerprint_is_no_hash_can_be_retried():
    job = a_job(unique={})
    Job._base_manager.filter(pk=job.pk).update(
        fingerprint="..", state="discarded", finished_at=timezone.now(), unique_states=frozenset()
    )
    job.refresh_from_db()
    job.retry()
    assert job.state == "available"


def test_the_limit_of_a_queue_whose_name_is_none_is_refused_beside_the_form(admin_client):
    Queue.objects.create(name="A B")
    answer = admin_client.post(url("queue_change", "A B"), {"concurrency_limit": "3", "shown_limit": ""})
    assert answer.status_code == 200
    assert "queue: is not a valid name" in answer.content.decode()


@pytest.mark.slow
@pytest.mark.parametrize("value", [DEEP, DIGITS, '{"a": "\\ud800"}', "{", "NaN"])
@pytest.mark.parametrize("field", ["args", "options"])
def test_a_cron_job_is_not_added_with_json_that_cannot_be_kept(admin_client, field, value):
    form = {"name": "n", "expression": "@daily", "timezone": "UTC", "overlap_policy": "skip", "type": "t"}
    answer = admin_client.post(url("cronjob_add"), {**form, "args": "{}", "options": "{}", field: value})
    assert answer.status_code == 200
    assert answer.context["adminform"].form.errors
    assert not CronJob.objects.exists()


@pytest.mark.parametrize("name", ["queue_change", "workerprocess_change", "cronjob_change"])
def test_what_no_id_can_be_is_not_found(admin_client, name):
    assert admin_client.get(url(name, "a\0b"), follow=True).status_code == 200


@pytest.mark.parametrize("name", ["queue_changelist", "cronjob_changelist"])
def test_an_action_on_what_no_id_can_be_is_refused(admin_client, name):
    assert admin_client.post(url(name), {"action": "pause", "_selected_action": "\0"}).status_code == 400
