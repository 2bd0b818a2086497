"""POST /ojs/v1/jobs, in turns with a bare view of Django REST framework that stores a row of two fields."""

from __future__ import annotations

import json
from functools import partial
from io import BytesIO
from typing import Any

from django.core.wsgi import get_wsgi_application
from django.db import connection, models
from django.test import RequestFactory
from rest_framework import serializers
from rest_framework.permissions import AllowAny
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from .turns import Turns

GOAL = "0.60"
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


def post(path: str, status: int, members: dict[str, Any], number: int) -> None:
    """Send a job through the WSGI handler; check the status, unless it is 0."""
    body = json.dumps({"type": "noop", "args": [{"i": number}], **members}).encode()
    environ = {**_ENVIRON, "PATH_INFO": path, "CONTENT_LENGTH": str(len(body)), "wsgi.input": BytesIO(body)}
    answer = _application(environ, _start)
    assert answer.status_code == status or not status, b"".join(answer)
    b"".join(answer)
    answer.close()


def _start(status: str, headers: list[tuple[str, str]]) -> None:
    pass


def _same(call: Any, number: int, _: int) -> None:
    call(number)


_application: Any = get_wsgi_application()
_ENVIRON = RequestFactory()._base_environ(REQUEST_METHOD="POST", CONTENT_TYPE="application/json")
