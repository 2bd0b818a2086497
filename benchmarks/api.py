"""Calls of the HTTP API, in turns with a bare view of Django REST framework that stores a row of two fields.

An enqueue is compared with one call of it, a fetch and its ack with two.
"""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from io import BytesIO
from itertools import count
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.test import RequestFactory
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from django_ojs_unique.db.dialects import dialect_of
from django_ojs_unique.models import Job

from .turns import Turns

GOAL, GOAL_OF_WORKERS = "0.60", "0.45"
JOBS_PER_SECOND = 1_000
"""More pairs of fetch and ack than a turn makes."""
WAITING, SECONDS_OF_WAITING = 50, 10
UNIQUE = {"keys": ["type", "queue", "args"]}


class Row(models.Model):
    """What the bare view stores; the only index is that of the primary key."""

    type = models.CharField(max_length=255)
    args = models.JSONField()

    class Meta:
        app_label = "benchmarks"

    def __str__(self) -> str:
        return self.type


class RowSerializer(serializers.Serializer):  # type: ignore[type-arg]
    """Two fields."""

    type = serializers.CharField(max_length=255)
    args = serializers.JSONField()


class Bare(APIView):
    """Validates two fields, stores them, and returns the stored row."""

    authentication_classes = ()
    permission_classes = (AllowAny,)

    def post(self, request: Request) -> Response:
        serializer = RowSerializer(data=request.data)
        serializer.is_valid(raise_exception=True)
        row = Row.objects.create(**serializer.validated_data)
        return Response({"job": {"id": row.pk, **serializer.data}}, status=201)


def report(turns: Turns) -> None:
    """Print each comparison."""
    with connection.schema_editor() as editor:
        editor.create_model(Row)
    bare = partial(post, "/bare", 201, {})
    where = connection.vendor
    for name, status, on_conflict, number in (
        ("new job", 201, "ignore", None),
        ("duplicate, ignored", 200, "ignore", 0),
        ("duplicate, rejected", 409, "reject", 0),
    ):
        post("/ojs/v1/jobs", 0, {"unique": UNIQUE}, 0)
        ours = partial(post, "/ojs/v1/jobs", status, {"unique": {**UNIQUE, "on_conflict": on_conflict}})
        turns.compare(f"{where}: {name}", bare, ours if number is None else partial(_same, ours, number), GOAL)
    jobs = int(JOBS_PER_SECOND * turns.seconds * turns.rounds) + 100
    Job.objects.enqueue_many({"type": "noop", "args": [{"i": number}], "queue": "work"} for number in range(jobs))
    goal = GOAL_OF_WORKERS if dialect_of(Job.objects.all()).claims_at_once else "-"
    turns.compare(f"{where}: fetch and ack", lambda number: (bare(number), bare(number)), _work, goal)
    report_idle()


def report_idle() -> None:
    """Print how many statements a process makes while fetches wait in it for jobs of an empty queue."""
    statements, began = count(), time.perf_counter()

    def counted(execute: Any, *call: Any) -> Any:
        next(statements)
        return execute(*call)

    def wait(number: int) -> None:
        try:
            with connection.execute_wrapper(counted):
                send("/ojs/v1/workers/fetch", 200, {"queues": [f"empty{number % 5}"], "wait": SECONDS_OF_WAITING})
        finally:
            connection.close()

    with ThreadPoolExecutor(WAITING) as fleet:
        list(fleet.map(wait, range(WAITING)))
    rate = next(statements) / (time.perf_counter() - began)
    print(f"{connection.vendor}: {WAITING} fetches that wait {SECONDS_OF_WAITING} seconds: {rate:.1f} statements/s")


def _work(number: int) -> None:
    """Fetch a job and acknowledge it."""
    (job,) = send("/ojs/v1/workers/fetch", 200, {"queues": ["work"]})["jobs"]
    send("/ojs/v1/workers/ack", 200, {"job_id": job["id"], "lease_token": job["lease_token"]})


def post(path: str, status: int, members: dict[str, Any], number: int) -> None:
    """Send a job; check the status, unless it is 0."""
    send(path, status, {"type": "noop", "args": [{"i": number}], **members})


def send(path: str, status: int, members: dict[str, Any]) -> Any:
    """Send a request through the WSGI handler; check the status, unless it is 0, and return what the response has."""
    body = json.dumps(members).encode()
    environ = {**_ENVIRON, "PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
    answer = _application(environ, _start)
    content = b"".join(answer)
    assert answer.status_code == status or not status, content
    answer.close()
    return json.loads(content)


def _start(status: str, headers: list[tuple[str, str]]) -> None:
    pass


def _same(call: Any, number: int, _: int) -> None:
    call(number)


_application: Any = get_wsgi_application()
_ENVIRON = RequestFactory()._base_environ(
    REQUEST_METHOD="POST", CONTENT_TYPE="application/json", **{"wsgi.multithread": True}
)
