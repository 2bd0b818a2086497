"""Jobs: enqueue, show, cancel, activate (HTTP binding, "Job endpoints")."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...exceptions import OJSError
from ...operations.cancel import cancel
from ...redaction import redacted
from ...workflows.results import places_of
from ..accept import accept
from ..base import OJSView
from ..wire.enqueue import read_job
from ..wire.envelope import show, show_accepted, show_explanation, show_place


class Jobs(OJSView):
    """``/ojs/v1/jobs``."""

    group = "producers"

    def post(self, request: Request) -> Response:
        result = accept(self.jobs, read_job(self.body, timezone.now()))
        answer: dict[str, Any] = {"job": show_accepted(result)}
        if result.deduplicated:
            return Response({**answer, "deduplicated": True})
        return Response(answer, status=201, headers={"Location": f"{request.path}/{result.job.pk}"})


class Job(OJSView):
    """``/ojs/v1/jobs/{id}``."""

    group = "producers"

    def get(self, request: Request, id: str) -> Response:
        job = self.found(id)
        place = places_of([job], redacted).get(job.pk)
        return Response({"job": {**show(job), **show_place(place)}})

    def delete(self, request: Request, id: str) -> Response:
        job = self.found(id)
        previous_state = cancel(job)
        return Response({"job": {**show(job), "previous_state": previous_state}})


class Activate(OJSView):
    """``/ojs/v1/jobs/{id}/activate``."""

    group = "producers"

    def post(self, request: Request, id: str) -> Response:
        job = self.found(id)
        job.activate()
        return Response({"job": show(job)})


class Explain(OJSView):
    """``/ojs/v1/jobs/explain``: what an enqueue would do now, and why. Nothing is written. Beyond the specification."""

    group = "producers"

    def post(self, request: Request) -> Response:
        wanted = read_job(self.body, timezone.now())
        try:
            explained = self.jobs.explain_request(wanted.request)
        except OJSError as error:
            raise wanted.locate(error) from None
        return Response({"explanation": show_explanation(wanted.request.type, explained)})
