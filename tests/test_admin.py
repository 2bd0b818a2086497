"""The admin: every page reads, and the actions say what they did to each job."""

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.auth.models import Permission, User
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import CronJob, Job, Queue, SuppressedAttempt, WorkerProcess

pytestmark = pytest.mark.django_db


def rows():
    """Make a row of each kind."""
    now = timezone.now()
    policy = UniquePolicy(on_conflict="ignore")
    Job.objects.enqueue("email.send", unique=policy)
    Job.objects.enqueue("email.send", unique=policy)
    Queue.objects.pause("emails")
    CronJob.objects.create(name="nightly", expression="0 3 * * *", type="report.nightly")
    WorkerProcess.objects.create(
        id="host:1:ab", hostname="host", pid=1, queues=["*"], concurrency=4, started_at=now, heartbeat_at=now
    )


def user(*permissions):
    user = User.objects.create_user("ada", password="x", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=permissions))
    return user


@pytest.mark.parametrize("model", [Job, Queue, WorkerProcess, CronJob, SuppressedAttempt])
def test_each_page_shows_its_rows_searches_and_changes_nothing(model, admin_client):
    rows()
    name = model._meta.model_name
    page = reverse(f"admin:django_ojs_unique_{name}_changelist")
    row = model.objects.first()
    assert admin_client.get(page).context["cl"].result_count == 1
    assert admin_client.get(page, {"q": str(row.pk)}).status_code == 200
    assert admin_client.get(reverse(f"admin:django_ojs_unique_{name}_change", args=[row.pk])).status_code == 200
    assert admin_client.get(reverse(f"admin:django_ojs_unique_{name}_add")).status_code == 403
    assert admin_client.post(reverse(f"admin:django_ojs_unique_{name}_delete", args=[row.pk])).status_code == 403


PAGE = "admin:django_ojs_unique_job_changelist"


@pytest.mark.parametrize("term", ["{id}", "email", "emails", "{fingerprint:.8}"])
def test_a_job_is_found_by_its_id_its_queue_and_the_beginning_of_its_type_or_fingerprint(admin_client, term):
    row = Job.objects.enqueue("email.send", queue="emails", unique={}).job
    Job.objects.enqueue("other")
    found = admin_client.get(reverse(PAGE), {"q": term.format(id=row.pk, fingerprint=row.fingerprint)})
    assert [job.pk for job in found.context["cl"].result_list] == [row.pk]


def act(client, action, jobs):
    """Use an action; return the messages."""
    answer = client.post(reverse(PAGE), {"action": action, "_selected_action": [job.pk for job in jobs]}, follow=True)
    assert answer.status_code == 200
    return [str(message) for message in answer.context["messages"]]


def enqueue(**options):
    return Job.objects.enqueue("email.send", **options).job


def discard(job):
    Job.objects.filter(pk=job.pk).update(state="discarded", finished_at=timezone.now(), guarded_states=frozenset())
    return job


def test_a_viewer_sees_no_actions_and_cannot_use_them(client):
    job = enqueue()
    client.force_login(user("view_job"))
    assert client.get(reverse(PAGE)).context["action_form"] is None
    act(client, "cancel", [job])
    job.refresh_from_db()
    assert job.state == "available"


def test_who_may_change_jobs_sees_the_actions_but_no_form_to_edit(client):
    job = enqueue()
    client.force_login(user("view_job", "change_job"))
    choices = client.get(reverse(PAGE)).context["action_form"].fields["action"].choices
    assert [value for value, _ in choices] == ["", "cancel", "retry_now"]
    form = client.get(reverse("admin:django_ojs_unique_job_change", args=[job.pk]))
    assert not form.context["has_change_permission"]


def test_cancelling_says_how_many_names_the_refused_and_is_logged(admin_client):
    waiting = [enqueue(), enqueue()]
    finished = [discard(enqueue()) for _ in range(5)]
    done, refused = act(admin_client, "cancel", [*waiting, *finished])
    assert done == "Cancelled: 2 job(s)."
    assert refused.startswith("Refused: 5 job(s). Cannot cancel job ")
    assert refused.endswith("it is discarded. And 2 more.")
    assert Job.objects.filter(state="cancelled").count() == 2
    logged = LogEntry.objects.all()
    assert {entry.object_id for entry in logged} == {str(job.pk) for job in waiting}
    assert {entry.get_change_message() for entry in logged} == {"Cancelled."}


def test_a_revival_that_would_duplicate_a_live_job_names_it(admin_client):
    dead = discard(enqueue(unique=UniquePolicy()))
    live = enqueue(unique=UniquePolicy())
    alone = discard(enqueue())
    done, refused = act(admin_client, "retry_now", [dead, alone])
    assert done == "Made available: 1 job(s)."
    assert refused == (f"Refused: 1 job(s). Cannot retry job {dead.pk}: job {live.pk} is a live duplicate (available).")
    alone.refresh_from_db()
    assert (alone.state, LogEntry.objects.count()) == ("available", 1)
