"""What the server answers."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import (
    BooleanField,
    CharField,
    DateTimeField,
    DictField,
    FloatField,
    IntegerField,
    JSONField,
    ListField,
)

from ....enqueue.results import Outcome
from ....models.worker import WorkerProcess
from ....ojs.states import JobState
from ....ojs.workflows import CALLBACKS
from .fields import ArgsField, having, one_of, texts
from .requests import JobLimit, Retry, Unique


class Error(serializers.Serializer[Any]):
    """What went wrong with a request."""

    code = CharField()
    type = CharField()
    message = CharField()
    retryable = BooleanField()
    hint = CharField()
    docs_url = CharField()
    details = DictField()
    request_id = CharField()


class JobError(serializers.Serializer[Any]):
    """What went wrong in one attempt."""

    type = CharField()
    code = CharField(required=False)
    message = CharField(allow_blank=True)
    attempt = IntegerField()
    occurred_at = DateTimeField()
    retryable = BooleanField(required=False)
    retry_delay_ms = IntegerField(required=False)
    details = JSONField(required=False)
    backtrace = CharField(required=False)


class Job(serializers.Serializer[Any]):
    """A job, with the members that its client added."""

    specversion = CharField()
    id = CharField()
    type = CharField()
    queue = CharField()
    args = ArgsField()
    meta = DictField()
    state = one_of(JobState)
    priority = IntegerField()
    attempt = IntegerField()
    max_attempts = IntegerField()
    created_at = DateTimeField()
    enqueued_at = DateTimeField(required=False)
    scheduled_at = DateTimeField(required=False)
    expires_at = DateTimeField(required=False)
    started_at = DateTimeField(required=False)
    completed_at = DateTimeField(required=False)
    cancelled_at = DateTimeField(required=False)
    discarded_at = DateTimeField(required=False)
    timeout_ms = IntegerField(required=False)
    visibility_timeout_ms = IntegerField(required=False)
    tags = texts(required=False)
    schema = CharField(required=False)
    retry = Retry(required=False)
    unique = Unique(required=False)
    limits = ListField(child=JobLimit(), required=False)
    worker_id = CharField(required=False)
    progress = FloatField(required=False, help_text="How far the last attempt came, from 0 to 1.")
    progress_note = CharField(required=False)
    steps = ListField(child=JSONField(), required=False)
    result = JSONField(required=False)
    error = JobError(required=False)
    errors = ListField(child=JobError(), required=False)  # type: ignore[assignment]
    retry_delay_ms = IntegerField(required=False)
    workflow_id = CharField(required=False)
    root_workflow_id = CharField(required=False, help_text="If the workflow is nested.")
    workflow_step = IntegerField(required=False, help_text="Its index in the workflow.")
    workflow_callback = one_of(CALLBACKS, required=False)
    parent_results = ListField(child=JSONField(), required=False, help_text="What the jobs before it returned.")


OneJob = having("OneJob", job=Job())


class Deduplicated(serializers.Serializer[Any]):
    """The job that is there already."""

    job = Job()
    deduplicated = BooleanField()


Preview = having("Preview", allowed=BooleanField(), message=CharField(), duplicates=ListField(child=DictField()))
_MAY = {"job": Job(required=False), "deduplicated": BooleanField(required=False), "preview": Preview(required=False)}
JobOrPreview = having("JobOrPreview", **_MAY)


class CancelledJob(Job):
    previous_state = one_of(JobState)


Cancelled = having("Cancelled", job=CancelledJob())
Batch = having("Batch", jobs=ListField(child=Job()), count=IntegerField())


class Explanation(serializers.Serializer[Any]):
    """What an enqueue would do now, and why."""

    action = one_of(("create", "replace", "reject", "ignore"))
    reason = CharField()
    unique_key = CharField(required=False)
    canonical_text = CharField(required=False)
    unique = Unique(required=False)
    limits = ListField(child=JobLimit(), required=False)
    duplicates = ListField(child=DictField())


Explained = having("Explained", explanation=Explanation())


class BulkResult(serializers.Serializer[Any]):
    """What became of one element."""

    index = IntegerField()
    status = one_of(Outcome)
    job = Job(required=False)
    error = Error(required=False)


Bulk = having("Bulk", results=ListField(child=BulkResult()), counts=DictField(child=IntegerField()))


class FetchedJob(Job):
    lease_token = CharField(help_text="Send it back with the ack or nack, and in a heartbeat's `lease_tokens`.")
    lease_expires_at = DateTimeField(help_text="Until when it is yours, unless a heartbeat comes before.")


class Fetched(serializers.Serializer[Any]):
    jobs = ListField(child=FetchedJob())
    job = FetchedJob(required=False, help_text="The first one.")


class Pagination(serializers.Serializer[Any]):
    total = IntegerField(required=False, help_text="Left out of a list of very many.")
    has_more = BooleanField()
    next_cursor = CharField(required=False)
    limit = IntegerField()
    offset = IntegerField()


PageOfJobs = having("PageOfJobs", jobs=ListField(child=Job()), pagination=Pagination())
Deleted = having("Deleted", deleted=BooleanField(), job_id=CharField())


class Worker(serializers.Serializer[Any]):
    """A worker process: the `state` that it told, and the `directive` that it is told."""

    id = CharField()
    state = one_of(WorkerProcess.State)
    directive = one_of(("running", *WorkerProcess.Directive.values))
    hostname = CharField(required=False)
    pid = IntegerField(required=False)
    queues = texts()
    concurrency = IntegerField(required=False)
    held = IntegerField()
    finalized = IntegerField()
    started_at = DateTimeField()
    heartbeat_at = DateTimeField()


OneWorker = having("OneWorker", worker=Worker())
Workers = having("Workers", workers=ListField(child=Worker()), pagination=Pagination())


class Event(serializers.Serializer[Any]):
    specversion = CharField()
    id = CharField()
    type = CharField()
    source = CharField()  # type: ignore[assignment]
    time = DateTimeField()
    subject = CharField(required=False)
    data = DictField()  # type: ignore[assignment]


class Events(serializers.Serializer[Any]):
    events = ListField(child=Event())
    cursor = CharField(required=False)
    has_more = BooleanField()


Implementation = having("Implementation", name=CharField(), version=CharField(), language=CharField())


class Manifest(serializers.Serializer[Any]):
    specversion = CharField()
    ojs_version = CharField()
    implementation = Implementation()
    conformance_level = IntegerField()
    conformance_tier = CharField()
    protocols = texts()
    backend = CharField()
    unique_job_strength = one_of(("strong", "best-effort"))
    capabilities = DictField()
    extensions = texts()
    limits = DictField(child=FloatField())
    endpoints = DictField(child=CharField())


Backend = having("Backend", type=CharField(), status=CharField())


class Health(serializers.Serializer[Any]):
    status = one_of(("ok", "degraded"))
    version = CharField()
    uptime_seconds = IntegerField()
    backend = Backend()


ErrorMeaning = having("ErrorMeaning", code=CharField(), status=IntegerField(), hint=CharField())
Refusal = having("Refusal", error=Error())
Document = having("Document", openapi=CharField(), info=DictField(), paths=DictField(), components=DictField())
