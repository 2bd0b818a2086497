"""Jobs: enqueue, list, show, cancel, activate, retry, enqueue again (HTTP binding, "Job endpoints")."""

from __future__ import annotations

from typing import Any

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from ...db.clock import database_now
from ...db.sizes import OF_A_JOB
from ...db.transactions import starting_over
from ...exceptions import OJSError
from ...handlers.redaction import redacted
from ...maintenance.on_demand import run_maintenance
from ...ojs.states import JobState
from ...operations.bulk import change_one
from ...operations.operation import CANCEL, ENQUEUE_AGAIN, RETRY, Operation
from ...reporting.bounded import few
from ...reporting.job_filters import filters, narrowed
from ...reporting.preview import consequences
from ...wire.enqueue import ENQUEUE, HINTS, hints, read_job
from ...wire.schema import Object, array, flag, mapping, one_of, text
from ...workflows.results import places_of
from ..authorize import demand_enqueue, show_allowed
from ..base import OJSView, OneJobView, operation
from ..enqueue_for_client import enqueue_one
from ..wire.envelope import EXPLANATION, JOB, ONE_JOB, PAGE_OF_JOBS, show, show_explanation
from ..wire.errors import NotFound
from ..wire.pages import PARAMETERS, Page
from ..wire.queries import FILTERS, KEY, read_job_filters, read_key

ENQUEUED = ONE_JOB.extended("Enqueued", HINTS)
DEDUPLICATED = ENQUEUED.extended("Deduplicated", {"deduplicated": flag()}, "The job that is there already.")
CANCELLED = Object("Cancelled", {"job": JOB.extended("CancelledJob", {"previous_state": one_of(JobState)})})
REMOVED = Object("Removed", {"job": JOB, "deleted": flag("False if it runs.")}, "The job that held the key.")
EXPLAINED = Object("Explained", {"explanation": EXPLANATION})
_BEYOND = "Beyond the specification."
_WAYS = {"replace?": flag("Cancel it."), "force?": flag("Let both run.")}
_DRY_RUN = {"dry_run?": flag("Only say what would be done.")}
RETRY_JOB = Object(
    "RetryJob",
    {**_WAYS, **_DRY_RUN},
    f"What to do with a live job that has the key, and whether to do it. {_BEYOND}",
    closed=True,
)
RETRY_DEAD_LETTER = Object(
    "RetryDeadLetter", _WAYS, f"What to do with a live job that has the key. {_BEYOND}", closed=True
)
_PREVIEW = Object("Preview", {"allowed": flag(), "message": text(), "duplicates": array(mapping())})
JOB_OR_PREVIEW = Object("JobOrPreview", {"job?": JOB, "deduplicated?": flag(), "preview?": _PREVIEW})
AGAIN = Object("EnqueueAgain", _DRY_RUN, f"Whether to do it. {_BEYOND}", closed=True)


class Jobs(OJSView):
    """``/ojs/v1/jobs``."""

    group = "producers"
    groups = {"GET": "operators"}

    @operation("listJobs", "jobs", "List jobs, the newest first", {200: PAGE_OF_JOBS}, query={**FILTERS, **PARAMETERS})
    def get(self, request: Request) -> Response:
        """List the jobs that match the filters in the query, the newest first."""
        now, parameters = self.now(), request.query_params
        page, given = Page.read(parameters, "jobs"), read_job_filters(parameters)
        self.demand("read", given.get("queue"), given.get("type"))
        run_maintenance(self.jobs, now, crons=True)
        wanted = filters(given)
        if (ids := few(self.jobs, wanted)) is None:
            jobs, pagination = page.of_rows(self.jobs, "-id", wanted=wanted, large=OF_A_JOB)
        else:
            found = narrowed(self.jobs.filter(pk__in=ids), wanted)
            jobs, pagination = page.of_rows(found, "-id", large=OF_A_JOB)
        return Response({"jobs": [show(job) for job in jobs], "pagination": pagination})

    @operation(
        "enqueueJob",
        "jobs",
        "Enqueue a job, unless it is queued already",
        {201: ENQUEUED, 200: DEDUPLICATED},
        ENQUEUE,
        refusals=(409,),
    )
    def post(self, request: Request) -> Response:
        wanted = read_job(self.body, self.now())
        demand_enqueue(request, wanted)
        result = enqueue_one(self.jobs, wanted)
        answer: dict[str, Any] = {"job": show_allowed(request, result), **hints([("", wanted.request)])}
        if result.deduplicated:
            return Response({**answer, "deduplicated": True})
        return Response(answer, status=201, headers={"Location": f"{request.path}/{result.job.pk}"})

    @operation("removeJob", "jobs", "Remove the job that holds a key", {200: REMOVED}, query=KEY, refusals=(404,))
    def delete(self, request: Request) -> Response:
        """Delete the waiting or discarded job that holds the key; a running one loses it, and gets no further run."""
        given = read_key(request.query_params)
        run_maintenance(self.jobs, self.now())

        def remove() -> Any:
            with transaction.atomic(using=self.using):
                job = self.jobs.remove(**given)
                if job is not None:
                    self.demand("cancel", job.queue, job.type)
            return job

        if (job := starting_over(self.using, remove)) is None:
            raise NotFound.of("job with the key", given["key"])
        return Response({"job": show(job), "deleted": job.state != JobState.ACTIVE})


class Job(OneJobView):
    """``/ojs/v1/jobs/{id}``."""

    @operation("getJob", "jobs", "Look at a job", {200: ONE_JOB})
    def get(self, request: Request, id: str) -> Response:
        job = self.found(id, "read")
        place = places_of([job], redacted).get(job.pk)
        return Response({"job": show(job, place)})

    @operation("cancelJob", "jobs", "Cancel a job", {200: CANCELLED}, refusals=(409,))
    def delete(self, request: Request, id: str) -> Response:
        job = self.found(id, "cancel")
        previous = change_one(self.jobs, job, CANCEL).previous[job.pk]
        return Response({"job": {**show(job), "previous_state": previous}})


class Activate(OJSView):
    """``/ojs/v1/jobs/{id}/activate``."""

    group = "producers"

    @operation("activateJob", "jobs", "Let a pending job run", {200: ONE_JOB}, refusals=(409,))
    def post(self, request: Request, id: str) -> Response:
        job = self.found(id, "change")
        job.activate()
        return Response({"job": show(job)})


class Explain(OJSView):
    """``/ojs/v1/jobs/explain``: what an enqueue would do now, and why. Nothing is written. Beyond the specification."""

    group = "producers"

    @operation(
        "explainJob", "jobs", "What an enqueue would do now, and why; nothing is written", {200: EXPLAINED}, ENQUEUE
    )
    def post(self, request: Request) -> Response:
        wanted = read_job(self.body, self.now())
        demand_enqueue(request, wanted)
        try:
            explained = self.jobs.explain_request(wanted.request)
        except OJSError as error:
            raise wanted.locate(error) from None
        redacted = explained.redacted(wanted.request.type, wanted.request.args)
        return Response({"explanation": show_explanation(redacted)})


class Retry(OJSView):
    """``/ojs/v1/jobs/{id}/retry``: let a waiting job run now, or run a discarded or cancelled one again.

    While a live job has the key of a finished one, the answer is 409. ``{"replace": true}`` cancels that job,
    ``{"force": true}`` lets both run. ``{"dry_run": true}`` only says what would be done.
    """

    @operation(
        "retryJob",
        "jobs",
        "Let a waiting job run now, or run a discarded or cancelled one again",
        {200: JOB_OR_PREVIEW},
        RETRY_JOB,
        refusals=(409,),
    )
    def post(self, request: Request, id: str) -> Response:
        flags = RETRY_JOB.read_strictly(self.body)
        run_maintenance(self.jobs, self.now())
        job = self.found(id, "change")
        if flags.pop("dry_run", False):
            return _preview(self.jobs, job, RETRY, **{"force": False, **flags})
        job.retry(**flags)
        return Response({"job": show(job)})


class EnqueueAgain(OJSView):
    """``/ojs/v1/jobs/{id}/enqueue-again``: enqueue a finished job's type, args and options as a new job.

    The answers are those of ``POST /ojs/v1/jobs``. ``{"dry_run": true}`` only says what would be done.
    """

    @operation(
        "enqueueJobAgain",
        "jobs",
        "Enqueue a finished job again, as a new job",
        {201: ONE_JOB, 200: JOB_OR_PREVIEW},
        AGAIN,
        refusals=(409,),
    )
    def post(self, request: Request, id: str) -> Response:
        flags = AGAIN.read_strictly(self.body)
        run_maintenance(self.jobs, self.now())
        job = self.found(id, "enqueue")
        self.demand("read", job.queue, job.type)  # the answer has its args
        if flags.get("dry_run"):
            return _preview(self.jobs, job, ENQUEUE_AGAIN)
        result = job.enqueue_again()
        if result.deduplicated:
            return Response({"job": show_allowed(request, result), "deduplicated": True})
        return Response({"job": show(result.job)}, status=201)


def _preview(jobs: Any, job: Any, operation: Operation, **flags: Any) -> Response:
    (consequence,) = consequences(operation, jobs, [job.pk], database_now(jobs.db), **flags)
    return Response({"preview": consequence.to_dict()})
