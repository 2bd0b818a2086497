"""Rows that nobody can read, as raw SQL or an older program wrote them: no task of a worker's upkeep stops at one."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db import connection, transaction
from django.db.models import Model
from django.utils import timezone

from django_ojs_unique import UniquePolicy, chain
from django_ojs_unique.enqueue.request import Request
from django_ojs_unique.maintenance import cron, superseded, timers
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, Job, Workflow, WorkflowMember
from django_ojs_unique.options import REPEATED
from django_ojs_unique.reporting.activity import roll_up
from django_ojs_unique.unique.presets import river
from django_ojs_unique.worker.hints import tell_of_queues, tell_of_unknown_types
from django_ojs_unique.worker.queues import QueueFilter
from tests.support.rows import insert_all
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db

HOUR, DAY = timedelta(hours=1), timedelta(days=1)
WRONG_JSON = ("null", "7", '"text"', "[7, null]", '{"nonsense": 7}', '{"_": 7}')
TEXTS_OF_CRON = ("expression", "timezone", "overlap_policy", "type", "description", "last_outcome")
WRONG_NUMBERS = (-(2**31), -1, 2**31 - 1)
MOMENTS = ("created_at", "enqueued_at", "scheduled_at", "started_at")
UNREADABLE: dict[str, dict[str, Any]] = {
    **{
        f"{name} {text}": {name: text}
        for name in ("unique", "retry_options", "limits", "args", "meta", "tags", "extra", "steps", "result", "errors")
        for text in WRONG_JSON
    },
    "unique with an unknown name": {"unique": '{"keys": ["nonsense"]}'},
    "unique with states that are no list": {"unique": '{"keys": ["type"], "states": 7, "on_retry": "discard"}'},
    "unique with an unknown on_retry": {"unique": '{"on_retry": {"discard": 7}}'},
    "unique with a period that is none": {"unique": '{"on_retry": "discard", "period": "soon"}'},
    "unique with a window beyond the calendar": {
        "unique": '{"on_retry": "discard", "period": "P1000Y", "states": ["available", "completed"]}',
        "created_at": datetime(9500, 1, 1, tzinfo=UTC),
    },
    "retry with intervals that are none": {"retry_options": '{"initial_interval": "soon"}'},
    "retry without an end": {"retry_options": '{"max_attempts": 1e400}'}
    if connection.vendor != "postgresql"
    else {"retry_options": "8"},
    **{f"{name} {n}": {name: n} for name in ("attempt", "max_attempts", "revision") for n in WRONG_NUMBERS},
    **{
        f"{name} {n}": {name: n}
        for name in ("timeout_ms", "visibility_timeout_ms")
        for n in (-(2**63), -1, 0, 2**63 - 1)
    },
    **{f"unique_states {n}": {"unique_states": n} for n in (-(2**15), -1, 2**15 - 1)},
    **{
        f"{name} {text!r}": {name: text}
        for name in ("type", "queue", "blocked_by", "fair_partition", "worker_id")
        for text in ("", "\n%", "é*")
    },
    **{f"{name} '?'": {name: "?"} for name in ("key", "fingerprint")},
    **{
        f"{name} None": {name: None}
        for name in ("enqueued_at", "started_at", "worker_id", "lease_token", "fingerprint")
    },
    **{f"{name} {year}": {name: datetime(year, 12, 31, tzinfo=UTC)} for name in MOMENTS for year in (1000, 9999)},
    **(
        {}
        if connection.vendor == "postgresql"
        else {
            f"{name} that is no JSON": {name: "{no"}
            for name in ("unique", "retry_options", "limits", "args", "meta", "errors")
        }
    ),
}
"""Columns of jobs; JSON as text."""

NOW = timezone.now()
OLD = NOW - 400 * DAY
POLICY = river(by_args=True, by_state=["pending", "scheduled", "available", "running"]).to_dict()
RUNNING: dict[str, Any] = {"state": "active", "attempt": 1, "started_at": NOW - HOUR, "worker_id": "w"}
ENDED = {
    "state": "completed",
    "finished_at": OLD,
    "unique": UniquePolicy(states=["available", "completed"]).to_dict(),
}
TASKS: dict[str, tuple[Callable[[Any, datetime], Any], dict[str, Any], set[str]]] = {
    "promote": (timers.promote, {"state": "scheduled", "run_at": NOW - HOUR}, {"available"}),
    "retry": (timers.promote, {"state": "retryable", "attempt": 1, "run_at": NOW - HOUR}, {"available"}),
    "retry unless superseded": (
        superseded.promote,
        {"state": "retryable", "attempt": 1, "run_at": NOW - HOUR, "unique": POLICY},
        {"available"},
    ),
    "rescue": (timers.rescue, {**RUNNING, "lease_expires_at": NOW - HOUR / 2}, {"available"}),
    "rescue before it was confirmed": (
        timers.rescue,
        {**RUNNING, "lease_expires_at": NOW - HOUR / 2, "unconfirmed": True},
        {"available"},
    ),
    "time out": (
        timers.rescue,
        {**RUNNING, "lease_expires_at": RUNNING["started_at"] + timedelta(seconds=9), "timeout_ms": 9_000},
        {"retryable"},
    ),
    "expire": (timers.expire, {"expires_at": NOW - HOUR}, {"discarded"}),
    "prune": (prune, {"state": "completed", "finished_at": OLD, "unique": POLICY}, set()),
    "prune but for the window": (prune, {**ENDED, "window_ends_at": NOW + DAY}, {"completed"}),
    "prune what a window kept": (prune, {**ENDED, "window_ends_at": NOW - DAY, "payload_pruned": True}, set()),
    "count for the dashboard": (
        lambda jobs, now: roll_up("default", now),
        {"state": "completed", "finished_at": NOW - HOUR},
        {"completed"},
    ),
    "report unknown types": (lambda jobs, now: tell_of_unknown_types(jobs, QueueFilter()), {}, {"available"}),
    "report unknown queues": (lambda jobs, now: tell_of_queues("default", QueueFilter(["x"])), {}, {"available"}),
}
"""The tasks of the upkeep that look at jobs: the columns with which a job is their work, and its states afterwards."""


def store(work: dict[str, Any]) -> Job:
    """Store a job for each kind of unreadable row, and at last one that can be read; return that one."""
    jobs = []
    for number in range(len(UNREADABLE) + 1):
        own = {"lease_token": uuid4() if work.get("state") == "active" else None, "fingerprint": f"{number:064x}"}
        jobs.append(Job(type="t", queue="default", **{"created_at": OLD, "enqueued_at": OLD, **own, **work}))
    *unreadable, good = insert_all(jobs)
    for job, columns in zip(unreadable, UNREADABLE.values(), strict=True):
        spoil(job, columns)
    return good


def spoil(row: Model, columns: dict[str, Any]) -> None:
    """Write columns as raw SQL would."""
    meta = type(row)._meta
    json = {field.attname for field in meta.fields if field.get_internal_type() == "JSONField"}
    cast = "::jsonb" if connection.vendor == "postgresql" else ""
    written = ", ".join(f"{connection.ops.quote_name(name)} = %s{cast if name in json else ''}" for name in columns)
    values = [
        connection.ops.adapt_datetimefield_value(value) if isinstance(value, datetime) else value
        for value in columns.values()
    ]
    key = meta.pk.get_db_prep_value(row.pk, connection)
    with connection.cursor() as cursor:
        cursor.execute(f"UPDATE {meta.db_table} SET {written} WHERE {meta.pk.attname} = %s", [*values, key])


@pytest.mark.slow
@pytest.mark.parametrize("task", TASKS)
def test_no_unreadable_job_stops_a_task(task: str, settings: Any) -> None:
    settings.OJS_UNIQUE = {"EVENTS": True}  # so that their receivers read the rows, too
    do, work, states = TASKS[task]
    good = store(work)
    with transaction.atomic():
        do(Job.objects.using("default"), NOW)
    assert set(Job.objects.filter(pk=good.pk).values_list("state", flat=True)) == states


CRON = {
    **{f"{name} {text}": {name: text} for name in ("args", "options") for text in WRONG_JSON},
    **{
        f"option {name} {text}": {"options": f'{{"{name}": {text}}}'}
        for name in REPEATED
        for text in ("7", '"\\n"', "[7]", '{"nonsense": 7}', "-1e300")
    },
    **{f"{name} {text!r}": {name: text} for name in TEXTS_OF_CRON for text in ("", "\n%", "nonsense")},
    **{f"next_run_at {year}": {"next_run_at": datetime(year, 1, 1, tzinfo=UTC)} for year in (1000, 1970)},
}
"""Columns of periodic jobs."""


@pytest.mark.slow
def test_no_unreadable_periodic_job_stops_the_others(handlers: Any) -> None:
    due = NOW - HOUR
    for number, columns in enumerate(CRON.values()):
        entry = CronJob.objects.define(f"unreadable-{number}", "* * * * *", f"unreadable{number}")
        spoil(entry, {"next_run_at": due - HOUR, **columns})
    CronJob.objects.define("readable", "* * * * *", "readable")
    CronJob.objects.filter(name="readable").update(next_run_at=due)
    cron.sync("default", NOW)
    cron.tick("default", NOW)
    assert Job.objects.filter(type="readable").count() == 1
    assert not CronJob.objects.filter(next_run_at__lte=NOW).exists()


READ = ("errors", "result", "started_at", "attempt", "type")
WORKFLOWS: dict[str, dict[type[Model], dict[str, Any]]] = {
    **{f"an ended job with {what}": {Job: columns} for what, columns in UNREADABLE.items() if what.startswith(READ)},
    **{
        f"{name} {text}": {WorkflowMember: {name: text}}
        for name in ("request", "result", "error")
        for text in WRONG_JSON
        if name != "request" or text[0] != "{"  # a newer version may have stored other members
    },
    **{
        f"request with {name}": {WorkflowMember: {"request": f'{{"type": "t", "{name}": [7]}}'}}
        for name in Request.__slots__
    },
    **{f"member with {name}": {WorkflowMember: {name: "?"}} for name in ("role", "outcome", "name")},
    **{f"workflow with {name}": {Workflow: {name: "?"}} for name in ("type", "state", "name")},
    "a member whose job has the id of another": {WorkflowMember: {"job_id": None}},
}


@pytest.mark.slow
def test_no_unreadable_row_of_a_workflow_stops_the_others(settings: Any) -> None:
    settings.OJS_UNIQUE = {"EVENTS": True}
    step = {"type": "t"}
    workflows = [chain(step, step).enqueue() for _ in range(len(WORKFLOWS) + 1)]
    end = {"state": "completed", "finished_at": NOW}
    Job._base_manager.update(**end)
    for workflow, spoiled in zip(workflows, WORKFLOWS.values(), strict=False):
        for model, columns in spoiled.items():
            rows = {Job: workflow.jobs(), Workflow: [workflow], WorkflowMember: workflow.members}[model]
            for one in rows:
                spoil(one, columns)
    advance()
    good = workflows[-1]
    assert [member.outcome for member in good.members] == ["completed", "open"]
    assert not Job.objects.filter(awaited=True, finished_at__isnull=False).exists()
