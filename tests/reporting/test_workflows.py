"""The tree of a workflow: the states that are shown, and how much of it is read."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique import batch, chain, group
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.reporting import workflows as report
from django_ojs_unique.reporting.workflows import job_counts, memberships_of, tree
from django_ojs_unique.testing import run_jobs
from tests.support.flows import declare, do, fail
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _declared(handlers):
    declare()


def states(workflow):
    top = tree(workflow)
    return [node.state for node in top.walk()]


@pytest.mark.parametrize(
    ("values", "shown"),
    [
        ({}, "pending"),
        ({"state": "scheduled"}, "pending"),
        ({"state": "retryable"}, "pending"),
        ({"state": "pending"}, "pending"),
        ({"state": "active"}, "active"),
        ({"state": "completed", "finished_at": timezone.now()}, "active"),  # it is not counted yet
    ],
)
def test_the_state_of_a_member_follows_from_its_job(values, shown):
    workflow = chain(do("a"), do("b")).enqueue()
    Job._base_manager.update(**values)
    assert states(workflow) == [shown, shown, "waiting"]


def test_a_member_whose_job_is_gone_is_shown():
    workflow = chain(do("a")).enqueue()
    Job._base_manager.all().delete()
    (node,) = tree(workflow).nodes
    assert (node.state, node.type, node.job) == ("pending", "do", None)


@pytest.mark.slow
def test_a_pruned_workflow_keeps_types_and_results():
    workflow = chain(do("a"), fail("b"), do("c")).enqueue()
    run_jobs()
    Job._base_manager.all().delete()
    a, b, c = tree(workflow).nodes
    assert [node.state for node in (a, b, c)] == ["completed", "failed", "cancelled"]
    assert (a.type, a.result) == ("do", '"a"')
    assert b.error["message"] == "b fails"


@pytest.mark.slow
def test_nested_workflows_are_pending_active_and_what_became_of_them():
    workflow = chain(group([do("a"), do("b")]), chain(do("c"), do("d"))).enqueue()
    assert states(workflow) == ["pending", "pending", "pending", "pending", "waiting", "waiting", "waiting"]
    Job._base_manager.filter(pk=Job.objects.order_by("pk")[0].pk).update(state="active")
    assert states(workflow)[:3] == ["active", "active", "active"]
    second = tree(workflow).nodes[1]
    assert [node.waits for node in (second, *second.nodes)] == [
        "after step 1 (group)",
        "after step 1 (group)",
        "after step 1 (do)",
    ]
    Workflow.objects.get(pk=second.workflow.pk).cancel()
    assert tree(workflow).nodes[1].state == "cancelled"


def test_a_retry_that_waits_has_no_duration():
    workflow = chain(do("a")).enqueue()
    now = timezone.now()
    Job._base_manager.update(state="retryable", started_at=now - timedelta(minutes=1))
    assert tree(workflow).nodes[0].duration(now) is None
    Job._base_manager.update(state="active")
    assert tree(workflow).nodes[0].duration(now) == timedelta(minutes=1)
    assert tree(workflow).duration(now) == timedelta(minutes=1)


@pytest.mark.slow
def test_long_results_are_cut_and_too_long_ones_only_told(handlers):
    workflow = group([do("a", "x" * 1000), do("b", list(range(20_000))), do("c", False)]).enqueue()
    run_jobs()
    a, b, c = tree(workflow).nodes
    assert (len(a.result), a.result[-1]) == (report.LONGEST, "…")
    assert b.result.startswith("[0, 1, 2") or b.result == "too long to be shown here"
    assert c.result == "false"


def test_a_tree_is_read_in_as_many_queries_for_any_size():
    def queries(workflow):
        with CaptureQueriesContext(connection) as seen:
            tree(workflow)
        return len(seen)

    def flow(size):
        inner = [batch([do(f"{one}"), do("b")], on_success=do("c")) for one in range(size)]
        return chain(group(inner), do("d")).enqueue()

    assert queries(flow(1)) == queries(flow(20)) <= 5


def test_of_a_large_tree_a_part_is_shown(monkeypatch):
    monkeypatch.setattr(report, "MOST_IN_ALL", 5)
    workflow = group([group([do(f"{outer}{inner}") for inner in range(3)]) for outer in range(3)]).enqueue()
    top = tree(workflow)
    shown = list(top.walk())
    assert len(shown) == 1 + 5
    assert sum(node.more.total() for node in shown) == 7


@pytest.mark.slow
def test_progress_counts_the_jobs_of_nested_workflows_and_no_callbacks():
    first = batch([do("a"), fail("b"), chain(do("c"), do("d"))], on_complete=do("e")).enqueue()
    second = chain(fail("f"), do("g")).enqueue()
    run_jobs()
    with CaptureQueriesContext(connection) as seen:
        found = job_counts([first, second], "default")
    assert len(seen) == 1
    assert str(found[first.pk]) == "3 of 4, 1 failed"
    assert (found[second.pk].total, found[second.pk].failed, found[second.pk].cancelled) == (2, 1, 1)
    assert job_counts([], "default") == {}


@pytest.mark.slow
def test_the_places_of_a_job():
    unique = {"keys": ["type", "args"], "on_conflict": "ignore"}
    workflow = chain(do("x"), batch([do("a", unique=unique), do("b")], on_complete=do("c")), name="outer").enqueue()
    Job._base_manager.update(state="completed", finished_at=timezone.now())
    advance()
    group([do("z"), do("a", unique=unique)], name="other").enqueue()
    job = Job.objects.get(args__what="a")
    first, second = memberships_of(job)
    assert (first.root.pk, first.workflow.type, first.number, first.of) == (workflow.pk, "batch", 1, 2)
    assert (second.root.name, second.role, second.number, second.of) == ("other", "member", 2, 2)
    Job._base_manager.update(state="completed", finished_at=timezone.now())
    advance()
    (callback,) = memberships_of(Job.objects.get(args__what="c"))
    assert (callback.role, callback.of) == ("on_complete", 2)
    assert memberships_of(Job.objects.enqueue("do").job) == []
