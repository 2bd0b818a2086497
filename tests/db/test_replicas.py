"""A router may let reads go to a replica that lags behind: whatever is written, locked or decided is on the primary."""

from datetime import timedelta

import pytest
from django.apps import apps
from django.contrib.admin.models import LogEntry
from django.db import DatabaseError, connections
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import Cron, UniquePolicy, job, lifecycle
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.idempotency import locked
from django_ojs_unique.models import CronJob, Event, Job, Queue, SuppressedEnqueue
from django_ojs_unique.ojs.states import INCOMPLETE
from django_ojs_unique.testing import run_jobs, tick

pytestmark = pytest.mark.django_db(databases=["default", "other"])

MODELS = list(apps.get_app_config("django_ojs_unique").get_models())
HARMLESS = ("SELECT", "WITH", "SAVEPOINT", "RELEASE", "ROLLBACK TO")
LIST = "admin:django_ojs_unique_job_changelist"
CHANGE = "admin:django_ojs_unique_job_change"
RESOLVE = "admin:django_ojs_unique_resolve"
CRON_LIST = "admin:django_ojs_unique_cronjob_changelist"


@pytest.fixture(autouse=True)
def replica(settings):
    """Let the job tables be read from ``other``, which takes no statement but a SELECT; return how it catches up."""
    refused = []
    catching_up = False

    def read_only(execute, sql, params, many, context):
        if not catching_up and not sql.lstrip().startswith(HARMLESS):
            refused.append(sql)
            raise DatabaseError(f"A replica is read-only: {sql}")
        return execute(sql, params, many, context)

    def catch_up():
        nonlocal catching_up
        catching_up = True
        for model in MODELS:
            model.objects.using("other").all().delete()
            model._base_manager.using("other").bulk_create(model.objects.using("default"))
        catching_up = False

    settings.DATABASE_ROUTERS = ["tests.support.routers.JobsReadFromOther"]
    with connections["other"].execute_wrapper(read_only):
        yield catch_up
    assert refused == []


def primary(model):
    return model.objects.using("default")


def state(stored):
    return primary(Job).get(pk=stored.pk).state


def enqueue(type="t", **options):
    return Job.objects.enqueue(type, **options).job


def discard(stored):
    rows, token, now = primary(Job).filter(pk=stored.pk), new_id(), timezone.now()
    assert lifecycle.claim(rows, now, worker_id="w", token=token, lease=timedelta(minutes=5))
    assert lifecycle.discard(rows, now, token=token, errors=[])
    return stored


def act(client, action, *ids, url=LIST, **fields):
    form = {"action": action, "_selected_action": ids, **fields}
    answer = client.post(reverse(url), form, follow=True)
    assert answer.status_code == 200
    return [str(message) for message in answer.context["messages"]]


def text(answer):
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


# Pages


@pytest.mark.slow
def test_the_pages_show_what_the_replica_has(admin_client, replica):
    old = enqueue("old.type", unique={})
    Queue.objects.pause("mail")
    CronJob.objects.define("nightly", "0 3 * * *", "t")
    replica()
    enqueue("new.type")
    listed = text(admin_client.get(reverse(LIST)))
    assert ("old.type" in listed, "new.type" in listed) == (True, False)
    Job.objects.using("default").get(pk=old.pk).cancel()
    assert "available" in text(admin_client.get(reverse(CHANGE, args=[old.pk])))
    names = ["dashboard", "duplicates", "explain", "queue_changelist", "cronjob_changelist", "workerprocess_changelist"]
    for name in [*names, "suppressedenqueue_changelist"]:
        assert admin_client.get(reverse(f"admin:django_ojs_unique_{name}")).status_code == 200
    for model, pk in [(Queue, "mail"), (CronJob, "nightly")]:
        page = reverse(f"admin:django_ojs_unique_{model._meta.model_name}_change", args=[pk])
        assert admin_client.get(page).status_code == 200


@pytest.mark.slow
def test_explain_answers_for_the_primary(admin_client, replica):
    replica()
    stored = enqueue(unique={})
    assert Job.objects.explain("t", unique={}).action == "reject"
    page = reverse("admin:django_ojs_unique_explain")
    fields = {"type": "t", "args": "{}", "unique": "{}"}
    assert str(stored.pk)[:8] in text(admin_client.post(page, fields))


# Actions on jobs


@pytest.mark.slow
@pytest.mark.parametrize("knows", [True, False], ids=["the replica knows the job", "the replica lags"])
def test_actions_are_for_the_job_as_the_primary_has_it(admin_client, replica, knows):
    waiting, due_later, unique, gone = enqueue(), enqueue(), enqueue("u", unique={}), enqueue()
    Job._base_manager.using("default").filter(pk=due_later.pk).update(state="pending")
    dead = discard(enqueue("dead"))
    if knows:
        replica()
    assert act(admin_client, "cancel", waiting.pk) == ["Cancelled: 1 job."]
    assert act(admin_client, "retry", due_later.pk) == ["Retried: 1 job."]
    act(admin_client, "retry", dead.pk, resolution="skip")
    act(admin_client, "release_unique_key", unique.pk, _confirmed="yes")
    assert act(admin_client, "delete_selected", gone.pk, _confirmed="yes") == ["Deleted: 1 job."]
    assert [state(each) for each in (waiting, due_later, dead)] == ["cancelled", "available", "available"]
    assert primary(Job).get(pk=unique.pk).fingerprint is None
    assert not primary(Job).filter(pk=gone.pk).exists()
    assert LogEntry.objects.count() == 5


@pytest.mark.slow
def test_an_action_is_refused_by_what_the_primary_has(admin_client, replica):
    stored = enqueue()
    replica()
    primary(Job).get(pk=stored.pk).cancel()
    (refused,) = act(admin_client, "cancel", stored.pk)
    assert refused.startswith("Refused: 1 job.")
    assert "it is cancelled" in refused


@pytest.mark.slow
@pytest.mark.parametrize("action", ["retry", "release_unique_key", "delete_selected"])
def test_the_pages_that_ask_before_an_action_ask_the_primary(admin_client, replica, action):
    replica()
    stored = discard(enqueue(unique={"states": ["available", "discarded"]}))
    rival = enqueue(unique={})
    form = {"action": action, "_selected_action": [stored.pk]}
    asked = text(admin_client.post(reverse(LIST), form))
    assert str(stored.pk)[:8] in asked
    assert "It is gone" not in asked
    assert (str(rival.pk) in asked) is (action == "retry")


def test_a_job_that_the_replica_does_not_have_yet_is_deleted_from_its_own_page(admin_client, replica):
    stored = enqueue()
    page = reverse("admin:django_ojs_unique_job_delete", args=[stored.pk])
    assert str(stored.pk)[:8] in text(admin_client.get(page))
    admin_client.post(page, {"_confirmed": "yes"})
    assert not primary(Job).exists()


@pytest.mark.slow
def test_the_actions_of_a_jobs_own_page_write_to_the_primary(admin_client, replica):
    stored = enqueue()
    replica()
    assert act(admin_client, "cancel", stored.pk, _from_page="yes") == ["Cancelled: 1 job."]
    assert state(stored) == "cancelled"


# Duplicates, queues, periodic jobs


def alike():
    """Make live jobs of one fingerprint, the newest of which holds it."""
    jobs = []
    for _ in range(3):
        Job._base_manager.using("default").filter(fingerprint="f" * 64).update(unique_states=frozenset())
        stored = enqueue()
        Job._base_manager.using("default").filter(pk=stored.pk).update(fingerprint="f" * 64, unique_states=INCOMPLETE)
        jobs.append(stored)
    return jobs


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["newest", "oldest"])
def test_duplicates_are_resolved_as_the_primary_has_them(admin_client, replica, rule):
    jobs = alike()
    replica()
    jobs[0].cancel()
    answer = admin_client.post(reverse(RESOLVE), {"keep": f"{rule}:{'f' * 64}"})
    asked = text(answer)
    assert [str(each.pk) in asked for each in jobs] == [False, True, True]
    admin_client.post(reverse(RESOLVE), {"decision": [plan["value"] for plan in answer.context["plans"]]})
    kept = jobs[2] if rule == "newest" else jobs[1]
    assert [each.pk for each in primary(Job).filter(state="available")] == [kept.pk]


@pytest.mark.slow
def test_queues_are_paused_and_limited_on_the_primary(admin_client, replica):
    Queue.objects.limit("mail", 3)
    replica()
    Queue.objects.limit("mail", 5)
    page = reverse("admin:django_ojs_unique_queue_change", args=["mail"])
    stale = {"concurrency_limit": 9, "shown_limit": 3}
    assert "somebody else has changed it meanwhile to 5" in text(admin_client.post(page, stale))
    admin_client.post(page, {"concurrency_limit": 9, "shown_limit": 5})
    assert primary(Queue).get().concurrency_limit == 9
    assert act(admin_client, "pause", "mail", url="admin:django_ojs_unique_queue_changelist")[-1] == "Paused mail."
    admin_client.post(reverse("admin:django_ojs_unique_dashboard"), {"resume": "mail"})
    assert primary(Queue).get().paused_at is None


@pytest.mark.slow
def test_periodic_jobs_are_switched_changed_and_deleted_on_the_primary(admin_client, replica):
    CronJob.objects.define("nightly", "0 3 * * *", "t", enabled=False)
    form = {
        "name": "nightly", "expression": "0 4 * * *", "timezone": "UTC", "overlap_policy": "skip", "enabled": "on",
        "type": "t", "args": "{}", "options": "{}",
    }  # fmt: skip
    added = admin_client.post(reverse("admin:django_ojs_unique_cronjob_add"), form)
    assert "There is a cron job of this name already." in text(added)
    replica()
    assert act(admin_client, "enable", "nightly", url=CRON_LIST) == ["Enabled: 1 cron job."]
    admin_client.post(reverse("admin:django_ojs_unique_cronjob_change", args=["nightly"]), form)
    entry = primary(CronJob).get()
    assert (entry.enabled, entry.expression) == (True, "0 4 * * *")
    act(admin_client, "delete_selected", "nightly", url=CRON_LIST, post="yes")
    assert not primary(CronJob).exists()


@pytest.mark.slow
def test_a_periodic_job_that_was_declared_meanwhile_is_not_deleted(admin_client, replica):
    CronJob.objects.define("nightly", "0 3 * * *", "t")
    replica()
    primary(CronJob).update(declared=True)
    (refused,) = act(admin_client, "delete_selected", "nightly", url=CRON_LIST, post="yes")
    assert refused.startswith("Declared in code: nightly.")
    page = reverse("admin:django_ojs_unique_cronjob_delete", args=["nightly"])
    assert admin_client.post(page, {"post": "yes"}).status_code == 403
    assert primary(CronJob).exists()


# In Python


@pytest.mark.parametrize(("method", "becomes"), [("cancel", "cancelled"), ("retry", "available")])
def test_what_was_read_from_the_replica_is_changed_on_the_primary(replica, method, becomes):
    stored = enqueue(scheduled_at=timezone.now() + timedelta(hours=1))
    replica()
    read = Job.objects.get(pk=stored.pk)
    assert read._state.db == "other"
    getattr(read, method)()
    assert (read.state, state(stored)) == (becomes, becomes)


def test_a_job_that_was_read_from_the_replica_is_retried_released_and_removed_on_the_primary(replica):
    dead, unique, gone = discard(enqueue()), enqueue("u", unique={}), enqueue()
    replica()
    Job.objects.get(pk=dead.pk).retry()
    Job.objects.get(pk=unique.pk).release_unique_key()
    Job.objects.get(pk=gone.pk).remove()
    assert state(dead) == "available"
    assert primary(Job).get(pk=unique.pk).fingerprint is None
    assert not primary(Job).filter(pk=gone.pk).exists()


def test_a_row_that_was_read_from_the_replica_is_locked_on_the_primary(replica):
    stored = enqueue()
    replica()
    primary(Job).get(pk=stored.pk).cancel()
    with locked(Job.objects.get(pk=stored.pk)) as row:
        assert (row._state.db, row.state) == ("default", "cancelled")


def test_a_worker_reads_what_it_left_out_of_a_job_where_it_claimed_it(replica, handlers):
    said = []

    @job("t", takes_context=True)
    def handle(context):
        said.append((context.job.created_at, context.job.errors, context.job.unique))

    stored = enqueue(unique={})
    replica()
    primary(Job).update(meta={"a": 1})
    run_jobs()
    assert said == [(stored.created_at, [], stored.unique)]
    partial = primary(Job).only("pk").get()
    assert partial.meta == {"a": 1}


def test_periodic_jobs_events_and_records_are_kept_on_the_primary(replica, handlers, settings):
    settings.OJS_UNIQUE = {"EVENTS": True, "SUPPRESSED_RETENTION": "PT1S", "EVENT_RETENTION": "PT1S"}

    @job("t", cron=Cron("* * * * *"), unique=UniquePolicy(on_conflict="ignore"))
    def handle():
        pass

    tick()
    replica()
    CronJob.objects.get().switch(False)
    assert not primary(CronJob).get().enabled
    handle.enqueue()
    handle.enqueue()
    assert [event.type for event in Event.objects.follow().events] == ["job.enqueued"]
    later = timezone.now() + timedelta(days=1)
    replica()
    assert SuppressedEnqueue.objects.prune(later) == 1
    assert not primary(SuppressedEnqueue).exists()
