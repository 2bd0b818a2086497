"""What holds in both layouts."""

from collections import Counter
from threading import Barrier, Thread

import pytest
from django.conf import settings
from django.core.management import call_command
from django.db import connection, connections
from django.dispatch import receiver
from django.test import Client, override_settings
from django.urls import reverse
from django_tenants.utils import tenant_context

from django_ojs_unique.checks.settings import check_tenants
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_completed
from django_ojs_unique.worker import Worker
from tests_tenants.shop.jobs import awork, fail_once, work


def drain(tenants):
    """Run all jobs as users do: one worker for all tenants, or one for each."""
    if settings.LAYOUT == "shared":
        Worker(concurrency=2).run(drain=True)
        return
    for tenant in tenants:
        call_command("tenant_command", "runworker", "--drain", "--skip-checks", schema_name=tenant.schema_name)
        connection.set_schema_to_public()


def jobs_of(tenant):
    with tenant_context(tenant):
        return list(Job.objects.filter(meta___context__unique__tenant__schema_name=tenant.schema_name))


@pytest.mark.parametrize("handler", [work, awork])
def test_equal_jobs_of_two_tenants_run_each_in_its_schema(tenants, done, handler):
    for tenant in tenants:
        with tenant_context(tenant):
            assert handler.enqueue(number=1).outcome == "created"
            assert handler.enqueue(number=1).outcome == "deduplicated"
    drain(tenants)
    for tenant in tenants:
        seen = tenant.schema_name if handler is work else "async"
        assert done(tenant) == [(1, seen)]
        assert [job.state for job in jobs_of(tenant)] == ["completed"]


def test_many_async_handlers_of_two_tenants_beside_each_other_keep_to_their_schemas(tenants, done):
    for number in range(20):
        with tenant_context(tenants[number % 2]):
            awork.enqueue(number=number)
    drain(tenants)
    assert done(tenants[0]) == [(number, "async") for number in range(0, 20, 2)]
    assert done(tenants[1]) == [(number, "async") for number in range(1, 20, 2)]


def test_a_retry_runs_in_the_tenant_of_its_enqueue(tenants, done):
    with tenant_context(tenants[1]):
        fail_once.enqueue(number=1)
    drain(tenants)
    with tenant_context(tenants[1]):
        Job.objects.filter(type="fail_once", state="retryable").retry()
    drain(tenants)
    assert done(tenants[1]) == [(1, "failed"), (1, "succeeded")]
    assert done(tenants[0]) == []


def test_a_race_of_two_tenants_admits_one_job_for_each(tenants):
    barrier, outcomes = Barrier(8), []

    def enqueue(tenant):
        with tenant_context(tenant):
            barrier.wait()
            outcomes.append((tenant.schema_name, str(work.enqueue(number=7).outcome)))
        connections.close_all()

    threads = [Thread(target=enqueue, args=[tenants[index % 2]]) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Counter(outcomes) == {(name, what): n for name in "ab" for what, n in [("created", 1), ("deduplicated", 3)]}


def test_a_key_is_the_tenants_own(tenants):
    for tenant in tenants:
        with tenant_context(tenant):
            assert Job.objects.enqueue("work", {"number": 1}, key="k").outcome == "created"
    with tenant_context(tenants[0]):
        assert Job.objects.remove(key="k") is not None
    assert [len(jobs_of(tenant)) for tenant in tenants] == [0, 1]


def test_receivers_of_outcomes_are_called_in_the_tenant(tenants):
    seen = []

    @receiver(job_completed)
    def note(job, **kwargs):
        seen.append((job.args["number"], connection.schema_name))

    for number, tenant in enumerate(tenants):
        with tenant_context(tenant):
            work.enqueue(number=number)
    drain(tenants)
    job_completed.disconnect(note)
    assert sorted(seen) == [(0, "a"), (1, "b")]


def test_what_is_enqueued_again_stays_with_its_tenant(tenants, done):
    with tenant_context(tenants[1]):
        work.enqueue(number=1)
    drain(tenants)
    if settings.LAYOUT == "shared":
        Job.objects.all().enqueue_again()
    else:
        with tenant_context(tenants[1]):
            Job.objects.all().enqueue_again()
    drain(tenants)
    assert done(tenants[1]) == [(1, "b"), (1, "b")]


def test_the_admin_of_a_tenant_shows_its_jobs(tenants, django_user_model):
    with tenant_context(tenants[0]):
        user, _ = django_user_model.objects.get_or_create(username="root", is_superuser=True, is_staff=True)
        job = work.enqueue(number=1).job
        client = Client(HTTP_HOST="a.testserver")
        client.force_login(user)
    page = client.get(reverse("admin:django_ojs_unique_job_change", args=[job.pk]))
    assert page.status_code == 200
    assert "type + args + tenant" in page.content.decode()


def test_an_enqueue_over_http_belongs_to_the_tenant_of_the_host(tenants, done):
    sent = {"type": "work", "args": [1]}
    for tenant in tenants:
        client = Client(HTTP_HOST=f"{tenant.schema_name}.testserver")
        assert client.post("/ojs/v1/jobs", sent, "application/json").status_code == 201
        forged = {**sent, "meta": {"_context": {"unique": {"tenant": {"schema_name": "a"}}}}}
        refused = client.post("/ojs/v1/jobs", forged, "application/json")
        assert (refused.status_code, "meta._context" in refused.content.decode()) == (400, True)
    drain(tenants)
    assert [done(tenant) for tenant in tenants] == [[(1, "a")], [(1, "b")]]


def test_without_the_setting_the_project_does_not_start():
    assert check_tenants() == []
    for given in ({}, {"CONTEXT": ()}):
        with override_settings(OJS_UNIQUE=given):
            (error,) = check_tenants()
        assert error.id == "django_ojs_unique.E003"


@pytest.mark.skipif(settings.LAYOUT != "shared", reason="a tenant that is gone takes its own table along")
def test_a_job_of_a_tenant_that_is_gone_fails_and_runs_nowhere(tenants, done):
    with tenant_context(tenants[0]):
        job = work.enqueue(number=1).job
    context = {"unique": {"tenant": {"schema_name": "gone"}}}
    Job.objects.filter(pk=job.pk).update(meta={"_context": context})
    drain(tenants)
    job.refresh_from_db()
    assert job.state == "retryable"
    assert "DoesNotExist" in job.errors[0]["type"]


@pytest.mark.skipif(settings.LAYOUT != "own", reason="one table has the jobs of all tenants")
def test_a_worker_of_one_tenant_leaves_the_jobs_of_others(tenants, done):
    for tenant in tenants:
        with tenant_context(tenant):
            work.enqueue(number=1)
    drain(tenants[:1])
    assert done(tenants[0]) == [(1, "a")]
    assert [job.state for job in jobs_of(tenants[1])] == ["available"]
