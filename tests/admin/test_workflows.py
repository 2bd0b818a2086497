"""The pages of workflows: their list, the drawing of one, and what cancels them."""

import re
from datetime import timedelta

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext, override_settings
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import batch, chain, group
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.testing import run_jobs, run_one
from tests.support.flows import declare, do, fail
from tests.support.people import give, log_in
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db
LIST = "admin:django_ojs_unique_workflow_changelist"
ONCE = {"keys": ["type", "args"], "on_conflict": "ignore"}


@pytest.fixture(autouse=True)
def _declared(handlers):
    declare()


def page_of(workflow):
    return reverse("admin:django_ojs_unique_workflow_change", args=[workflow.pk])


def page_of_job(job):
    return reverse("admin:django_ojs_unique_job_change", args=[job.pk])


def words(answer):
    assert answer.status_code == 200
    text = re.sub(r"<(script|style|svg).*?</\1>", " ", answer.content.decode(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", text))


def look(client, workflow):
    return words(client.get(page_of(workflow)))


def listed(client, **query):
    return [row.pk for row in client.get(reverse(LIST), query).context["cl"].result_list]


def cancel(client, *workflows, **fields):
    form = {"action": "cancel", "_selected_action": [workflow.pk for workflow in workflows], **fields}
    return client.post(reverse(LIST), form, follow=True)


def messages(answer):
    return list(map(str, answer.context["messages"]))


@pytest.fixture
def month_end():
    """A chain whose first step has run."""
    exports = batch([do("csv"), do("pdf")], on_success=do("mail"), on_failure=do("alert"), name="exports")
    workflow = chain(do("close", name="ledger"), exports, do("tell"), name="month-end").enqueue()
    run_one()
    advance()
    return workflow


# The list


@pytest.mark.slow
def test_the_list_shows_outermost_workflows_with_their_progress(admin_client, month_end):
    other = group([fail("a"), do("b")]).enqueue()
    run_jobs()
    Workflow.objects.filter(pk=other.pk).update(
        started_at=timezone.now() - timedelta(seconds=3), finished_at=timezone.now() - timedelta(seconds=1)
    )
    assert listed(admin_client) == [other.pk, month_end.pk]
    text = words(admin_client.get(reverse(LIST)))
    assert re.search(r"group group failed 1 of 2 1 failed \d+s ago 2.0 s", text)
    assert "month-end chain completed 4 of 4" in text


@pytest.mark.slow
def test_the_list_is_narrowed_and_searched(admin_client, month_end):
    other = group([do("x")], name="Exports of x").enqueue()
    other.cancel()
    assert listed(admin_client, state="running") == [month_end.pk]
    assert listed(admin_client, state="nothing") == []
    assert listed(admin_client, type="group") == [other.pk]
    assert listed(admin_client, q="exports") == [other.pk]
    nested = Workflow.objects.get(root=month_end)
    for id in (month_end.pk, nested.pk, Job.objects.get(args__what="close").pk, Job.objects.get(args__what="pdf").pk):
        assert listed(admin_client, q=id) == [month_end.pk]
    assert listed(admin_client, q=new_id()) == []
    assert listed(admin_client, created_at__gte=timezone.now() + timedelta(days=1)) == []
    Workflow.objects.filter(pk=other.pk).update(created_at=timezone.now() - timedelta(days=3))
    assert listed(admin_client, created_at__gte=timezone.now() - timedelta(days=1)) == [month_end.pk]


def test_the_list_takes_as_many_queries_for_any_number(admin_client):
    def queries(url):
        with CaptureQueriesContext(connection) as seen:
            admin_client.get(url)
        return len(seen)

    group([do("a"), do("b")]).enqueue()
    few = queries(reverse(LIST))
    for _ in range(5):
        chain(do("a"), group([do("b"), do("c")])).enqueue()
    assert queries(reverse(LIST)) == few <= 6


@pytest.mark.slow
def test_whatever_a_name_says_is_shown_as_text(admin_client):
    tag = "<script>alert(1)</script>"
    workflow = group([do(tag, name=tag), fail(f"{tag}\x1b"), chain(do("a"), name=tag)], name=tag).enqueue()
    run_jobs()
    for url in (reverse(LIST), page_of(workflow), page_of_job(Job.objects.first())):
        answer = admin_client.get(url)
        assert answer.status_code == 200
        assert "<script>alert" not in answer.content.decode()
        assert "\x1b" not in answer.content.decode()


# The page


@pytest.mark.slow
def test_the_page_draws_states_and_what_waits_for_what(admin_client, month_end):
    text = look(admin_client, month_end)
    assert "1 ledger completed" in text
    assert "2 exports batch pending" in text
    assert "If all complete do waiting when all jobs have completed" in text
    assert "3 do waiting after step 2 (exports)" in text
    body = admin_client.get(page_of(month_end)).content.decode()
    for job in Job.objects.all():
        assert page_of_job(job) in body
    assert "ojs-steps" in body
    assert "ojs-beside" in body


@pytest.mark.slow
def test_the_page_shows_results_errors_and_callbacks_that_are_not_needed(admin_client):
    workflow = batch([do("a"), fail("b")], on_success=do("c"), on_failure=do("d")).enqueue()
    run_jobs()
    text = look(admin_client, workflow)
    assert "attempt 1 of " in text
    assert "&quot;a&quot;" in text
    assert "Discard: b fails" in text
    assert "If all complete do not needed" in text
    assert "If one fails do completed" in text


@pytest.mark.slow
def test_what_is_redacted_is_not_shown(admin_client):
    workflow = chain(do("a", {"token": "hush"}), fail("hush")).enqueue()
    run_jobs()
    assert look(admin_client, workflow).count("hush") == 2
    with override_settings(OJS_UNIQUE={"REDACT": ["token", "message"]}):
        text = look(admin_client, workflow)
    assert "hush" not in text
    assert text.count("[redacted]") == 2


def test_a_stand_in_is_marked_with_the_workflow_that_enqueued_it(admin_client):
    first = chain(do("a", unique=ONCE), name="first").enqueue()
    second = chain(do("a", unique=ONCE), name="second").enqueue()
    answer = admin_client.get(page_of(second))
    assert "a duplicate that stands in, enqueued by first" in words(answer)
    assert page_of(first) in answer.content.decode()
    assert "stands in" not in look(admin_client, first)
    Job.objects.enqueue("do", {"what": "b", "returns": None}, unique=ONCE)
    third = chain(do("b", unique=ONCE)).enqueue()
    assert "a duplicate that stands in" in look(admin_client, third)


@pytest.mark.slow
def test_of_many_members_a_part_is_drawn(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.workflows.MOST_MEMBERS", 2)
    workflow = group([do("a"), do("b"), fail("c"), do("d")]).enqueue()
    run_jobs()
    text = look(admin_client, workflow)
    assert "3 fail failed" in text
    assert "and 2 more: 2 completed" in text


@pytest.mark.slow
def test_a_page_takes_as_many_queries_for_any_size(admin_client):
    def queries(size):
        inner = [batch([do(f"{one}"), do("b")], on_success=do("c")) for one in range(size)]
        workflow = chain(group(inner), do("d")).enqueue()
        with CaptureQueriesContext(connection) as seen:
            admin_client.get(page_of(workflow))
        return len(seen)

    queries(1)
    assert queries(1) == queries(20) <= 10


@pytest.mark.slow
def test_a_nested_workflow_has_its_place_on_the_page_of_the_outermost_one(admin_client, month_end):
    nested = Workflow.objects.get(root=month_end)
    assert f'id="workflow-{nested.pk}"' in admin_client.get(page_of(month_end)).content.decode()
    assert admin_client.get(page_of(nested)).status_code == 302
    body = admin_client.get(page_of_job(Job.objects.get(args__what="pdf"))).content.decode()
    assert f"{page_of(month_end)}#workflow-{nested.pk}" in body


def test_a_workflow_is_only_shown_and_cancelled(admin_client, month_end):
    assert admin_client.post(page_of(month_end), {}).status_code == 403
    assert admin_client.get(reverse("admin:django_ojs_unique_workflow_add")).status_code == 403
    url = reverse("admin:django_ojs_unique_workflow_delete", args=[month_end.pk])
    assert admin_client.post(url, {"post": "yes"}).status_code == 403


@pytest.mark.parametrize("id", ["x", "0", "a\0b"])
def test_what_is_no_id_finds_no_page(admin_client, id):
    assert admin_client.get(f"/admin/django_ojs_unique/workflow/{id}/change/").status_code in (302, 404)
    assert admin_client.post(reverse(LIST), {"action": "cancel", "_selected_action": ["x"]}).status_code == 302


# A job's page


@pytest.mark.slow
def test_the_page_of_a_job_says_which_step_it_is(admin_client, month_end):
    shown = {what: words(admin_client.get(page_of_job(Job.objects.get(args__what=what)))) for what in ("close", "pdf")}
    assert "Workflow step 1 of 3 in month-end" in shown["close"]
    assert "Workflow job 2 of 2 in month-end" in shown["pdf"]
    run_jobs()
    mail = words(admin_client.get(page_of_job(Job.objects.get(args__what="mail"))))
    assert "Workflow the callback on_success of month-end" in mail


def test_the_page_of_a_stand_in_names_both_workflows(admin_client):
    chain(do("a", unique=ONCE), name="first").enqueue()
    chain(do("a", unique=ONCE), do("b"), name="second").enqueue()
    text = words(admin_client.get(page_of_job(Job.objects.get())))
    assert "Workflow step 1 of 1 in first" in text
    assert "Stands in as step 1 of 2 in second" in text


def test_a_job_names_its_workflow_to_those_who_may_view_workflows(client, month_end):
    log_in(client, "view_job")
    answer = client.get(page_of_job(Job.objects.get(args__what="pdf")))
    assert "month-end" not in words(answer)
    assert client.get(page_of(month_end)).status_code == 403


@pytest.mark.slow
def test_what_jobs_returned_is_shown_to_those_who_may_view_jobs(client, month_end):
    user = log_in(client, "view_workflow")
    group([do("hush"), fail("hush")], name="other").enqueue()
    run_jobs()
    for workflow in Workflow.objects.roots().order_by("created_at"):
        answer = client.get(page_of(workflow))
        assert "completed" in words(answer)
        assert "hush" not in words(answer)
        assert "/job/" not in answer.content.decode()
    give(user, "view_job")
    assert look(client, workflow).count("hush") == 2


# Cancelling


def test_cancelling_asks_first_and_says_what_it_would_stop(admin_client, month_end):
    Job._base_manager.filter(args__what="csv").update(state="active", attempt=1, started_at=timezone.now())
    text = words(cancel(admin_client, month_end))
    assert "1 job is cancelled." in text
    assert "1 running job goes on, without another attempt." in text
    assert "3 jobs are never enqueued." in text
    assert "Cancel the jobs that run, too" in text
    month_end.refresh_from_db()
    assert month_end.state == "running"


@pytest.mark.slow
def test_a_confirmed_cancellation_is_done_and_logged(admin_client, month_end):
    answer = cancel(admin_client, month_end, _confirmed="yes")
    assert messages(answer) == ["Cancelled: 1 workflow. 2 jobs were cancelled."]
    month_end.refresh_from_db()
    assert month_end.state == "cancelled"
    assert LogEntry.objects.get().get_change_message() == "Cancelled with 2 jobs."
    assert set(Job.objects.values_list("state", flat=True)) == {"completed", "cancelled"}


@pytest.mark.parametrize(("fields", "state"), [({}, "active"), ({"active": "on"}, "cancelled")])
def test_jobs_that_run_are_cancelled_if_asked(admin_client, fields, state):
    workflow = group([do("a")]).enqueue()
    Job._base_manager.update(state="active", attempt=1, started_at=timezone.now())
    cancel(admin_client, workflow, _confirmed="yes", **fields)
    assert Job.objects.get().state == state


@pytest.mark.slow
def test_from_its_page_the_answer_leads_back_there(admin_client, month_end):
    body = admin_client.get(page_of(month_end)).content.decode()
    assert 'value="cancel"' in body
    assert (
        f'href="{page_of(month_end)}" class="button"'
        in cancel(admin_client, month_end, _from_page="1").content.decode()
    )
    answer = cancel(admin_client, month_end, _from_page="1", _confirmed="yes")
    assert answer.redirect_chain == [(page_of(month_end), 302)]
    assert 'value="cancel"' not in answer.content.decode()


@pytest.mark.slow
def test_one_that_has_ended_stays_as_it_is(admin_client):
    workflow = chain(do("a")).enqueue()
    run_jobs()
    assert "Stays as it is. It has ended." in words(cancel(admin_client, workflow))
    (told,) = messages(cancel(admin_client, workflow, _confirmed="yes"))
    assert told == f"Workflow {workflow.pk} is completed; only a running one can be cancelled."
    assert not LogEntry.objects.exists()


def test_not_too_many_are_cancelled_at_once(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.workflows.MOST_CANCELLED", 1)
    both = [chain(do(name)).enqueue() for name in "ab"]
    (told,) = messages(cancel(admin_client, *both, _confirmed="yes"))
    assert told == "Nothing was done: choose 1 workflows at most."
    assert Workflow.objects.running().count() == 2


def test_only_those_who_may_cancel_are_offered_it(client, month_end):
    log_in(client, "view_workflow")
    assert 'value="cancel"' not in client.get(page_of(month_end)).content.decode()
    cancel(client, month_end, _confirmed="yes")
    month_end.refresh_from_db()
    assert month_end.state == "running"
