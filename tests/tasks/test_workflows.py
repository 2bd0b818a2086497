"""Tasks of Django as members of workflows."""

import pytest

from .framework import work  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique import InvalidRequest, chain, group
from django_ojs_unique.tasks.framework import Task
from tests.app import tasks
from tests.support.refusals import refused

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.mark.slow
def test_tasks_are_members():
    flow = chain(group([tasks.add.item(1, b=2), tasks.add.item(3)]), tasks.add.using(priority=5).item(4))
    for _ in range(2):  # the same items again
        workflow = flow.enqueue()
        assert work().completed == 3
        workflow.refresh_from_db()
        assert (workflow.state, workflow.result) == ("completed", 4)
        (result,) = [tasks.add.get_result(str(member.job_id)) for member in workflow.members if member.job_id]
        assert (result.status, result.return_value) == ("SUCCESSFUL", 4)


def test_a_task_of_another_backend_is_no_member(settings):
    settings.TASKS = {
        "default": {"BACKEND": "django_ojs_unique.tasks.OJSBackend"},
        "other": {"BACKEND": f"{Task.__module__.split('.base')[0]}.backends.dummy.DummyBackend"},
    }
    with refused(InvalidRequest, "backend", value='"other"'):
        tasks.add.using(backend="other").item(1)
