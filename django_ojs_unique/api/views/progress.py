"""Progress of jobs: workers report it, clients read it (OJS progress chapter)."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...exceptions import InvalidTransition
from ...models import Job
from ...ojs.moments import milliseconds
from ...ojs.states import JobState
from ...worker import remote
from ..base import OJSView, OneJobView
from ..wire import worker_requests
from ..wire.envelope import progress_of
from ..wire.errors import NotFound


class JobProgress(OneJobView):
    """``/ojs/v1/jobs/{id}/progress``."""

    groups = {"PUT": "workers"}

    def get(self, request: Request, id: str) -> Response:
        return Response(_show(self.found(id, "read")))

    def put(self, request: Request, id: str) -> Response:
        return Response(_report(self, worker_requests.read_job_id({"job_id": id})))


class Progress(OJSView):
    """``/ojs/v1/workers/progress``: the same report, with the job's id in the body as in an ack."""

    group = "workers"

    def post(self, request: Request) -> Response:
        return Response(_report(self, worker_requests.read_job_id(self.body)))


def _report(view: OJSView, id: UUID) -> dict[str, Any]:
    """Store a report, which is a heartbeat, too; of a job that nobody runs any more it is ignored, and says so."""
    reported, lease = worker_requests.read_progress(view.body), worker_requests.read_lease(view.body)
    holder = worker_requests.read_holder(view.body, view.account)
    try:
        job = remote.report_progress(view.jobs, id, holder=holder, now=timezone.now(), lease=lease, reported=reported)
    except Job.DoesNotExist:
        raise NotFound.of("job", id) from None
    except InvalidTransition as error:
        if error.details["current_state"] == JobState.ACTIVE:  # for another worker
            raise
        return {"id": str(id), "job_id": str(id), "state": error.details["current_state"], "accepted": False}
    return {"id": str(id), **_show(job), "accepted": True, "lease_expires_at": milliseconds(job.lease_expires_at)}


def _show(job: Job) -> dict[str, Any]:
    """Return the JSON object of a job's progress: the chapter wants null for what was not reported."""
    answer = {"job_id": str(job.pk), "state": str(job.state), "progress": progress_of(job), "data": None}
    return {**answer, "progress_note": job.progress_note} if job.progress_note else answer
