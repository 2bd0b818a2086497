"""What the server answers to workers that report."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import BooleanField, CharField, DateTimeField, DictField, FloatField, IntegerField

from ....ojs.states import JobState
from .fields import one_of, texts


class Acknowledged(serializers.Serializer[Any]):
    acknowledged = BooleanField()
    id = CharField()
    job_id = CharField()
    state = one_of(JobState)
    completed_at = DateTimeField()


class Nacked(serializers.Serializer[Any]):
    id = CharField()
    job_id = CharField()
    state = one_of(JobState)
    attempt = IntegerField()
    max_attempts = IntegerField()
    next_attempt_at = DateTimeField(required=False)
    retry_delay_ms = IntegerField(required=False)
    discarded_at = DateTimeField(required=False)
    completed_at = DateTimeField(required=False)


class JobProgress(serializers.Serializer[Any]):
    """How far the last attempt of a job came, from 0 to 1; null if it has not told."""

    job_id = CharField()
    state = one_of(JobState)
    progress = FloatField(allow_null=True)
    progress_note = CharField(required=False)
    data = DictField(allow_null=True, help_text="Always null.")  # type: ignore[assignment]


class Reported(serializers.Serializer[Any]):
    """Whether a report was stored; if not, nobody runs the job any more."""

    id = CharField()
    job_id = CharField()
    state = one_of(JobState)
    accepted = BooleanField()
    progress = FloatField(required=False, allow_null=True)
    progress_note = CharField(required=False)
    data = DictField(required=False, allow_null=True)  # type: ignore[assignment]
    lease_expires_at = DateTimeField(required=False)


class Beat(serializers.Serializer[Any]):
    state = one_of(("running", "quiet", "terminate"))
    jobs_extended = texts()
    server_time = DateTimeField()
