"""Periodic jobs: define, list, look, delete, and fire without a worker."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique import RetryPolicy, UniquePolicy, job
from django_ojs_unique.maintenance import cron
from django_ojs_unique.models import CronJob, Job
from tests.support.processes import together

pytestmark = pytest.mark.django_db

PATH = "/ojs/v1/cron"
TEMPLATE = {"type": "t", "args": [{"a": 1}], "options": {"queue": "reports"}}
NIGHTLY = {"name": "nightly", "expression": "30 2 * * *", "job_template": TEMPLATE}


def define(ojs, status=201, **changes):
    answer = ojs.post(PATH, {**NIGHTLY, **changes})
    assert answer.status_code == status, answer.content
    return answer.json()["cron"]


def make_due():
    """Let every entry be due, as of the last full minute."""
    CronJob.objects.update(next_run_at=timezone.now().replace(second=0, microsecond=0))


@pytest.fixture
def declared(handlers):
    """An entry that is declared in code."""
    job("report_all", cron="@hourly", queue="q")(lambda: None)
    cron.sync("default", timezone.now())


# Defining


def test_a_new_entry_is_shown_with_its_defaults(ojs):
    shown = define(ojs)
    assert shown.items() >= {**NIGHTLY, "timezone": "UTC", "overlap_policy": "skip", "enabled": True}.items()
    assert (shown["run_count"], "description" in shown, "last_run_at" in shown) == (0, False, False)
    assert shown["next_run_at"].endswith("T02:30:00Z")
    assert ojs.get(f"{PATH}/nightly").json()["cron"] == shown
    assert ojs.get(PATH).json()["crons"] == [shown]


def test_the_shape_of_the_prose_is_understood_as_well(ojs):
    flat = {
        "name": "nightly",
        "cron": "@daily",
        "type": "t",
        "args": {"a": 1},
        "meta": {"m": 1},
        "options": {"queue": "reports"},
        "priority": 5,
    }
    answer = ojs.post(PATH, flat)
    assert answer.status_code == 201, answer.content
    shown = answer.json()["cron"]
    assert shown["expression"] == "@daily"
    assert shown["job_template"] == {
        "type": "t",
        "args": {"a": 1},
        "meta": {"m": 1},
        "options": {"queue": "reports", "priority": 5},
    }


def test_a_template_comes_back_as_it_was_sent_and_makes_such_jobs(ojs):
    template = {
        "type": "report.nightly",
        "args": [1, {"deep": [None, 1.5]}],
        "meta": {"tenant": "acme"},
        "schema": "urn:s",
        "x_trace": {"id": 1},
        "options": {
            "queue": "reports",
            "priority": -5,
            "timeout_ms": 1500,
            "visibility_timeout_ms": 90_000,
            "tags": ["a", "b"],
            "retry": {"max_attempts": 7, "initial_interval": "PT2S"},
            "unique": {"keys": ["type"], "on_conflict": "ignore"},
        },
    }
    shown = define(ojs, job_template=template, expression="* * * * *")
    assert shown["job_template"] == template
    assert define(ojs, 200, **shown)["job_template"] == template
    make_due()
    (fetched,) = ojs.fetch("reports")
    for name in ("type", "args", "schema", "x_trace"):
        assert fetched[name] == template[name]
    for name in ("queue", "priority", "timeout_ms", "visibility_timeout_ms", "tags"):
        assert fetched[name] == template["options"][name]
    assert (fetched["max_attempts"], fetched["meta"]["tenant"]) == (7, "acme")
    assert Job.objects.get().unique_policy == UniquePolicy(keys=["type"], on_conflict="ignore")


def test_other_names_of_the_same_are_understood(ojs):
    options = {"timeout": 30, "visibility_timeout": "PT1M", "retry_policy": {"initial_interval_ms": 5000}}
    shown = define(ojs, overlap_policy="cancel", timezone=None, job_template={**TEMPLATE, "options": options})
    assert (shown["overlap_policy"], shown["timezone"]) == ("cancel_previous", "UTC")
    assert shown["job_template"]["options"] == {
        "timeout_ms": 30_000,
        "visibility_timeout_ms": 60_000,
        "retry": {"initial_interval": "PT5S"},
    }


def test_a_known_name_is_changed_and_keeps_its_history(ojs):
    define(ojs, expression="* * * * *")
    make_due()
    assert len(ojs.fetch("reports")) == 1
    shown = define(ojs, 200, expression="@every PT5M", timezone="Asia/Tokyo", description="each five minutes")
    assert (shown["expression"], shown["timezone"]) == ("@every PT5M", "Asia/Tokyo")
    assert (shown["description"], shown["run_count"], "last_run_at" in shown) == ("each five minutes", 1, True)
    assert CronJob.objects.count() == 1


def test_the_next_run_is_that_of_the_zone(ojs):
    assert define(ojs, expression="0 9 * * *", timezone="Asia/Tokyo")["next_run_at"].endswith("T00:00:00Z")


def test_an_entry_can_be_disabled_and_enabled_alone(ojs):
    define(ojs, expression="* * * * *")
    shown = ojs.post(PATH, {"name": "nightly", "enabled": False}).json()["cron"]
    assert (shown["enabled"], shown["job_template"], "next_run_at" in shown) == (False, TEMPLATE, False)
    make_due()
    assert ojs.fetch("reports") == []
    answer = ojs.post(PATH, {"name": "nightly", "enabled": True})
    assert (answer.status_code, answer.json()["cron"]["enabled"]) == (200, True)
    assert answer.json()["cron"]["next_run_at"].endswith(":00Z")
    make_due()
    assert len(ojs.fetch("reports")) == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_many_who_define_a_name_at_once_one_creates_it(ojs):
    def post(number):
        return ojs.post(PATH, {**NIGHTLY, "name": f"n{number}"}).status_code

    for statuses in together([post] * 4, rounds=5):
        assert sorted(statuses) == [200, 200, 200, 201]


# What is refused


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"name": None}, "name"),
        ({"name": "No Name"}, "name"),
        ({"name": "a_b"}, "name"),
        ({"name": "x" * 256}, "name"),
        ({"name": 5}, "name"),
        ({"name": "a\0"}, "name"),
        ({"expression": None}, "expression"),
        ({"expression": ""}, "expression"),
        ({"expression": "every day"}, "expression"),
        ({"expression": "* * * * * * *"}, "expression"),
        ({"expression": "60 * * * *"}, "expression"),
        ({"expression": "*/0 * * * *"}, "expression"),
        ({"expression": "@sometimes"}, "expression"),
        ({"expression": 5}, "expression"),
        ({"expression": None, "cron": "x"}, "cron"),
        ({"timezone": "Mars/Olympus"}, "timezone"),
        ({"timezone": 1}, "timezone"),
        ({"overlap_policy": "maybe"}, "overlap_policy"),
        ({"overlap_policy": []}, "overlap_policy"),
        ({"enabled": "yes"}, "enabled"),
        ({"description": 1}, "description"),
        ({"description": "a\0"}, "description"),
        ({"time_zone": "UTC"}, "time_zone"),
        ({"job_template": None}, "job_template"),
        ({"job_template": "t"}, "job_template"),
        ({"job_template": {}}, "job_template.type"),
        ({"job_template": {"type": "No", "args": []}}, "job_template.type"),
        ({"job_template": {"type": "t"}}, "job_template.args"),
        ({"job_template": {"type": "t", "args": "x"}}, "job_template.args"),
        ({"job_template": {"type": "t", "args": ["\0"]}}, "job_template.args[0]"),
        ({"job_template": {"type": "t", "args": [], "meta": 1}}, "job_template.meta"),
        ({"job_template": {"type": "t", "args": [], "meta": {"a": "\0"}}}, "job_template.meta.a"),
        ({"job_template": {"type": "t", "args": [], "options": 1}}, "job_template.options"),
        ({"job_template": {"type": "t", "args": [], "options": {"queue": "No"}}}, "job_template.options.queue"),
        ({"job_template": {"type": "t", "args": [], "queue": "No"}}, "job_template.queue"),
        ({"job_template": {"type": "t", "args": [], "options": {"colour": 1}}}, "job_template.options.colour"),
        ({"job_template": {"type": "t", "args": [], "options": {"timeout_ms": 0}}}, "job_template.options.timeout_ms"),
        ({"job_template": {"type": "t", "args": [], "options": {"timeout": "x"}}}, "job_template.options.timeout"),
        ({"job_template": {"type": "t", "args": [], "options": {"tags": "x"}}}, "job_template.options.tags"),
        ({"job_template": {"type": "t", "args": [], "options": {"priority": 101}}}, "job_template.options.priority"),
        ({"job_template": None, "type": "t", "args": [], "priority": 101}, "priority"),
        ({"job_template": None, "type": "t", "args": [], "timezon": "UTC"}, "timezon"),
        ({"job_template": None, "type": "t", "args": [], "options": {"unique": {"keys": ["x"]}}}, "options.unique"),
        ({"job_template": {**TEMPLATE, "id": "01890a5d-ac96-774b-bcce-b302099a8057"}}, "job_template.id"),
        ({"job_template": {**TEMPLATE, "scheduled_at": "+PT1H"}}, "job_template.scheduled_at"),
        *(
            ({"job_template": {"type": "t", "args": [], "options": {name: value}}}, f"job_template.options.{name}")
            for name, value in {
                "delay": "PT1H",
                "delay_until": "+PT1H",
                "expires_at": "+PT1H",
                "pending": True,
                "rate_limit": {"max_per_second": 1},
            }.items()
        ),
    ],
    ids=str,
)
def test_what_is_invalid_is_refused_by_the_name_that_the_client_wrote(ojs, refused, change, field):
    body = {name: value for name, value in {**NIGHTLY, **change}.items() if value is not None}
    error = refused(ojs.post(PATH, body), 400, "invalid_request")
    assert error["details"]["field"].startswith(field)
    assert error["message"].startswith(error["details"]["field"])
    assert not CronJob.objects.exists()


def test_an_invalid_retry_policy_is_refused_as_one(ojs, refused):
    template = {**TEMPLATE, "options": {"retry": {"max_attempts": -1}}}
    error = refused(ojs.post(PATH, {**NIGHTLY, "job_template": template}), 422, "validation_error")
    assert "max_attempts" in error["message"]
    assert error["details"]["field"] == "job_template.options.retry.max_attempts"


@pytest.mark.parametrize("name", ["nightly", "No Name", 5])
def test_an_unknown_entry_can_be_neither_enabled_nor_disabled(ojs, refused, name):
    refused(ojs.post(PATH, {"name": name, "enabled": False}), 404, "not_found")


@pytest.mark.parametrize("name", ["nightly", "No%20Name", "%00", "x" * 300])
def test_an_unknown_entry_is_not_found(ojs, refused, name):
    refused(ojs.get(f"{PATH}/{name}"), 404, "not_found")
    refused(ojs.delete(f"{PATH}/{name}"), 404, "not_found")


# Deleting


def test_a_deleted_entry_is_shown_once_more_and_fires_no_longer(ojs, refused):
    shown = define(ojs, expression="* * * * *")
    make_due()
    answer = ojs.delete(f"{PATH}/nightly")
    assert answer.status_code == 200
    assert (answer.json()["deleted"], answer.json()["name"]) == (True, "nightly")
    assert answer.json()["cron"]["job_template"] == shown["job_template"]
    assert ojs.fetch("reports") == []
    refused(ojs.delete(f"{PATH}/nightly"), 404, "not_found")


# Declared in code


@pytest.mark.usefixtures("declared")
def test_what_is_declared_in_code_is_listed_and_can_be_disabled_but_neither_changed_nor_deleted(ojs, refused):
    (shown,) = ojs.get(PATH).json()["crons"]
    assert (shown["name"], shown["expression"], shown["job_template"]["type"]) == (
        "report_all",
        "@hourly",
        "report_all",
    )
    assert "in code" in refused(ojs.delete(f"{PATH}/report_all"), 409, "conflict")["message"]
    CronJob.objects.update(name="report.all")
    assert "in code" in refused(ojs.post(PATH, {**NIGHTLY, "name": "report.all"}), 409, "conflict")["message"]
    assert CronJob.objects.get().expression == "@hourly"
    assert ojs.post(PATH, {"name": "report.all", "enabled": False}).json()["cron"]["enabled"] is False
    assert CronJob.objects.get().declared


def test_an_entry_that_was_defined_in_python_or_changed_manually_is_shown(ojs):
    CronJob.objects.define(
        "a",
        "@daily",
        "t",
        {"n": 1},
        retry=RetryPolicy(max_attempts=5),
        timeout=timedelta(seconds=90),
        key="k",
    )
    options = ojs.get(f"{PATH}/a").json()["cron"]["job_template"]["options"]
    assert (options["timeout_ms"], options["retry"]["max_attempts"], options["key"]) == (90_000, 5, "k")
    for change in ({"timeout": "long", "unique": None}, {"extra": 5, "meta": "text"}, ["queue"], 5):
        CronJob.objects.update(options=change, expression="never", next_run_at=None)
        assert ojs.get(f"{PATH}/a").status_code == 200
    assert ojs.post(PATH, {"name": "a", "enabled": False}).status_code == 200
    assert ojs.post(PATH, {"name": "a", "enabled": True}).json()["error"]["details"]["field"] == "expression"


# Firing


@pytest.mark.parametrize("path", ["/ojs/v1/queues/reports/stats", "/ojs/v1/events", PATH, f"{PATH}/nightly"])
def test_what_is_due_fires_as_soon_as_anybody_looks(ojs, settings, path):
    """Section 8: a tick is seen without a worker, as is everything that time does."""
    settings.OJS_UNIQUE = {"EVENTS": True}
    define(ojs, expression="* * * * *")
    make_due()
    seen = ojs.get(path).json()
    assert Job.objects.get().type == "t"
    match path:
        case "/ojs/v1/queues/reports/stats":
            assert seen["queue"]["available"] == 1
        case "/ojs/v1/events":
            assert "cron.triggered" in [event["type"] for event in seen["events"]]
        case _:
            assert seen.get("cron", seen.get("crons", [None])[0])["run_count"] == 1


def test_a_fetch_fires_what_is_due_though_no_handler_is_here(ojs):
    define(ojs, expression="* * * * *")
    make_due()
    occurrence = CronJob.objects.get().next_run_at
    (fetched,) = ojs.fetch("reports")
    assert fetched["meta"] == {"cron_name": "nightly", "cron_triggered_at": f"{occurrence:%Y-%m-%dT%H:%M:%SZ}"}
    shown = ojs.get(f"{PATH}/nightly").json()["cron"]
    assert shown["run_count"] == 1
    assert "last_run_at" in shown


def test_an_unfinished_job_lets_the_next_occurrence_be_skipped_until_it_is_acknowledged(ojs):
    define(ojs, expression="* * * * *")
    before = timezone.now() - timedelta(minutes=2)
    CronJob.objects.update(next_run_at=before)
    cron.tick("default", before + timedelta(minutes=1))
    (fetched,) = ojs.fetch("reports")
    make_due()
    assert ojs.fetch("reports") == []
    assert CronJob.objects.get().last_outcome == "skipped"
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": fetched["id"]}).status_code == 200
    make_due()
    assert len(ojs.fetch("reports")) == 1


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_of_many_fetches_at_once_one_fires_the_occurrence(ojs):
    define(ojs, expression="@yearly", overlap_policy="allow")
    new_year = timezone.now().replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0)
    CronJob.objects.update(next_run_at=new_year)
    (fetched,) = together([lambda _: len(ojs.fetch("reports", count=5))] * 4)
    assert (Job.objects.count(), CronJob.objects.get().run_count) == (1, 1)
    assert sum(fetched) + len(ojs.fetch("reports")) == 1
