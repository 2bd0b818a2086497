"""``manage.py jobs workflows``, ``workflow`` and ``cancel-workflow``."""

import io
import json
from datetime import timedelta
from uuid import uuid4

import pytest
from django.core.management import CommandError, call_command
from django.test.utils import override_settings
from django.utils import timezone

from django_ojs_unique import batch, chain, group
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.reporting import workflows as report
from django_ojs_unique.testing import run_jobs, run_one
from tests.support.flows import declare, do, fail
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _declared(handlers):
    declare()


def jobs(*arguments):
    out = io.StringIO()
    call_command("jobs", *map(str, arguments), stdout=out, stderr=out)
    return out.getvalue()


def answer(*arguments):
    return json.loads(jobs(*arguments, "--json"))


def ids(*arguments):
    return [one["id"] for one in answer("workflows", *arguments)]


@pytest.fixture
def month_end():
    """A chain whose first step has run."""
    exports = batch([do("csv"), do("pdf")], on_success=do("mail"), on_failure={"type": "do"}, name="exports")
    workflow = chain(do("close", name="ledger"), exports, do("tell"), name="month-end").enqueue()
    run_one()
    advance()
    return workflow


def test_the_list_begins_with_the_newest_and_counts_all_jobs(month_end):
    other = group([do("x")]).enqueue()
    heading, first, second = jobs("workflows").splitlines()
    assert heading.split() == ["id", "state", "kind", "jobs", "done", "age", "took", "name"]
    assert first.split()[:3] == [str(other.pk), "running", "group"]
    assert f"{month_end.pk}  running  chain  1 of 4" in second
    assert second.endswith("month-end")
    told = answer("workflows")[1]
    assert (told["jobs_total"], told["jobs_completed"], told["jobs_failed"]) == (4, 1, 0)


@pytest.mark.slow
def test_the_list_tells_of_failures_and_how_long_it_took():
    group([do("a"), fail("b")]).enqueue()
    run_jobs()
    start = timezone.now() - timedelta(minutes=10)
    Workflow.objects.update(created_at=start, started_at=start, finished_at=start + timedelta(seconds=90))
    assert "failed  group  1 of 2, 1 failed  10m  1.5m" in jobs("workflows")


@pytest.mark.slow
def test_the_list_is_narrowed(month_end):
    other = group([do("x")], name="x").enqueue()
    other.cancel()
    assert ids("--state", "cancelled", "failed") == [str(other.pk)]
    assert ids("--kind", "chain") == [str(month_end.pk)]
    assert ids("--name", "month-end") == [str(month_end.pk)]
    assert ids("--name", "month") == []
    assert "No workflow matches." in jobs("workflows", "--kind", "batch")
    assert "There are more: --limit 5 shows up to 5." in jobs("workflows", "--limit", "1")


def test_without_workflows_the_list_says_how_to_make_one():
    assert "chain(...).enqueue() makes one." in jobs("workflows")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["workflows", "--state", "complete"], r"'completed'\?"),
        (["workflows", "--kind", "Chain"], r"'chain'\?"),
        (["workflow", "x"], "UUID"),
    ],
)
def test_wrong_arguments_are_refused_with_a_hint(arguments, message):
    with pytest.raises(CommandError, match=message):
        jobs(*arguments)


def test_the_tree_says_what_each_member_does_and_what_it_waits_for(month_end):
    lines = [line.strip() for line in jobs("workflow", month_end.pk).splitlines()]
    members = {line.split()[1] if line[0].isdigit() else line.split()[0]: line for line in lines[1:]}
    assert members["ledger"].startswith("1. ledger  completed  attempt 1/")
    assert 'result: "close"' in lines
    assert members["exports"].startswith("2. exports  pending  batch ")
    assert members["on_success:"] == "on_success: do  waiting  when all jobs have completed"
    assert members["on_failure:"] == "on_failure: do  waiting  when all jobs have ended and one has failed"
    assert "3. do  waiting  after step 2 (exports)" in lines


@pytest.mark.slow
def test_the_tree_shows_errors_and_what_was_not_needed():
    workflow = batch([fail("a")], on_success=do("mail"), on_complete=do("end")).enqueue()
    run_jobs()
    text = jobs("workflow", workflow.pk)
    assert "1. fail  failed  attempt 1/" in text
    assert "error: " in text
    assert ": a fails" in text
    assert "on_success: do  not needed\n" in text
    top = answer("workflow", workflow.pk)
    assert (top["state"], top["members"][0]["error"]["message"]) == ("completed", "a fails")
    assert top["callbacks"]["on_success"]["state"] == "skipped"


def test_a_nested_workflow_names_the_one_around_it(month_end):
    nested = Workflow.objects.get(root=month_end)
    text = jobs("workflow", nested.pk)
    assert f"It is part of workflow {month_end.pk}." in text
    assert "month-end" not in text


@pytest.mark.slow
def test_of_many_members_the_failed_ones_come_first(monkeypatch):
    monkeypatch.setattr(report, "MOST_MEMBERS", 2)
    workflow = group([do("a"), do("b"), fail("c"), do("d")]).enqueue()
    run_jobs()
    text = jobs("workflow", workflow.pk)
    assert "3. fail  failed" in text
    assert "1. do  completed" in text
    assert "and 2 more (2 completed)" in text


def test_a_stand_in_is_marked():
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    first = chain(do("a", unique=unique), name="first").enqueue()
    second = chain(do("a", unique=unique)).enqueue()
    assert f"stands in, from workflow {first.pk}" in jobs("workflow", second.pk)
    assert "stands in" not in jobs("workflow", first.pk)


@pytest.mark.slow
def test_what_is_redacted_is_not_shown():
    workflow = chain(do("a", {"token": "secret"}), fail("secret"), name="x").enqueue()
    run_jobs()
    with override_settings(OJS_UNIQUE={"REDACT": ["token", "message"]}):
        text = jobs("workflow", workflow.pk) + jobs("workflow", workflow.pk, "--json")
    assert "secret" not in text
    assert "[redacted]" in text


def test_control_characters_are_escaped():
    workflow = chain(fail("a\x1b[2J")).enqueue()
    Workflow.objects.update(name="\x1b[2K")
    run_jobs()
    assert "\x1b" not in jobs("workflow", workflow.pk)
    assert "\x1b" not in jobs("workflows")


def test_a_dry_run_says_what_a_cancellation_would_stop(month_end):
    workflow, before = month_end, list(Job.objects.values_list("pk", "state").order_by("pk"))
    text = jobs("cancel-workflow", workflow.pk, "--dry-run")
    assert "2 jobs would be cancelled, and 3 would never be enqueued." in text
    assert "Nothing was changed." in text
    assert list(Job.objects.values_list("pk", "state").order_by("pk")) == before
    told = answer("cancel-workflow", workflow.pk, "--dry-run")
    assert told == {"dry_run": True, "jobs": 2, "running": 0, "unborn": 3, "shared": 0}


@pytest.mark.slow
def test_a_cancellation_does_what_the_dry_run_said(month_end):
    told = answer("cancel-workflow", month_end.pk)
    assert told == {"id": str(month_end.pk), "state": "cancelled", "jobs": 2, "running": 0}
    run_jobs()
    assert Job.objects.filter(state="completed").count() == 1
    assert "Nothing would be done: it is cancelled." in jobs("cancel-workflow", month_end.pk, "--dry-run")
    with pytest.raises(CommandError, match="is cancelled"):
        jobs("cancel-workflow", month_end.pk)


def test_jobs_that_run_are_cancelled_if_asked():
    workflow = group([do("a"), do("b")]).enqueue()
    running = Job.objects.first()
    Job._base_manager.filter(pk=running.pk).update(state="active", attempt=1, started_at=timezone.now())
    dry = jobs("cancel-workflow", workflow.pk, "--dry-run")
    assert "1 job would be cancelled" in dry
    assert "1 job would go on, without another attempt; --active cancels them as well." in dry
    assert "2 jobs would be cancelled" in jobs("cancel-workflow", workflow.pk, "--dry-run", "--active")
    assert "with 2 jobs." in jobs("cancel-workflow", workflow.pk, "--active")


def test_a_part_that_was_cancelled_before_is_not_counted():
    workflow = group([group([do("a"), do("b")]), do("c")]).enqueue()
    Job._base_manager.filter(args__what="a").update(state="active", attempt=1, started_at=timezone.now())
    Workflow.objects.get(root=workflow).cancel()
    told = answer("cancel-workflow", workflow.pk, "--dry-run")
    assert told == {"dry_run": True, "jobs": 1, "running": 0, "unborn": 0, "shared": 0}
    assert answer("cancel-workflow", workflow.pk) | {"id": ""} == {
        "id": "",
        "state": "cancelled",
        "jobs": 1,
        "running": 0,
    }


def test_the_last_part_of_a_workflow_that_waits_for_a_job_cancels_it():
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    workflow = group([group([do("a", unique=unique)]), do("a", unique=unique)]).enqueue()
    Workflow.objects.get(root=workflow).cancel()
    told = answer("cancel-workflow", workflow.pk, "--dry-run")
    assert told == {"dry_run": True, "jobs": 1, "running": 0, "unborn": 0, "shared": 0}
    assert answer("cancel-workflow", workflow.pk)["jobs"] == 1


def test_a_job_of_another_workflow_goes_on():
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    chain(do("a", unique=unique)).enqueue()
    second = group([do("a", unique=unique), do("b")]).enqueue()
    text = jobs("cancel-workflow", second.pk, "--dry-run")
    assert "1 job would be cancelled" in text
    assert "1 job would go on, for others." in text
    assert "with 1 job." in jobs("cancel-workflow", second.pk)


@pytest.mark.parametrize("name", ["workflow", "cancel-workflow"])
def test_a_missing_workflow_is_an_error(name):
    missing = uuid4()
    with pytest.raises(CommandError, match=f"no workflow {missing}"):
        jobs(name, missing)
