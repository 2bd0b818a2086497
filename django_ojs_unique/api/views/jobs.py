"""Jobs: enqueue, list, show, cancel, activate (HTTP binding, "Job endpoints")."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...db.sizes import OF_A_JOB
from ...exceptions import OJSError
from ...handlers.redaction import redacted
from ...maintenance.on_demand import run_maintenance
from ...reporting.bounded import few
from ...reporting.job_filters import filters, narrowed
from ...workflows.results import places_of
from ..authorize import demand_enqueue, show_allowed
from ..base import OJSView, OneJobView
from ..enqueue_for_client import enqueue_one
from ..operations.cancel import cancel
from ..wire.enqueue import read_job
from ..wire.envelope import show, show_explanation, show_place
from ..wire.pages import Page
from ..wire.queries import read_job_filters


class Jobs(OJSView):
    """``/ojs/v1/jobs``."""

    group = "producers"
    groups = {"GET": "operators"}

    def get(self, request: Request) -> Response:
        """List the jobs that match the filters in the query, the newest first."""
        now, parameters = timezone.now(), request.query_params
        page, given = Page.read(parameters, "jobs"), read_job_filters(parameters, now)
        self.demand("read", given.get("queue"), given.get("type"))
        run_maintenance(self.jobs, now, crons=True)
        wanted = filters(given)
        if (ids := few(self.jobs, wanted)) is None:
            jobs, pagination = page.of_rows(self.jobs, "-id", wanted=wanted, large=OF_A_JOB)
        else:
            found = narrowed(self.jobs.filter(pk__in=ids), wanted)
            jobs, pagination = page.of_rows(found, "-id", large=OF_A_JOB)
        return Response({"jobs": [show(job) for job in jobs], "pagination": pagination})

    def post(self, request: Request) -> Response:
        wanted = read_job(self.body, timezone.now())
        demand_enqueue(request, wanted)
        result = enqueue_one(self.jobs, wanted)
        answer: dict[str, Any] = {"job": show_allowed(request, result)}
        if result.deduplicated:
            return Response({**answer, "deduplicated": True})
        return Response(answer, status=201, headers={"Location": f"{request.path}/{result.job.pk}"})


class Job(OneJobView):
    """``/ojs/v1/jobs/{id}``."""

    def get(self, request: Request, id: str) -> Response:
        job = self.found(id, "read")
        place = places_of([job], redacted).get(job.pk)
        return Response({"job": {**show(job), **show_place(place)}})

    def delete(self, request: Request, id: str) -> Response:
        job = self.found(id, "cancel")
        previous_state = cancel(job)
        return Response({"job": {**show(job), "previous_state": previous_state}})


class Activate(OJSView):
    """``/ojs/v1/jobs/{id}/activate``."""

    group = "producers"

    def post(self, request: Request, id: str) -> Response:
        job = self.found(id, "change")
        job.activate()
        return Response({"job": show(job)})


class Explain(OJSView):
    """``/ojs/v1/jobs/explain``: what an enqueue would do now, and why. Nothing is written. Beyond the specification."""

    group = "producers"

    def post(self, request: Request) -> Response:
        wanted = read_job(self.body, timezone.now())
        demand_enqueue(request, wanted)
        try:
            explained = self.jobs.explain_request(wanted.request)
        except OJSError as error:
            raise wanted.locate(error) from None
        return Response({"explanation": show_explanation(wanted.request.type, wanted.request.args, explained)})
