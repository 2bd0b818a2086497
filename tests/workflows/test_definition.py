"""What is wrong with a definition is said before anything is stored, with its place and the hint."""

import pytest

from django_ojs_unique import InvalidRequest, InvalidWorkflow, batch, chain, group
from django_ojs_unique.models import Job, Workflow
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db

# ruff: noqa: E501
A = {"type": "a"}


@pytest.mark.parametrize(
    ("definition", "field", "named"),
    [
        ([], "workflow", ""),
        ({}, "type", ""),
        ({"type": "chian", "steps": [A]}, "type", "'chain'?"),
        ({"type": "chain"}, "steps", ""),
        ({"type": "group", "jobs": []}, "jobs", "at least one"),
        ({"type": "group", "steps": [A]}, "steps", "chain; a group has jobs"),
        ({"type": "chain", "steps": [A], "jobs": [A]}, "jobs", "steps"),
        ({"type": "chain", "steps": [A], "callback": A}, "callback", "'callbacks'?"),
        ({"type": "chain", "steps": [A], "callbacks": {"on_success": A}}, "callbacks", "chain"),
        ({"type": "batch", "jobs": [A]}, "callbacks", "at least one"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_sucess": A}}, "callbacks.on_sucess", "'on_success'?"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_success": {"type": "group", "jobs": [A]}}}, "callbacks.on_success", "workflow"),
        ({"type": "chain", "steps": [A], "name": 7}, "name", ""),
        ({"type": "chain", "steps": [A], "options": {"key": "k"}}, "options.key", ""),
        ({"type": "chain", "steps": [A, {"type": "group", "jobs": [A, {"type": "b", "args": {1, 2}}]}]}, "steps[1].jobs[1].args", ""),
        ({"type": "chain", "steps": [{"type": "a", "priority": 1000}]}, "steps[0].priority", ""),
        ({"type": "chain", "steps": [A, {"type": "a", "unique": {"kyes": []}}]}, "steps[1].unique.kyes", "'keys'?"),
        ({"type": "chain", "steps": [A, 7]}, "steps[1]", ""),
        ({"type": "chain", "steps": [A, {"args": {}}]}, "steps[1].type", "missing"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_success": {"type": ""}}}, "callbacks.on_success.type", ""),
    ],
)  # fmt: skip
def test_bad_definitions(definition, field, named):
    with pytest.raises(InvalidRequest) as caught:
        Workflow.objects.enqueue(definition)
    assert caught.value.details["field"] == field
    assert named in caught.value.message
    assert not Job.objects.exists()
    assert not Workflow.objects.exists()


def test_limits(settings):
    settings.OJS_UNIQUE = {"MAX_WORKFLOW_JOBS": 3, "MAX_WORKFLOW_DEPTH": 2}
    chain(group([A, A]), A).enqueue()
    with refused(InvalidWorkflow, names="3 jobs"):
        batch([A, A, A], on_success=A).enqueue()
    with refused(InvalidWorkflow, "steps[0].steps[0]", names="2"):
        chain(chain(chain(A))).enqueue()


@pytest.mark.parametrize("jobs", ["abc", A, None, chain(A)])
def test_a_group_takes_a_list(jobs):
    with refused(InvalidWorkflow, "jobs"):
        group(jobs)


def test_compositions_are_values():
    flow = chain(A, group([A], name="g"), name="c")
    assert flow == chain(A, group([A], name="g"), name="c")
    assert flow != chain(A, name="c")
    assert flow.to_dict() == {
        "type": "chain",
        "name": "c",
        "steps": [A, {"type": "group", "name": "g", "jobs": [A]}],
    }
    first, second = flow.enqueue(), flow.enqueue()
    assert first.pk != second.pk


@pytest.mark.parametrize("kind", ["chain", "group", "batch"])
def test_a_job_may_be_named_like_a_kind(kind):
    workflow = chain({"type": kind, "args": [1]}).enqueue()
    assert Job.objects.get(pk=workflow.members.get().job_id).type == kind
