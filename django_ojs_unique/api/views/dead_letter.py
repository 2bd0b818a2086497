"""Dead letters: jobs that failed for good, kept for an operator to look at (HTTP binding, "Dead letter")."""

from __future__ import annotations

from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from ... import lifecycle
from ...db.sizes import OF_A_JOB
from ...maintenance.on_demand import run_maintenance
from ...models import Job
from ...ojs.states import JobState
from ...operations.bulk import change_one
from ...operations.operation import RETRY
from ...wire.schema import Object, flag, text
from ..authorize import Action
from ..base import OJSView, operation
from ..wire.envelope import ONE_JOB, PAGE_OF_JOBS, show
from ..wire.errors import NotFound
from ..wire.pages import PARAMETERS, Page
from ..wire.queries import FILTERS as JOB_FILTERS
from .jobs import RETRY_DEAD_LETTER

DEAD = {
    "payload_pruned__in": [False],
    "state": JobState.DISCARDED,
    "dead_letter__in": [True],
    "finished_at__isnull": False,
}
"""The filter for dead letters, written so that one index finds them in the order of the list."""

FILTERS = {name: JOB_FILTERS[name] for name in ("queue", "type")}
DELETED = Object("Deleted", {"deleted": flag(), "job_id": text()})


class DeadLetters(OJSView):
    """``/ojs/v1/dead-letter``: the newest first; the parameters ``queue`` and ``type`` filter them."""

    @operation(
        "listDeadLetters",
        "dead letter",
        "List jobs that failed for good",
        {200: PAGE_OF_JOBS},
        query={**FILTERS, **PARAMETERS},
    )
    def get(self, request: Request) -> Response:
        parameters = request.query_params
        page = Page.read(parameters, "dead_letter")
        wanted = {name: one.read(parameters[name], name) for name, one in FILTERS.items() if name in parameters}
        self.demand("read", wanted.get("queue"), wanted.get("type"))
        run_maintenance(self.jobs, self.now())
        dead = self.jobs.filter(**DEAD)
        jobs, pagination = page.of_rows(dead, "-finished_at", "-id", wanted=wanted, large=OF_A_JOB)
        return Response({"jobs": [_shown(job) for job in jobs], "pagination": pagination})


class DeadLetter(OJSView):
    """``/ojs/v1/dead-letter/{id}``."""

    @operation("getDeadLetter", "dead letter", "Look at a job that failed for good", {200: ONE_JOB})
    def get(self, request: Request, id: str) -> Response:
        return Response({"job": _shown(_found(self, id, "read"))})

    @operation("deleteDeadLetter", "dead letter", "Delete a job that failed for good", {200: DELETED}, refusals=(409,))
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

    @operation(
        "retryDeadLetter",
        "dead letter",
        "Run a job again that failed for good",
        {200: ONE_JOB},
        RETRY_DEAD_LETTER,
        refusals=(409,),
    )
    def post(self, request: Request, id: str) -> Response:
        ways = RETRY_DEAD_LETTER.read_strictly(self.body)
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
