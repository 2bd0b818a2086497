"""Workflows: what clients send, and what the server answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import BooleanField, CharField, DateTimeField, DictField, IntegerField, JSONField, ListField

from ....ojs import names
from ....ojs.workflows import CALLBACKS, Kind, MemberState, WorkflowState
from ....workflows.definition import LONGEST_NAME
from .answers import Pagination
from .fields import ArgsField, WireField, having, matching, one_of, texts
from .requests import Enqueue, Options


class MemberField(WireField):
    """A job or a nested workflow."""

    shape = {
        "anyOf": [
            {"$ref": "#/components/schemas/MemberJob"},
            {"$ref": "#/components/schemas/StartWorkflow"},
        ]
    }


class MemberJob(Enqueue):
    """A job of a workflow."""

    name = CharField(required=False, max_length=LONGEST_NAME)


Callbacks = having("Callbacks", **{str(role): MemberJob(required=False) for role in CALLBACKS})


class StartWorkflow(serializers.Serializer[Any]):
    """A workflow to start, or one to nest. Other members are kept and returned."""

    type = one_of(Kind)
    name = CharField(required=False, max_length=LONGEST_NAME)
    id = matching(names.UUID7_TEXT, 36, required=False, help_text="Not of a nested one.")
    steps = ListField(child=MemberField(), min_length=1, required=False, help_text="Of a chain.")
    jobs = ListField(child=MemberField(), min_length=1, required=False, help_text="Of a group or a batch.")
    callbacks = Callbacks(required=False, help_text="Of a batch.")
    options = Options(required=False, help_text="For the jobs that do not set them.")


class MemberShown(serializers.Serializer[Any]):
    """A step or a job, or a nested workflow with its own `steps` or `jobs`."""

    index = IntegerField()
    type = CharField()
    name = CharField(required=False)
    state = one_of(MemberState)
    job_id = CharField(required=False)
    workflow_id = CharField(required=False, help_text="Of a nested workflow.")
    steps = ListField(child=DictField(), required=False)
    jobs = ListField(child=DictField(), required=False)
    callbacks = DictField(required=False)
    started_at = DateTimeField(required=False)
    completed_at = DateTimeField(required=False)
    result = JSONField(required=False)
    error = DictField(required=False)


class CallbackShown(serializers.Serializer[Any]):
    type = CharField()
    args = ArgsField()
    meta = DictField(required=False)
    options = Options(required=False)
    state = one_of(MemberState)
    job_id = CharField(required=False)
    started_at = DateTimeField(required=False)
    completed_at = DateTimeField(required=False)
    result = JSONField(required=False)
    error = DictField(required=False)


class Metadata(serializers.Serializer[Any]):
    created_at = DateTimeField()
    started_at = DateTimeField(required=False)
    completed_at = DateTimeField(required=False)
    cancelled_at = DateTimeField(required=False)
    job_count = IntegerField(help_text="With those of nested workflows, without callbacks.")
    completed_count = IntegerField()
    failed_count = IntegerField()
    failed_step_index = IntegerField(required=False)
    failed_callback = one_of(CALLBACKS, required=False)
    failed_job_ids = texts(required=False)
    errors = ListField(child=DictField(), required=False)  # type: ignore[assignment]
    errors_truncated = BooleanField(required=False)


class ListedWorkflow(serializers.Serializer[Any]):
    """A workflow without its members."""

    id = CharField()
    type = one_of(Kind)
    name = CharField(required=False)
    state = one_of(WorkflowState)
    steps_total = IntegerField(required=False, help_text="Of a chain.")
    steps_completed = IntegerField(required=False, help_text="Of a chain.")
    jobs_total = IntegerField(required=False, help_text="Of a group or a batch.")
    jobs_completed = IntegerField(required=False, help_text="Of a group or a batch.")
    created_at = DateTimeField()
    completed_at = DateTimeField(required=False)
    cancelled_at = DateTimeField(required=False)
    metadata = Metadata()


class Workflow(ListedWorkflow):
    """A workflow, with the members that its client added."""

    steps = ListField(child=MemberShown(), required=False, help_text="Of a chain.")
    jobs = ListField(child=MemberShown(), required=False, help_text="Of a group or a batch.")
    callbacks = having("CallbacksShown", **{str(role): CallbackShown(required=False) for role in CALLBACKS})(
        required=False
    )
    results_omitted = BooleanField(required=False, help_text="The results are too large together: read the jobs.")
    parent_workflow_id = CharField(required=False, help_text="Of a nested one.")
    root_workflow_id = CharField(required=False, help_text="Of a nested one.")


class StoppedWorkflow(Workflow):
    steps_cancelled = IntegerField()
    steps_already_completed = IntegerField()


OneWorkflow = having("OneWorkflow", workflow=Workflow())
CancelledWorkflow = having("CancelledWorkflow", workflow=StoppedWorkflow())
PageOfWorkflows = having("PageOfWorkflows", workflows=ListField(child=ListedWorkflow()), pagination=Pagination())
