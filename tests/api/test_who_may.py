"""Who may call what: each route for each group, without a rule of the project and with one (docs: security).

A new route needs a row in `TABLE`.
"""

from __future__ import annotations

from typing import Any

import pytest
from django.test import Client
from django.utils import timezone

from django_ojs_unique.models import CronJob, Job, Queue, WorkerProcess, Workflow

from .conftest import OJSClient
from .routes import DESCRIBED
from .test_permissions import GROUPS, with_token

pytestmark = [pytest.mark.django_db, pytest.mark.slow]

MINE, SHOWN, UNASKED = "a report about its own job", "shows only what may be read", "about no job"
TABLE = {
    "GET /ojs/manifest": ("status", UNASKED),
    "GET /ojs/v1/health": ("status", UNASKED),
    "GET /ojs/v1/openapi.json": ("status", UNASKED),
    "GET /ojs/v1/errors/{}": ("status", UNASKED),
    "POST /ojs/v1/jobs": ("producers", "enqueue"),
    "POST /ojs/v1/jobs/batch": ("producers", "enqueue"),
    "POST /ojs/v1/jobs/bulk": ("producers", SHOWN),
    "POST /ojs/v1/jobs/explain": ("producers", "enqueue"),
    "GET /ojs/v1/jobs/{}": ("producers", "read"),
    "DELETE /ojs/v1/jobs": ("producers", "cancel"),
    "DELETE /ojs/v1/jobs/{}": ("producers", "cancel"),
    "GET /ojs/v1/jobs/{}/progress": ("producers", "read"),
    "POST /ojs/v1/jobs/{}/activate": ("producers", "change"),
    "POST /ojs/v1/workflows": ("producers", "enqueue"),
    "GET /ojs/v1/workflows/{}": ("producers", "read"),
    "DELETE /ojs/v1/workflows/{}": ("producers", "cancel"),
    "POST /ojs/v1/workers/fetch": ("workers", "fetch"),
    "POST /ojs/v1/workers/ack": ("workers", MINE),
    "POST /ojs/v1/workers/nack": ("workers", MINE),
    "POST /ojs/v1/workers/progress": ("workers", MINE),
    "POST /ojs/v1/workers/heartbeat": ("workers", MINE),
    "PUT /ojs/v1/jobs/{}/progress": ("workers", MINE),
    "GET /ojs/v1/jobs": ("operators", "read"),
    "POST /ojs/v1/jobs/{}/retry": ("operators", "change"),
    "POST /ojs/v1/jobs/{}/enqueue-again": ("operators", "enqueue"),
    "GET /ojs/v1/workflows": ("operators", "read"),
    "GET /ojs/v1/workers": ("operators", SHOWN),
    "POST /ojs/v1/workers/{}/quiet": ("operators", "change"),
    "POST /ojs/v1/workers/{}/terminate": ("operators", "change"),
    "POST /ojs/v1/workers/{}/resume": ("operators", "change"),
    "GET /ojs/v1/events": ("operators", "read"),
    "GET /ojs/v1/queues": ("operators", SHOWN),
    "GET /ojs/v1/queues/{}/stats": ("operators", "read"),
    "POST /ojs/v1/queues/{}/pause": ("operators", "change"),
    "POST /ojs/v1/queues/{}/resume": ("operators", "change"),
    "GET /ojs/v1/dead-letter": ("operators", "read"),
    "GET /ojs/v1/dead-letter/{}": ("operators", "read"),
    "DELETE /ojs/v1/dead-letter/{}": ("operators", "change"),
    "POST /ojs/v1/dead-letter/{}/retry": ("operators", "change"),
    "POST /ojs/v1/cron": ("operators", "change"),
    "GET /ojs/v1/cron": ("operators", SHOWN),
    "GET /ojs/v1/cron/{}": ("operators", "read"),
    "DELETE /ojs/v1/cron/{}": ("operators", "change"),
}
"""The group that may call, and the action that a rule is asked about, if it can refuse the call."""
ONE = {"type": "t", "args": ["secret"]}
CRON = {"name": "other", "expression": "@daily", "job_template": ONE}
BODIES: dict[str, Any] = {
    "POST /ojs/v1/jobs": ONE,
    "POST /ojs/v1/jobs/explain": ONE,
    "POST /ojs/v1/jobs/batch": {"jobs": [ONE]},
    "POST /ojs/v1/jobs/bulk": {"jobs": [ONE]},
    "POST /ojs/v1/workers/fetch": {"queues": ["default"]},
    "POST /ojs/v1/cron": CRON,
    "POST /ojs/v1/workflows": {"type": "group", "jobs": [ONE]},
}
WORKFLOW = {"type": "group", "jobs": [ONE]}


def test_each_route_has_a_row():
    assert set(TABLE) == set(DESCRIBED)
    assert {group for group, _ in TABLE.values()} == set(GROUPS)


@pytest.fixture
def callers(settings):
    """A client of each group, and of an account in none."""
    only = {group: [f"tests.api.test_permissions.Only{group.capitalize()}"] for group in GROUPS}
    settings.OJS_UNIQUE = {"EVENTS": True, "API": {"PERMISSIONS": only}}
    return {name: OJSClient(with_token(name)) for name in ("nobody", *GROUPS)}


def prepare(operation: str, worker: OJSClient) -> tuple[str, Any]:
    """Store what a call is about; return its path and its body."""
    place = operation.split(" ")[1]
    body, now = BODIES.get(operation, {}), timezone.now()
    if TABLE[operation][1] == MINE:
        Job.objects.enqueue("t")
        (active,) = worker.fetch()
        body = {"job_id": active["id"], "worker_id": "w", "active_jobs": [active["id"]], "progress": 0.5}
        return place.format(active["id"]), body
    if operation == "DELETE /ojs/v1/jobs":
        Job.objects.enqueue("t", ["secret"], key="k")
        return f"{place}?key=k", body
    job = Job.objects.enqueue("t", ["secret"]).job
    if place.endswith("activate"):
        Job._base_manager.filter(pk=job.pk).update(state="pending")
    if place.endswith(("retry", "enqueue-again")):
        job.cancel()
    match place.split("/")[3:4]:
        case ["dead-letter"]:
            Job._base_manager.filter(pk=job.pk).update(state="discarded", dead_letter=True, finished_at=now)
            name = str(job.pk)
        case ["cron"]:
            name = CronJob.objects.define("nightly", "@daily", "t", ["secret"]).pk
        case ["workers"]:
            WorkerProcess.objects.update_or_create(id="secret", defaults={"started_at": now, "heartbeat_at": now})
            name = "secret"
        case ["workflows"]:
            name = Workflow.objects.enqueue(WORKFLOW).pk
        case ["queues"]:
            name = "default"
        case ["errors"]:
            name = "not_found"
        case _:
            name = job.pk
    return place.format(name), body


@pytest.mark.parametrize("operation", TABLE)
def test_a_group_can_do_its_own_work_only_and_only_as_the_rule_says(operation, callers, settings, refused):
    (group, action), method = TABLE[operation], operation.split(" ")[0]
    settings_without, asked = settings.OJS_UNIQUE, []

    def answered(caller, rule=None):
        settings.OJS_UNIQUE = settings_without
        path, body = prepare(operation, callers["workers"])
        asked.clear()
        settings.OJS_UNIQUE = {**settings_without, "API": {**settings_without["API"], "AUTHORIZE": rule}}
        before = stored()
        answer = caller.post(path, body) if method == "POST" else caller.put(path, body) if method == "PUT" else None
        answer = answer or getattr(caller, method.lower())(path)
        assert answer.status_code < 400 or stored() == before
        return answer

    def allowing(request, action, queue, type):
        asked.append(action)
        return True

    for name, caller in callers.items():
        if name != group:
            error = refused(answered(caller), 403, "x_forbidden")
            assert "action" not in error["details"]
    refused(answered(OJSClient(Client())), 401, "x_unauthenticated")
    assert answered(callers[group]).status_code < 300
    assert answered(callers[group], allowing).status_code < 300
    assert set(asked) >= ({action} if action not in (MINE, SHOWN, UNASKED) else set())
    assert bool(asked) is (action not in (MINE, UNASKED))
    answer = answered(callers[group], lambda *call: False)
    if action == SHOWN:
        assert b"secret" not in answer.content
    if action in (MINE, SHOWN, UNASKED):
        assert answer.status_code < 300
    else:
        assert refused(answer, 403, "x_forbidden")["details"]["action"] == action


def stored() -> list[Any]:
    rows = [model.objects.order_by("pk").values() for model in (Job, CronJob, Queue, WorkerProcess, Workflow)]
    return list(map(list, rows))
