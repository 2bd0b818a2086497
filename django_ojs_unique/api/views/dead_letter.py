"""Dead letters: jobs that failed for good, kept for an operator to look at (HTTP binding, "Dead letter")."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ... import lifecycle
from ...db.sizes import OF_A_JOB
from ...maintenance.on_demand import run_maintenance
from ...models import Job
from ...ojs.names import job_type, queue_name
from ...ojs.states import JobState
from ...operations.bulk import change_one
from ...operations.operation import RETRY
from ..authorize import Action
from ..base import OJSView
from ..wire.envelope import show
from ..wire.errors import NotFound
from ..wire.flags import read_flags
from ..wire.pages import Page

DEAD = {
    "payload_pruned__in": [False],
    "state": JobState.DISCARDED,
    "dead_letter__in": [True],
    "finished_at__isnull": False,
}
"""The filter for dead letters, written so that one index finds them in the order of the list."""

_FILTERS = {"queue": queue_name, "type": job_type}


class DeadLetters(OJSView):
    """``/ojs/v1/dead-letter``: the newest first; the parameters ``queue`` and ``type`` filter them."""

    def get(self, request: Request) -> Response:
        parameters = request.query_params
        page = Page.read(parameters, "dead_letter")
        wanted = {name: check(parameters[name]) for name, check in _FILTERS.items() if name in parameters}
        self.demand("read", wanted.get("queue"), wanted.get("type"))
        run_maintenance(self.jobs, timezone.now())
        dead = self.jobs.filter(**DEAD)
        jobs, pagination = page.of_rows(dead, "-finished_at", "-id", wanted=wanted, large=OF_A_JOB)
        return Response({"jobs": [_shown(job) for job in jobs], "pagination": pagination})


class DeadLetter(OJSView):
    """``/ojs/v1/dead-letter/{id}``."""

    def get(self, request: Request, id: str) -> Response:
        return Response({"job": _shown(_found(self, id, "read"))})

    def delete(self, request: Request, id: str) -> Response:
        """Delete the job for good; its key is free then, even if its window was still open."""
        job = _found(self, id, "change")
        if not lifecycle.remove(self.jobs.filter(pk=job.pk, **DEAD)):
            raise NotFound.of("dead letter", id)
        return Response({"deleted": True, "job_id": id})


class RetryDeadLetter(OJSView):
    """``/ojs/v1/dead-letter/{id}/retry``.

    While a live job has its key, the answer is 409. Beyond the specification, ``{"replace": true}`` cancels that job,
    and ``{"force": true}`` lets both run.
    """

    def post(self, request: Request, id: str) -> Response:
        ways = read_flags(self.body, ("force", "replace"))
        job = _found(self, id, "change")
        change_one(self.jobs.filter(**DEAD), job, RETRY, **ways)
        return Response({"job": show(job)})


def _found(view: OJSView, id: str, action: Action) -> Job:
    job = view.found(id, action)
    if job.state != JobState.DISCARDED or not job.dead_letter or job.payload_pruned:
        raise NotFound.of("dead letter", id)
    return job


def _shown(job: Job) -> dict[str, Any]:
    return {"errors": [], **show(job)}
