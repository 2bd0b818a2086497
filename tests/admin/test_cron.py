"""Periodic jobs in the admin: what code declares is read there, the rest can be made, changed and deleted."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import Cron, job
from django_ojs_unique.maintenance.cron import sync, tick
from django_ojs_unique.models import CronJob, Job
from tests.support.people import log_in

pytestmark = pytest.mark.django_db

LIST = "admin:django_ojs_unique_cronjob_changelist"
FORM = {
    "name": "reports.nightly",
    "description": "",
    "expression": "0 3 * * *",
    "timezone": "UTC",
    "overlap_policy": "skip",
    "enabled": "on",
    "type": "report.nightly",
    "args": "{}",
    "options": '{"queue": "reports"}',
}


def page(name, *args):
    return reverse(f"admin:django_ojs_unique_cronjob_{name}", args=args)


def define(name="nightly", **fields):
    values = {"expression": "0 3 * * *", "type": "report.nightly", "next_run_at": timezone.now() + timedelta(hours=1)}
    return CronJob.objects.create(name=name, **{**values, **fields})


def act(client, action, *entries):
    form = {"action": action, "_selected_action": [entry.pk for entry in entries]}
    response = client.post(reverse(LIST), form, follow=True)
    return [str(message) for message in response.context["messages"]]


def errors(response):
    return response.context["adminform"].form.errors


def test_the_list_shows_the_next_run_and_the_last_one_with_its_job(admin_client):
    last = Job.objects.enqueue("report.nightly").job
    define(last_run_at=timezone.now(), last_outcome="created", last_outcome_at=timezone.now(), last_job_id=last.pk)
    define("skips", last_outcome="skipped", last_outcome_at=timezone.now() - timedelta(minutes=2), outcome_count=5)
    define("off", enabled=False)
    text = admin_client.get(reverse(LIST)).content.decode()
    assert '<span class="ojs-badge ojs-created">created</span>' in text
    assert f"/job/{last.pk}/change/" in text
    assert ", 5 times in a row" in text
    assert "1 times in a row" not in text
    assert "disabled" in text


def test_the_list_is_filtered_by_the_last_outcome(admin_client):
    define(last_outcome="created")
    define("other", last_outcome="failed")
    found = admin_client.get(reverse(LIST), {"outcome": "failed"}).context["cl"].result_list
    assert [entry.name for entry in found] == ["other"]
    assert len(admin_client.get(reverse(LIST)).context["cl"].result_list) == 2


def test_a_periodic_job_is_made_and_its_next_run_is_counted(admin_client):
    response = admin_client.post(page("add"), FORM)
    assert response.status_code == 302
    entry = CronJob.objects.get()
    assert (entry.name, entry.options, entry.declared) == ("reports.nightly", {"queue": "reports"}, False)
    assert entry.next_run_at > timezone.now()
    assert LogEntry.objects.get().object_id == "reports.nightly"


def test_args_and_options_that_are_left_empty_are_empty_objects(admin_client):
    admin_client.post(page("add"), {**FORM, "args": "", "options": ""})
    entry = CronJob.objects.get()
    assert (entry.args, entry.options) == ({}, {})


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "Not A Name"),
        ("expression", "every day"),
        ("timezone", "Mars/Phobos"),
        ("type", "no type"),
        ("args", "{"),
        ("args", "7"),
        ("options", "[1"),
        ("options", "[1]"),
        ("options", '{"colour": 1}'),
        ("options", '{"unique": {"keys": ["colour"]}}'),
        ("options", '{"queue": "Not A Queue"}'),
        ("options", '{"meta": 5}'),
        ("options", '{"retry": 5}'),
        ("overlap_policy", "never"),
    ],
)
def test_what_is_wrong_is_told_beside_the_field(admin_client, field, value):
    response = admin_client.post(page("add"), {**FORM, field: value})
    assert response.status_code == 200
    assert list(errors(response)) == [field]
    assert not CronJob.objects.exists()


def test_changing_the_times_counts_the_next_run_anew_and_leaves_what_workers_wrote(admin_client):
    entry = define("reports.nightly", run_count=7, last_outcome="created", description="old")
    response = admin_client.post(page("change", "reports.nightly"), {**FORM, "expression": "@every PT5M"})
    assert response.status_code == 302
    before, entry = entry, CronJob.objects.get()
    assert entry.next_run_at < before.next_run_at
    assert (entry.run_count, entry.last_outcome, entry.description) == (7, "created", "")


def test_the_name_cannot_be_changed(admin_client):
    define()
    admin_client.post(page("change", "nightly"), {**FORM, "name": "other", "description": "new"})
    assert CronJob.objects.get().name == "nightly"
    assert CronJob.objects.get().description == "new"


def test_a_name_that_was_broken_manually_is_told_when_the_entry_is_changed(admin_client):
    define("Bad Name")
    address = page("change", "Bad Name").replace(" ", "%20")
    assert list(errors(admin_client.post(address, {**FORM, "type": "x"}))) == ["name"]


def test_an_entry_made_manually_can_be_deleted(admin_client):
    define()
    assert admin_client.post(page("delete", "nightly"), {"post": "yes"}).status_code == 302
    assert not CronJob.objects.exists()


def test_what_code_declares_is_only_read(admin_client):
    define(declared=True, args={"x": "<b>"})
    text = admin_client.get(page("change", "nightly")).content.decode()
    assert "Declared in code: change it there." in text
    assert "&lt;b&gt;" in text
    assert 'name="_save"' not in text
    assert admin_client.post(page("change", "nightly"), FORM).status_code == 403
    assert admin_client.post(page("delete", "nightly"), {"post": "yes"}).status_code == 403
    (told,) = act(admin_client, "delete_selected", CronJob.objects.get())
    assert told.startswith("Declared in code: nightly. Remove it there, or disable it here.")
    form = {"action": "delete_selected", "_selected_action": ["nightly"], "post": "yes"}
    admin_client.post(reverse(LIST), form)
    assert CronJob.objects.exists()


def test_disabling_what_code_declares_holds_when_a_worker_starts(admin_client, handlers):
    job("report.daily", cron=Cron("0 6 * * *"))(lambda: None)
    sync("default", timezone.now())
    entry = CronJob.objects.get(name="report.daily")
    assert act(admin_client, "disable", entry) == ["Disabled: 1 cron job."]
    sync("default", timezone.now())
    entry.refresh_from_db()
    assert not entry.enabled
    assert LogEntry.objects.get().get_change_message() == "Disabled."


def test_an_entry_that_is_enabled_runs_next_and_not_for_what_it_missed(admin_client):
    entry = define(enabled=False, next_run_at=timezone.now() - timedelta(days=3))
    assert act(admin_client, "enable", entry) == ["Enabled: 1 cron job."]
    entry.refresh_from_db()
    assert entry.enabled
    assert entry.next_run_at > timezone.now()
    assert act(admin_client, "enable", entry) == ["Nothing was changed."]
    assert LogEntry.objects.count() == 1


@pytest.mark.slow
def test_an_entry_whose_times_cannot_be_read_is_shown_and_not_enabled(admin_client):
    entry = define(expression="nonsense", enabled=False)
    assert admin_client.get(page("change", "nightly")).status_code == 200
    refused = act(admin_client, "enable", entry)[0]
    assert refused.startswith("nightly cannot be enabled: ")
    entry.refresh_from_db()
    assert not entry.enabled
    define("other", expression="nonsense")
    assert act(admin_client, "disable", CronJob.objects.get(name="other")) == ["Disabled: 1 cron job."]


def test_only_the_permissions_of_django_count(client):
    entry = define()
    log_in(client, "view_cronjob")
    assert client.get(reverse(LIST)).context["action_form"] is None
    act(client, "disable", entry)
    assert client.post(page("change", "nightly"), FORM).status_code == 403
    assert client.post(page("delete", "nightly"), {"post": "yes"}).status_code == 403
    assert client.post(page("add"), FORM).status_code == 403
    entry.refresh_from_db()
    assert (entry.enabled, CronJob.objects.count()) == (True, 1)


def test_an_entry_that_is_not_there_is_told(admin_client):
    assert admin_client.get(page("change", "nothing")).status_code == 302
    assert admin_client.post(page("change", "nothing"), FORM).status_code == 302


# Run now, and the history


def test_run_now_enqueues_a_job_and_says_and_logs_what_came_out(admin_client):
    entry = define(args={"x": 1}, enabled=False)
    (said,) = act(admin_client, "run_now", entry)
    made = Job.objects.get()
    assert said.startswith("Cron job nightly ran now: <a href=")
    assert str(made.pk) in said
    assert LogEntry.objects.get().get_change_message() == f"Ran now: created job {made.pk}."
    (refused,) = act(admin_client, "run_now", entry)
    assert refused.startswith("Cron job nightly enqueued nothing: skipped, because of <a href=")
    newest = LogEntry.objects.order_by("-pk").first()
    assert newest.get_change_message() == f"Ran now: skipped because of job {made.pk}."
    assert Job.objects.count() == 1


def test_what_cannot_be_run_now_is_told_with_the_hint(admin_client):
    entry = define(options={"priority": 1000})
    (said,) = act(admin_client, "run_now", entry)
    assert said.startswith("Cron job nightly enqueued nothing: priority")
    assert LogEntry.objects.get().get_change_message().startswith("Ran now: failed. priority")
    assert not Job.objects.exists()


def test_what_code_declares_is_run_now_from_its_page(admin_client):
    define(declared=True)
    text = admin_client.get(page("change", "nightly")).content.decode()
    assert '<input type="submit" value="Run now">' in text
    form = {"action": "run_now", "_selected_action": ["nightly"], "_from_page": "1"}
    response = admin_client.post(reverse(LIST), form)
    assert response.url == page("change", "nightly")
    assert Job.objects.count() == 1


def test_who_may_not_change_an_entry_cannot_run_it_now(client):
    entry = define()
    log_in(client, "view_cronjob", "view_job")
    assert "Run now" not in client.get(page("change", "nightly")).content.decode()
    act(client, "run_now", entry)
    assert not Job.objects.exists()


@pytest.mark.slow
def test_the_page_links_to_the_last_jobs_and_says_who_ran_them(admin_client):
    now = timezone.now()
    entry = define(expression="@every PT1H", next_run_at=now - timedelta(hours=1), created_at=now - timedelta(days=2))
    CronJob.objects.update(overlap_policy="allow")
    tick("default", now)
    scheduled = Job.objects.get()
    Job._base_manager.update(state="discarded", finished_at=now, errors=[{"type": "E", "message": "<b>"}])
    act(admin_client, "run_now", entry)
    by_hand = Job.objects.exclude(pk=scheduled.pk).get()
    act(admin_client, "run_now", entry)
    Job.objects.enqueue("report.nightly")
    told = (
        admin_client.get(page("change", "nightly"))
        .content.decode()
        .partition("Its last jobs")[2]
        .partition("</table>")[0]
    )
    assert told.count('<th scope="row"') == 3
    rows = {id: row for row in told.split("<tr>") for id in re.findall("/job/([0-9a-f-]{36})/", row)}
    assert "its schedule" in rows[str(scheduled.pk)]
    assert "E: &lt;b&gt;" in rows[str(scheduled.pk)]
    assert "<td>admin</td>" in rows[str(by_hand.pk)]


def test_the_history_takes_few_statements(admin_client, django_assert_max_num_queries):
    define(expression="* * * * *", created_at=timezone.now() - timedelta(days=900))
    with django_assert_max_num_queries(8):
        assert b"None of its last 20 occurrences has a job" in admin_client.get(page("change", "nightly")).content


def test_the_last_jobs_are_for_those_who_may_view_jobs(client):
    define()
    log_in(client, "view_cronjob")
    assert b"Last jobs" not in client.get(page("change", "nightly")).content
