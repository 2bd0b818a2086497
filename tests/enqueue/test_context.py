"""What jobs carry from their enqueue to their runs, `OJS_UNIQUE["CONTEXT"]`."""

import io
import json
from contextlib import contextmanager
from contextvars import ContextVar

import pytest
from django.core.checks import run_checks
from django.core.management import CommandError, call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs_unique import chain
from django_ojs_unique.checks.settings import check_tenants
from django_ojs_unique.context import Context
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.models import CronJob, Job
from django_ojs_unique.signals import job_completed, job_started
from django_ojs_unique.testing import run_jobs, tick, travel
from django_ojs_unique.unique.policy import UniquePolicy
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

ONCE = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
site = ContextVar("site", default=None)
language = ContextVar("language", default=None)


@contextmanager
def setting(variable, value):
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)


class Site(Context):
    name = "site"
    unique = True

    def capture(self):
        return None if site.get() is None else {"id": site.get()}

    def restore(self, captured):
        return setting(site, captured["id"])


class Language(Context):
    name = "language"

    def capture(self):
        return {"code": language.get()}

    def restore(self, captured):
        return setting(language, captured["code"])


@pytest.fixture(autouse=True)
def context(settings):
    settings.OJS_UNIQUE = {"CONTEXT": [f"{__name__}.Site", Language]}


@pytest.fixture
def seen(handlers):
    from django_ojs_unique import job

    seen = []

    @job("plain", unique=ONCE)
    def plain():
        seen.append((site.get(), language.get()))

    @job("later", unique=ONCE)
    async def later():
        seen.append((site.get(), language.get()))

    return seen


def enqueue(number, type="plain", **options):
    with setting(site, number), setting(language, "fr"):
        return Job.objects.enqueue(type, **options)


@pytest.mark.parametrize("type", ["plain", "later"])
def test_a_run_finds_what_was_active_at_the_enqueue(seen, type):
    enqueue(1, type)
    run_jobs()
    assert seen == [(1, "fr")]
    assert (site.get(), language.get()) == (None, None)


@pytest.mark.slow
def test_the_later_steps_of_a_workflow_find_what_was_active_at_its_enqueue(seen):
    with setting(site, 1), setting(language, "fr"):
        chain({"type": "plain"}, {"type": "later"}).enqueue()
    with setting(site, 2):
        run_jobs()
    assert seen == [(1, "fr"), (1, "fr")]


def test_receivers_of_the_run_find_it_too(seen):
    told = []

    def note(job, **kwargs):
        told.append(site.get())

    enqueue(1)
    for signal in (job_started, job_completed):
        signal.connect(note)
    try:
        run_jobs()
    finally:
        for signal in (job_started, job_completed):
            signal.disconnect(note)
    assert told == [1, 1]


def test_only_what_is_unique_separates_duplicates(seen):
    assert enqueue(1).outcome == "created"
    assert enqueue(2).outcome == "created"
    with setting(site, 1), setting(language, "de"):
        assert Job.objects.enqueue("plain", unique=ONCE).outcome == "deduplicated"


def test_keys_are_separate_too(seen):
    assert enqueue(1, key="k").outcome == "created"
    assert enqueue(2, key="k").outcome == "created"
    assert enqueue(1, key="k").outcome == "replaced"
    with setting(site, 2):
        assert Job.objects.remove(key="k") is not None
    assert [job.meta["_context"]["unique"] for job in Job.objects.all()] == [{"site": {"id": 1}}]


def test_each_item_of_a_batch_carries_what_is_active_when_it_is_drawn(seen):
    def items():
        for number in (1, 2, 1):
            with setting(site, number):
                yield {"type": "plain"}

    assert [each.outcome for each in Job.objects.enqueue_many(items())] == ["created", "created", "deduplicated"]


def test_an_explanation_says_which_context_counts_and_takes_another(seen):
    job = enqueue(1).job
    explained = Job.objects.explain("plain")
    assert (explained.action, explained.context) == ("create", {"site": None})
    assert "context:        Only jobs that carry no site match it." in str(explained)
    explained = Job.objects.explain("plain", context={"site": {"id": 1}})
    assert (explained.action, explained.fingerprint) == ("ignore", job.fingerprint)
    assert explained.to_dict()["context"] == {"site": {"id": 1}}
    assert 'Only jobs that carry site {"id": 1} match it.' in str(explained)
    with setting(site, 1):
        assert Job.objects.explain("plain").action == "ignore"
        assert Job.objects.explain("plain", key="k", context={"site": None}).context == {"site": None}
        assert Job.objects.explain("plain", context={"site": {"id": 2}, "language": None}).action == "create"


def test_a_job_that_takes_no_part_in_uniqueness_matches_in_no_context(seen, settings):
    assert Job.objects.explain("plain", unique=None).to_dict()["context"] is None
    settings.OJS_UNIQUE = {"CONTEXT": Language}
    assert Job.objects.explain("plain").to_dict()["context"] is None


@pytest.mark.parametrize(
    ("given", "field"),
    [({"sitee": {}}, "context.sitee"), ({"site": 7}, "context.site"), ({"site": {"id": object()}}, "context.site.id")],
)
def test_an_explanation_refuses_what_no_job_carries(seen, given, field):
    with refused(InvalidRequest, field):
        Job.objects.explain("plain", context=given)


def test_an_explanation_masks_what_is_redacted(seen, settings):
    settings.OJS_UNIQUE = {"CONTEXT": Site, "REDACT": ["id"]}
    explained = Job.objects.explain("plain", context={"site": {"id": "secret"}}).redacted("plain", None)
    assert "secret" not in f"{explained} {explained.to_dict()}"


def test_the_command_says_it_and_takes_another(seen):
    def say(*more):
        out = io.StringIO()
        call_command("jobs", "explain", "plain", *more, stdout=out)
        return out.getvalue()

    enqueue(1)
    assert "Only jobs that carry no site match it." in say()
    assert "--context" in say()
    there = ("--context", '{"site": {"id": 1}}')
    assert say(*there).startswith("would ignore")
    assert "--context" not in say(*there)
    assert json.loads(say(*there, "--json"))["context"] == {"site": {"id": 1}}
    with pytest.raises(CommandError, match=r"^context\.sitee: .* Did you mean 'site'\?"):
        say("--context", '{"sitee": {}}')


def test_a_client_learns_it_and_cannot_choose_it(seen, client, admin_user):
    client.force_login(admin_user)
    with setting(site, 1):
        enqueue(1)
        body = {"type": "plain", "args": {}}
        explained = client.post("/ojs/v1/jobs/explain", body, "application/json").json()["explanation"]
        assert (explained["action"], explained["context"]) == ("ignore", {"site": {"id": 1}})
        sent = {**body, "context": {"site": {"id": 2}}}
        assert client.post("/ojs/v1/jobs/explain", sent, "application/json").json()["explanation"]["context"] == {
            "site": {"id": 1}
        }


def test_the_page_that_explains_says_it_and_takes_another(seen, admin_client, settings):
    enqueue(1)
    page = reverse("admin:django_ojs_unique_explain")
    answer = admin_client.post(page, {"type": "plain"}).context["answer"]
    assert (answer["name"], answer["context"]) == ("create", ["Only jobs that carry no site match it."])
    there = {"type": "plain", "context": '{"site": {"id": 1}}'}
    said = admin_client.post(page, there).context
    assert said["answer"]["name"] == "ignore"
    assert "context" not in said["answer"]["code"]
    assert admin_client.get(said["link"]).context["answer"]["name"] == "ignore"
    wrong = admin_client.post(page, {**there, "context": '{"sitee": {}}'}).context["form"]
    assert [*wrong.errors] == ["context"]
    settings.OJS_UNIQUE = {"CONTEXT": Language}
    assert "context" not in admin_client.get(page).context["form"].fields


@pytest.mark.slow
def test_an_enqueue_again_carries_what_the_first_did(seen):
    enqueue(1)
    run_jobs()
    with setting(site, 2):
        Job.objects.all().enqueue_again()
    run_jobs()
    assert seen == [(1, "fr"), (1, "fr")]


@pytest.mark.parametrize("meta", [{"_context": {"unique": {"site": {"id": 2}}}}, {"_context": None}])
def test_a_caller_cannot_forge_it(seen, meta):
    with refused(InvalidRequest, "meta._context"):
        enqueue(1, meta=meta)
    with refused(InvalidRequest, "context", index=0):
        Job.objects.enqueue_many([{"type": "plain", "context": {}}], mode="atomic")


def test_a_periodic_job_carries_nothing(seen):
    with setting(site, 1):
        CronJob.objects.define(name="c", expression="* * * * *", type="plain")
        with travel("PT1H"):
            (job,) = tick()
    assert "_context" not in job.meta


def test_what_cannot_be_restored_fails_the_attempt_and_runs_nothing(seen, settings):
    enqueue(1)
    settings.OJS_UNIQUE = {"CONTEXT": [Language]}
    run_jobs(raise_errors=False)
    job = Job.objects.get()
    assert seen == []
    assert job.state == "retryable"
    assert "site" in job.errors[0]["message"]


def test_the_fingerprint_is_computed_again_from_the_row(seen):
    from django_ojs_unique.operations.integrity.expected_row import examine
    from django_ojs_unique.reporting.uniqueness import recompute

    job = enqueue(1).job
    assert recompute(job).fingerprint == job.fingerprint
    assert '"context":{"site":{"id":1}}' in recompute(job).text
    assert examine(job).kinds == []


def test_one_class_need_not_be_in_a_list(seen, settings):
    settings.OJS_UNIQUE = {"CONTEXT": Site}
    assert enqueue(1).job.meta == {"_context": {"unique": {"site": {"id": 1}}}}


def test_it_costs_no_statement(seen, settings):
    counts = []
    for value in ((), [Site, Language]):
        settings.OJS_UNIQUE = {"CONTEXT": value} if value else {}
        Job.objects.all().delete()
        enqueue(1)
        Job.objects.all().delete()
        with CaptureQueriesContext(connection) as queries:
            enqueue(1)
        counts.append(len(queries))
    assert counts[0] == counts[1]


class Schema(Context):
    name = "schema"
    unique = of_connections = True


@pytest.mark.parametrize(
    ("given", "ids"),
    [
        ({}, ["E003"]),
        ({"CONTEXT": ()}, ["E003"]),
        ({"CONTEXT": Site}, ["E003"]),
        ({"CONTEXT": Schema}, []),
        ({"CONTEXT": [Site, Schema]}, []),
        ({"CONTEXT": "no.such.Thing"}, []),
    ],
)
def test_schemas_of_tenants_need_a_class_for_them(settings, monkeypatch, given, ids):
    settings.OJS_UNIQUE = given
    assert check_tenants() == []
    with monkeypatch.context() as patch:
        patch.setitem(settings.DATABASES["default"], "ENGINE", "django_tenants.postgresql_backend")
        assert [message.id[-4:] for message in check_tenants()] == ids


def test_the_app_shared_and_in_each_schema_is_named(settings):
    settings.OJS_UNIQUE = {}
    settings.SHARED_APPS = settings.TENANT_APPS = ["django_ojs_unique"]
    assert [message.id[-4:] for message in check_tenants()] == ["W014"]
    settings.TENANT_APPS = []
    assert check_tenants() == []


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (1, "must be the dotted name"),
        ("no.such.Thing", "cannot be imported"),
        ([ContextVar], "not a subclass"),
        ([Context], "has no name"),
        ([Site, Site], "two classes have the name 'site'"),
    ],
)
def test_a_wrong_setting_is_named(settings, value, said):
    settings.OJS_UNIQUE = {"CONTEXT": value}
    assert any(said in message.msg for message in run_checks(tags=["ojs_unique"]))
