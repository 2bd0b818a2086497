"""What is wrong with a definition is said before anything is stored, with its place and the mend."""

import pytest

from django_ojs_unique import InvalidRequest, InvalidWorkflow, batch, chain, group
from django_ojs_unique.models import Job, Workflow

pytestmark = pytest.mark.django_db

# ruff: noqa: E501
A = {"type": "a"}


@pytest.mark.parametrize(
    ("definition", "message"),
    [
        ([], "workflow: must be an object"),
        ({}, "type: must be the kind of the workflow"),
        ({"type": "chian", "steps": [A]}, "Did you mean 'chain'?"),
        ({"type": "chain"}, "steps: must be an array with at least one job"),
        ({"type": "group", "jobs": []}, "jobs: must be an array with at least one job"),
        ({"type": "group", "steps": [A]}, "steps: belong to a chain; a group has jobs"),
        ({"type": "chain", "steps": [A], "jobs": [A]}, "jobs: cannot be combined with steps"),
        ({"type": "chain", "steps": [A], "callback": A}, "callback: is not a member of a workflow. Did you mean 'callbacks'?"),
        ({"type": "chain", "steps": [A], "callbacks": {"on_success": A}}, "callbacks: belong to a batch, not to a chain"),
        ({"type": "batch", "jobs": [A]}, "callbacks: must be an object with at least one callback"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_sucess": A}}, "callbacks.on_sucess: is not a callback. Did you mean 'on_success'?"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_success": {"type": "group", "jobs": [A]}}}, "callbacks.on_success: must be a job, not a workflow"),
        ({"type": "chain", "steps": [A], "name": 7}, "name: must be a string"),
        ({"type": "chain", "steps": [A], "options": {"key": "k"}}, "options.key: is not an option that jobs can share"),
        ({"type": "chain", "steps": [A, {"type": "group", "jobs": [A, {"type": "b", "args": {1, 2}}]}]}, "steps[1].jobs[1].args: must be an object"),
        ({"type": "chain", "steps": [{"type": "a", "priority": 1000}]}, "steps[0].priority: "),
        ({"type": "chain", "steps": [A, {"type": "a", "unique": {"kyes": []}}]}, "steps[1].unique"),
        ({"type": "chain", "steps": [A, 7]}, "steps[1]: must be an object"),
        ({"type": "chain", "steps": [A, {"args": {}}]}, "steps[1].type: is missing"),
        ({"type": "batch", "jobs": [A], "callbacks": {"on_success": {"type": ""}}}, "callbacks.on_success.type: "),
    ],
)  # fmt: skip
def test_bad_definitions(definition, message):
    with pytest.raises(InvalidRequest) as caught:
        Workflow.objects.enqueue(definition)
    assert message in str(caught.value)
    assert not Job.objects.exists()
    assert not Workflow.objects.exists()


def test_limits(settings):
    settings.OJS_UNIQUE = {"MAX_WORKFLOW_JOBS": 3, "MAX_WORKFLOW_DEPTH": 2}
    chain(group([A, A]), A).enqueue()
    with pytest.raises(InvalidWorkflow, match="has more than 3 jobs"):
        batch([A, A, A], on_success=A).enqueue()
    with pytest.raises(InvalidWorkflow, match=r"steps\[0\].steps\[0\]: is nested more than 2 levels deep"):
        chain(chain(chain(A))).enqueue()


@pytest.mark.parametrize("jobs", ["abc", A, None, chain(A)])
def test_a_group_takes_a_list(jobs):
    with pytest.raises(InvalidWorkflow, match="jobs: must be a list of jobs"):
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
