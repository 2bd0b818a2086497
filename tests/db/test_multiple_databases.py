"""A router keeps the job tables in a second database: everything works there, and nothing looks for them elsewhere."""

import json
from io import StringIO

import pytest
from django.contrib.admin.models import LogEntry
from django.core.management import call_command, load_command_class
from django.db import connections, transaction
from django.db.migrations.executor import MigrationExecutor
from django.urls import reverse

from django_ojs_unique import Cron, DuplicateJob, UniquePolicy, job
from django_ojs_unique.api.wire.codec import MEDIA_TYPE
from django_ojs_unique.idempotency import Heal, scan
from django_ojs_unique.models import CronJob, Event, Job, Queue, SuppressedEnqueue
from django_ojs_unique.testing import (
    assert_deduplicated,
    assert_enqueued,
    assert_not_enqueued,
    capture_jobs,
    run_jobs,
    run_one,
    tick,
)
from tests.app.jobs import add, once

pytestmark = pytest.mark.django_db(databases=["default", "other"])


@pytest.fixture(autouse=True)
def elsewhere(settings):
    """Keep the job tables in ``other``; nothing may ask ``default`` for them."""
    asked = []

    def watch(execute, sql, params, many, context):
        if "django_ojs_unique_" in sql:
            asked.append(sql)
        return execute(sql, params, many, context)

    settings.DATABASE_ROUTERS = ["tests.support.routers.JobsOnOther"]
    with connections["default"].execute_wrapper(watch):
        yield
    assert asked == []


def run(*command):
    out = StringIO()
    call_command(*command, stdout=out, stderr=out, no_color=True)
    return out.getvalue()


# In Python


def test_jobs_are_enqueued_met_explained_batched_and_removed():
    first = once.enqueue("a")
    assert first.job._state.db == "other"
    assert once.enqueue("a").deduplicated
    Job.objects.enqueue("t", unique={})
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue("t", unique={})
    assert Job.objects.explain("t", unique={}).action == "reject"
    assert Job.objects.duplicates_of(first.job.fingerprint).count() == 1
    assert Job.objects.enqueue_many(add.item(number) for number in range(3)).counts["created"] == 3
    Job.objects.enqueue("keyed", key="k")
    assert Job.objects.remove(key="k").type == "keyed"
    assert SuppressedEnqueue.objects.count() == 2
    for change in ("cancel", "remove"):
        getattr(Job.objects.enqueue("changed").job, change)()


def test_an_enqueue_is_no_part_of_the_other_databases_transaction():
    with transaction.atomic("default"):
        add.enqueue(1)
        transaction.set_rollback(True, "default")
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_the_test_helpers_look_where_the_jobs_are(ojs_jobs, handlers):
    @job("minutely", cron=Cron("@every PT1M"))
    def minutely():
        pass

    with capture_jobs() as captured:
        once.enqueue("a")
        once.enqueue("a")
    assert len(captured) == 1
    assert_enqueued(once)
    assert_deduplicated(once)
    assert_not_enqueued(add)
    assert run_one().outcome == "completed"
    tick()
    with ojs_jobs.travel("PT2M"):
        assert [each.type for each in tick()] == ["minutely"]
        assert [ran.outcome for ran in run_jobs()] == ["completed"]


def test_a_scan_reads_records_where_they_are_and_enqueues_where_the_jobs_are(django_user_model, handlers):
    django_user_model.objects.create_user("ada")

    @job(
        "user.name",
        unique=UniquePolicy(keys=["type", "args"]),
        heal=Heal(pending=lambda: django_user_model.objects.filter(first_name=""), args={"user_id": "pk"}),
    )
    def name(user_id):
        django_user_model.objects.filter(pk=user_id).update(first_name="Ada")

    assert scan(name).created == 1
    run_jobs()
    assert django_user_model.objects.get().first_name == "Ada"


def test_events_and_queues_are_there(settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    add.enqueue(1)
    Queue.objects.pause("mail")
    assert [event.type for event in Event.objects.follow().events] == ["job.enqueued", "queue.paused"]


def test_tasks_are_there():
    pytest.importorskip("tests.tasks.framework")
    from tests.app.tasks import add

    result = add.enqueue(1, b=2)
    assert str(Job.objects.get().pk) == result.id
    run_jobs()
    result.refresh()
    assert result.return_value == 3


# Commands


@pytest.mark.slow
def test_the_commands_take_the_routers_database_by_default():
    stored = once.enqueue("a").job
    dead = Job.objects.enqueue("t").job
    assert str(stored.pk) in run("jobs", "list")
    assert "a" in run("jobs", "show", str(stored.pk))
    assert "would ignore" in run("jobs", "explain", "tests.once", "--args", '{"key": "a"}')
    run("jobs", "cancel", str(dead.pk))
    assert Job.objects.get(pk=dead.pk).state == "cancelled"
    run("jobs", "pause", "mail")
    assert Queue.objects.get().paused_at is not None
    run("jobs", "verify")
    run("prunejobs")


@pytest.mark.parametrize("command", ["runworker", "prunejobs"])
def test_the_help_names_the_database(command):
    parser = load_command_class("django_ojs_unique", command).create_parser("manage.py", command)
    assert "(default: other)" in " ".join(parser.format_help().split())


@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_a_worker_runs_what_is_there():
    stored = add.enqueue(1).job
    run("runworker", "--drain", "--concurrency", "1")
    stored.refresh_from_db()
    assert (stored.state, stored.result) == ("completed", 1)


@pytest.mark.slow
def test_the_checks_pass():
    assert "no issues" in run("check", "--database", "other")


@pytest.mark.slow
@pytest.mark.django_db(transaction=True, databases=["default", "other"])
def test_the_migration_makes_no_tables_where_the_router_keeps_none():
    for alias, makes in (("default", False), ("other", True)):
        loader = MigrationExecutor(connections[alias]).loader
        migrations = [loader.get_migration(*node) for node in loader.graph.nodes if node[0] == "django_ojs_unique"]
        sql = "\n".join(loader.collect_sql([(migration, False) for migration in migrations]))
        assert ("CREATE TABLE" in sql) is makes


# The admin and the API


@pytest.mark.slow
def test_the_admin_shows_and_changes_what_is_there(admin_client):
    stored, again = once.enqueue("a").job, once.enqueue("a")
    assert again.deduplicated
    Queue.objects.pause("mail")
    entry = CronJob.objects.define("nightly", "0 3 * * *", "t")
    changelists = ["job", "queue", "cronjob", "workerprocess", "suppressedenqueue"]
    pages = [f"{name}_changelist" for name in changelists] + ["dashboard", "duplicates", "explain"]
    urls = [reverse(f"admin:django_ojs_unique_{name}") for name in pages]
    urls += [
        reverse("admin:django_ojs_unique_job_change", args=[stored.pk]),
        reverse("admin:django_ojs_unique_queue_change", args=["mail"]),
        reverse("admin:django_ojs_unique_cronjob_change", args=[entry.pk]),
        reverse("admin:django_ojs_unique_duplicates_of", args=[stored.fingerprint]),
        reverse("admin:django_ojs_unique_suppressedenqueue_change", args=[SuppressedEnqueue.objects.get().pk]),
        reverse("admin:index"),
    ]
    assert {url: admin_client.get(url).status_code for url in urls} == dict.fromkeys(urls, 200)
    form = {"action": "cancel", "_selected_action": [stored.pk]}
    admin_client.post(reverse("admin:django_ojs_unique_job_changelist"), form)
    admin_client.post(reverse("admin:django_ojs_unique_dashboard"), {"resume": "mail"})
    assert (Job.objects.get().state, Queue.objects.get().paused_at) == ("cancelled", None)
    assert LogEntry.objects.using("default").count() == 2


@pytest.mark.slow
def test_the_api_serves_what_is_there(admin_client):
    def post(path, **body):
        return admin_client.post(path, json.dumps(body), content_type=MEDIA_TYPE)

    wanted = {"type": "t", "args": [], "options": {"unique": {"keys": ["type"]}}}
    assert post("/ojs/v1/jobs", **wanted).status_code == 201
    assert post("/ojs/v1/jobs", **wanted).status_code == 409
    (fetched,) = post("/ojs/v1/workers/fetch", queues=["default"]).json()["jobs"]
    assert post("/ojs/v1/workers/ack", job_id=fetched["id"], result={"n": 1}).status_code == 200
    assert admin_client.get(f"/ojs/v1/jobs/{fetched['id']}").json()["job"]["state"] == "completed"
    assert Job.objects.using("other").get().state == "completed"
