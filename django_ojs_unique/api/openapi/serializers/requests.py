"""What clients send."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import (
    BooleanField,
    CharField,
    DictField,
    FloatField,
    IntegerField,
    JSONField,
    ListField,
    RegexField,
)

from ....conf import API_DEFAULTS
from ....execution.errors import LONGEST_REASON
from ....models.cron import LONGEST_NAME, NAME
from ....models.queue import HIGHEST_LIMIT
from ....ojs import names
from ....ojs.cron import OverlapPolicy
from ....ojs.limits import LARGEST, MOST_LIMITS
from ....ojs.names import LONGEST_LIMIT
from ....ojs.retry import EXHAUSTION, LONGEST_ERROR, MOST_ATTEMPTS, MOST_ERRORS, STRATEGIES
from ....ojs.states import JobState
from ....unique.policy import DIMENSIONS, OnConflict, OnRetry, Window
from ...wire.unique import USE_EXISTING
from ...wire.worker_requests import MOST_JOBS, MOST_QUEUES, MOST_TYPES
from .fields import (
    ActiveJobsField,
    ArgsField,
    DurationField,
    delay_or_moment,
    matching,
    milliseconds,
    moment_or_delay,
    one_of,
    several_of,
    texts,
)


class Unique(serializers.Serializer[Any]):
    """When two jobs are the same, and what to do then."""

    keys = several_of(DIMENSIONS, required=False)
    args_keys = texts(required=False, allow_null=True)
    meta_keys = texts(required=False, allow_null=True)
    period = DurationField(required=False, allow_null=True, help_text="Counted from the stored job's `created_at`.")
    states = several_of(JobState, required=False, min_length=1)
    on_conflict = one_of(OnConflict, required=False)
    window = one_of(Window, required=False, help_text="Beyond the specification.")
    on_retry = one_of(OnRetry, required=False, help_text="Beyond the specification.")
    delay = DurationField(required=False, allow_null=True, help_text="Beyond the specification.")


class SentUnique(Unique):
    """A unique policy, also in the words of other clients."""

    key = texts(required=False, help_text="`keys`, or `args_keys`, as the OJS clients call them.")
    period_ms = milliseconds(help_text="`period`, as the OJS client for Go calls it.")
    on_conflict = one_of((*OnConflict, USE_EXISTING), required=False, help_text=f"`{USE_EXISTING}` is `ignore`.")


class Retry(serializers.Serializer[Any]):
    """How often and how soon a failed job runs again."""

    max_attempts = IntegerField(min_value=0, max_value=MOST_ATTEMPTS, required=False)
    initial_interval = DurationField(required=False)
    backoff_coefficient = FloatField(min_value=1, required=False)
    max_interval = DurationField(required=False)
    jitter = BooleanField(required=False)
    non_retryable_errors = ListField(
        child=CharField(allow_blank=True, max_length=LONGEST_ERROR), max_length=MOST_ERRORS, required=False
    )
    on_exhaustion = one_of(EXHAUSTION, required=False)
    backoff_strategy = one_of(STRATEGIES, required=False)


class RateLimit(serializers.Serializer[Any]):
    """How fast the job's queue may be worked off."""

    max_per_second = IntegerField(min_value=1, max_value=HIGHEST_LIMIT)


class _LimitNumbers(serializers.Serializer[Any]):
    running = IntegerField(min_value=1, max_value=LARGEST, required=False, help_text="How many run at once.")
    per_second = IntegerField(min_value=1, max_value=LARGEST, required=False, help_text="How many start in a second.")
    per_minute = IntegerField(min_value=1, max_value=LARGEST, required=False)
    per_hour = IntegerField(min_value=1, max_value=LARGEST, required=False)
    weight = IntegerField(min_value=1, max_value=LARGEST, required=False, help_text="How many the job counts for.")


class Limit(_LimitNumbers):
    """How many jobs of a partition may run at once, or start in a time. Beyond the specification."""

    key = texts(required=False, help_text="What the jobs have in common, such as `args.customer_id`.")
    name = CharField(max_length=LONGEST_LIMIT, required=False, allow_blank=True)


class JobLimit(_LimitNumbers):
    """A limit of a job, with the values of its key."""

    key = DictField()
    name = CharField()


class Options(serializers.Serializer[Any]):
    """How to treat a job."""

    queue = matching(names.QUEUE, names.LONGEST_QUEUE, required=False)
    priority = IntegerField(min_value=names.LOWEST_PRIORITY, max_value=names.HIGHEST_PRIORITY, required=False)
    timeout_ms = milliseconds()
    scheduled_at = moment_or_delay()
    delay_until = delay_or_moment()
    delay = delay_or_moment()
    expires_at = moment_or_delay()
    retry = Retry(required=False)
    unique = SentUnique(required=False)
    visibility_timeout_ms = milliseconds()
    rate_limit = RateLimit(required=False)
    tags = texts(required=False)
    metadata = DictField(required=False)
    pending = BooleanField(required=False)
    limits = ListField(child=Limit(), max_length=MOST_LIMITS, required=False)


class Enqueue(serializers.Serializer[Any]):
    """A job to store. Other members are kept and returned with the job."""

    type = matching(names.TYPE, names.LONGEST_TYPE)
    args = ArgsField()
    id = matching(names.UUID7_TEXT, 36, required=False)
    meta = DictField(required=False)
    schema = CharField(required=False)
    specversion = one_of(("1.0",), required=False)
    options = Options(required=False)


class EnqueueBatch(serializers.Serializer[Any]):
    """Jobs to store, all of them or none."""

    jobs = ListField(child=Enqueue(), min_length=1, max_length=API_DEFAULTS["MAX_BATCH"])


class Fetch(serializers.Serializer[Any]):
    """Which jobs a worker wants."""

    queues = texts(min_length=1, max_length=MOST_QUEUES, help_text="The first is exhausted before the second.")
    types = texts(
        min_length=1, max_length=MOST_TYPES, required=False, help_text="Only jobs of these. Beyond the specification."
    )
    count = IntegerField(min_value=1, required=False)
    worker_id = CharField(max_length=LONGEST_REASON, required=False)
    visibility_timeout_ms = milliseconds()
    wait = FloatField(min_value=0, required=False, help_text="Seconds to wait for a job. Beyond the specification.")


def _token() -> RegexField:
    return matching(names.UUID_TEXT, 36, required=False, help_text="Of the job as it was fetched. Beyond the spec.")


def _attempt() -> IntegerField:
    return IntegerField(min_value=1, max_value=MOST_ATTEMPTS, required=False, help_text="Of the job as it was fetched.")


class Ack(serializers.Serializer[Any]):
    """A job that is done."""

    job_id = CharField()
    result = JSONField(required=False)
    worker_id = CharField(max_length=LONGEST_REASON, required=False)
    lease_token = _token()
    attempt = _attempt()


class Failure(serializers.Serializer[Any]):
    """What went wrong."""

    code = CharField(required=False, allow_blank=True)
    type = CharField(required=False, allow_blank=True)
    message = CharField(required=False, allow_blank=True)
    retryable = BooleanField(required=False)
    details = JSONField(required=False)
    backtrace = texts(required=False)


class Nack(serializers.Serializer[Any]):
    """A job that failed, or is requeued."""

    job_id = CharField()
    error = Failure(required=False)
    requeue = BooleanField(required=False)
    worker_id = CharField(max_length=LONGEST_REASON, required=False)
    lease_token = _token()
    attempt = _attempt()


class Progress(serializers.Serializer[Any]):
    """How far the work on a job is: `progress`, `progress_note`, or both."""

    progress = FloatField(required=False, help_text="From 0 to 1; what is outside becomes the nearer end.")
    percentage = FloatField(required=False, help_text="The same, from 0 to 100.")
    progress_note = CharField(required=False, allow_blank=True, help_text="A short text, cut after 255 characters.")
    message = CharField(required=False, allow_blank=True, help_text="The same.")
    worker_id = CharField(max_length=LONGEST_REASON, required=False)
    lease_token = _token()
    attempt = _attempt()
    visibility_timeout_ms = milliseconds()


class ProgressOf(Progress):
    """How far the work on a job is, and which job it is."""

    job_id = CharField()


class Heartbeat(serializers.Serializer[Any]):
    """A worker that lives."""

    worker_id = CharField(max_length=LONGEST_REASON)
    active_jobs = ActiveJobsField(required=False, help_text="The ids; a number, if `active_job_ids` has them.")
    active_job_ids = texts(required=False, max_length=MOST_JOBS)
    lease_tokens = ListField(
        child=matching(names.UUID_TEXT, 36),
        required=False,
        max_length=MOST_JOBS,
        help_text="Those of the jobs as they were fetched: what is held under another one is not extended.",
    )
    visibility_timeout_ms = milliseconds()
    hostname = CharField(required=False, allow_blank=True)
    pid = IntegerField(required=False)
    concurrency = IntegerField(required=False)
    queues = texts(required=False)


class RetryDeadLetter(serializers.Serializer[Any]):
    """What to do with a live job that has the key. Beyond the specification."""

    replace = BooleanField(required=False, help_text="Cancel it.")
    force = BooleanField(required=False, help_text="Let both run.")


class EnqueueAgain(serializers.Serializer[Any]):
    """Whether to do it. Beyond the specification."""

    dry_run = BooleanField(required=False, help_text="Only say what would be done.")


class RetryJob(RetryDeadLetter):
    """What to do with a live job that has the key, and whether to do it. Beyond the specification."""

    dry_run = BooleanField(required=False, help_text="Only say what would be done.")


class JobTemplate(serializers.Serializer[Any]):
    """What a periodic job enqueues."""

    type = matching(names.TYPE, names.LONGEST_TYPE)
    args = ArgsField()
    meta = DictField(required=False)
    options = Options(required=False, help_text="Those that suit every occurrence.")


class DefineCron(serializers.Serializer[Any]):
    """A periodic job, new or changed."""

    name = matching(NAME, LONGEST_NAME)
    expression = CharField(help_text="Five or six fields, `@daily` and its like, or `@every` and a duration.")
    timezone = CharField(required=False)
    overlap_policy = one_of(OverlapPolicy, required=False)
    enabled = BooleanField(required=False)
    description = CharField(required=False, allow_blank=True)
    job_template = JobTemplate()
