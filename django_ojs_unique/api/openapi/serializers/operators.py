"""What the server answers about queues and periodic jobs."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers
from rest_framework.fields import BooleanField, CharField, DateTimeField, DictField, IntegerField, JSONField, ListField

from ....ojs.cron import OverlapPolicy
from ....ojs.states import JobState
from .answers import Pagination
from .fields import ArgsField, having, one_of

STATUSES = ("active", "paused")
"""Of queues and periodic jobs."""


class StoredTemplate(serializers.Serializer[Any]):
    type = CharField()
    args = ArgsField()
    meta = DictField(required=False)
    options = DictField(required=False)


class CronJob(serializers.Serializer[Any]):
    name = CharField()
    expression = CharField()
    timezone = CharField()
    overlap_policy = one_of(OverlapPolicy)
    enabled = BooleanField()
    description = CharField(required=False, allow_blank=True)
    job_template = StoredTemplate()
    created_at = DateTimeField()
    next_run_at = DateTimeField(required=False)
    last_run_at = DateTimeField(required=False)
    run_count = IntegerField()


class FlatCronJob(CronJob):
    """The same entry, with the members of its job beside its own."""

    expression = None  # type: ignore[assignment]
    job_template = None  # type: ignore[assignment]
    cron = CharField()
    status = one_of(STATUSES)
    type = CharField()
    args = ListField(child=JSONField())
    meta = DictField(required=False)
    options = DictField(required=False)


_BOTH = {"cron": CronJob(), "cron_job": FlatCronJob()}
OneCron = having("OneCron", **_BOTH)
DeletedCron = having("DeletedCron", **_BOTH, deleted=BooleanField(), name=CharField())
Crons = having(
    "Crons",
    crons=ListField(child=CronJob()),
    cron_jobs=ListField(child=FlatCronJob()),
    pagination=Pagination(),
)
Queue = having("Queue", name=CharField(), status=one_of(STATUSES), paused=BooleanField())
Queues = having("Queues", queues=ListField(child=Queue()), pagination=Pagination())
_COUNTS = {str(state): IntegerField() for state in JobState}
QueueCounts = having("QueueCounts", **_COUNTS)
_STATS = {"name": CharField(), **_COUNTS, "paused": BooleanField()}
QueueStats = having("QueueStats", **_STATS)
OneQueueStats = having(
    "OneQueueStats",
    queue=QueueStats(),
    stats=QueueCounts(),
    **_STATS,
    status=one_of(STATUSES),
    exact=BooleanField(),
    computed_at=DateTimeField(),
)


class QueuePause(serializers.Serializer[Any]):
    name = CharField()
    paused = BooleanField()
    paused_at = DateTimeField(required=False)
    resumed_at = DateTimeField(required=False)


OneQueuePause = having("OneQueuePause", queue=QueuePause())
