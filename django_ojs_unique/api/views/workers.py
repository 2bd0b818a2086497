"""Workers: fetch, ack, nack, progress, heartbeat, and directives of operators (HTTP binding, "Worker endpoints")."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from uuid import UUID

from rest_framework.request import Request
from rest_framework.response import Response

from ...conf import settings
from ...db.characters import storable
from ...db.transactions import starting_over
from ...exceptions import InvalidTransition
from ...models import Job, WorkerProcess
from ...ojs.moments import milliseconds
from ...ojs.states import JobState
from ...wire.schema import Object
from ...worker import heartbeat, remote
from ...worker.remote_worker import new_token
from ...workflows.results import places_of
from ..authorize import demand_worker, fetchable, readable_workers
from ..base import OJSView, OneJobView, operation
from ..waiting import COME_BACK, Crowded, has_gone, wait_for
from ..wire import workers
from ..wire.envelope import FETCHED_JOB, show_fetched
from ..wire.errors import NotFound
from ..wire.pages import PARAMETERS, Page, paged

FETCHED = Object("Fetched", {"jobs": [FETCHED_JOB], "job?": FETCHED_JOB.member("The first one.")})
WORKERS = paged("Workers", workers=workers.WORKER)
ONE_WORKER = Object("OneWorker", {"worker": workers.WORKER})


class Fetch(OJSView):
    """``/ojs/v1/workers/fetch``."""

    group = "workers"

    @operation("fetchJobs", "workers", "Take jobs to run", {200: FETCHED}, workers.FETCH)
    def post(self, request: Request) -> Response:
        sent = workers.read_fetch(self.body)
        wanted, lease = fetchable(request, sent["queues"], sent["types"]), sent["lease"]
        fetch = partial(
            remote.fetch,
            self.jobs,
            wanted,
            count=sent["count"],
            worker_id=sent["worker_id"],
            token=new_token(self.account),
            max_bytes=settings.api["MAX_RESPONSE_BYTES"],
        )
        client, headers = request._request, {}
        jobs = [] if has_gone(client) else fetch(lease=lease, now=self.now())
        if sent["wait"] and not jobs:
            try:
                jobs = wait_for(
                    lambda: fetch(lease=lease.at_first(), now=self.now()), self.jobs, wanted, sent["wait"], client
                )
            except Crowded:
                headers["Retry-After"] = str(COME_BACK)
        places = places_of(jobs)
        shown = [show_fetched(job, places.get(job.pk)) for job in jobs]
        return Response({"jobs": shown, "job": shown[0]} if shown else {"jobs": []}, headers=headers)


class Ack(OJSView):
    """``/ojs/v1/workers/ack``."""

    group = "workers"

    @operation(
        "ackJob", "workers", "Say that a job is done", {200: workers.ACKNOWLEDGED}, workers.ACK, refusals=(404, 409)
    )
    def post(self, request: Request) -> Response:
        sent = workers.ACK.read(self.body)
        return _reported(self, sent, workers.ACKNOWLEDGED, partial(remote.ack, result=sent.get("result")))


class Nack(OJSView):
    """``/ojs/v1/workers/nack``."""

    group = "workers"

    @operation("nackJob", "workers", "Say that a job failed", {200: workers.NACKED}, workers.NACK, refusals=(404, 409))
    def post(self, request: Request) -> Response:
        sent = workers.NACK.read(self.body)
        nack = partial(remote.nack, failure=workers.failure_of(sent.get("error", {})))
        return _reported(self, sent, workers.NACKED, remote.requeue if sent.get("requeue") else nack)


def _reported(view: OJSView, sent: Mapping[str, Any], answer: Object, report: Callable[..., Any]) -> Response:
    """Apply a worker's report about one job that it has claimed, and answer."""
    workers.demand_token(sent, "lease_token")
    holder = workers.holder_of(sent, view.account)
    try:
        job = report(view.jobs, id=sent["job_id"], holder=holder, now=view.now())
    except Job.DoesNotExist:
        raise NotFound.of("job", sent["job_id"]) from None
    return Response(answer.show(job))


class JobProgress(OneJobView):
    """``/ojs/v1/jobs/{id}/progress``: workers report it, clients read it (OJS progress chapter)."""

    groups = {"PUT": "workers"}

    @operation("getProgress", "jobs", "How far a job is", {200: workers.JOB_PROGRESS})
    def get(self, request: Request, id: str) -> Response:
        return Response(workers.JOB_PROGRESS.show(self.found(id, "read")))

    @operation(
        "putProgress",
        "workers",
        "Say how far a job is; also a heartbeat",
        {200: workers.REPORTED},
        workers.PROGRESS,
        refusals=(409,),
    )
    def put(self, request: Request, id: str) -> Response:
        return _report_progress(self, workers.read_job_id(id))


class Progress(OJSView):
    """``/ojs/v1/workers/progress``: the same report, with the job's id in the body as in an ack."""

    group = "workers"

    @operation(
        "reportProgress",
        "workers",
        "Say how far a job is; also a heartbeat",
        {200: workers.REPORTED},
        workers.PROGRESS_OF,
        refusals=(404, 409),
    )
    def post(self, request: Request) -> Response:
        return _report_progress(self, workers.read_job_id(self.body.get("job_id")))


def _report_progress(view: OJSView, id: UUID) -> Response:
    """Store a report, which is a heartbeat, too; of a job that nobody runs any more it is ignored, and says so."""
    done, note, sent = workers.read_report(view.body)
    workers.demand_token(sent, "lease_token")
    holder, lease = workers.holder_of(sent, view.account), workers.lease_of(sent)
    now = view.now()
    try:
        job = remote.report_progress(view.jobs, id, holder=holder, now=now, lease=lease, reported=(done, note))
    except Job.DoesNotExist:
        raise NotFound.of("job", id) from None
    except InvalidTransition as error:
        if error.details["current_state"] == JobState.ACTIVE:  # for another worker
            raise
        state = error.details["current_state"]
        return Response({"id": str(id), "job_id": str(id), "state": state, "accepted": False})
    return Response(workers.REPORTED.show(job))


class Heartbeat(OJSView):
    """``/ojs/v1/workers/heartbeat``."""

    group = "workers"

    @operation("heartbeat", "workers", "Keep jobs, and ask what to do", {200: workers.BEAT}, workers.HEARTBEAT)
    def post(self, request: Request) -> Response:
        sent, ids = workers.HEARTBEAT.read(self.body), workers.read_job_ids(self.body)
        if ids:
            workers.demand_token(sent, "lease_tokens")
        holder, lease = workers.holder_of(sent, self.account), workers.lease_of(sent)
        leased = remote.extend(self.jobs, ids, holder=holder, tokens=sent.get("lease_tokens"), lease=lease)
        now, facts = self.now(), workers.read_process(self.body)
        directive = heartbeat.say_hello(self.using, sent["worker_id"], now, **facts, claimed=len(leased))
        extended = [str(job.pk) for job in leased]
        state = directive or workers.RUNNING
        return Response({"state": state, "jobs_extended": extended, "server_time": milliseconds(now)})


class Workers(OJSView):
    """``/ojs/v1/workers``."""

    @operation("listWorkers", "worker control", "List the workers", {200: WORKERS}, query=PARAMETERS)
    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "workers")
        known = readable_workers(request, WorkerProcess.objects.using(self.using))
        rows, pagination = page.of_rows(known, "id")
        return Response({"workers": [workers.WORKER.show(row) for row in rows], "pagination": pagination})


class _Directive(OJSView):
    """What an operator wants of a worker: the worker gets it with its next heartbeat."""

    def direct(self, id: str, directive: str) -> Response:
        rows = WorkerProcess.objects.using(self.using).filter(pk=storable(id))
        if (row := rows.first()) is None:
            raise NotFound.of("worker", id)
        demand_worker(self.request, "change", row)
        starting_over(self.using, lambda: rows.update(directive=directive))
        row.directive = directive
        return Response({"worker": workers.WORKER.show(row)})


class Quiet(_Directive):
    """``/ojs/v1/workers/{id}/quiet``."""

    @operation("quietWorker", "worker control", "Let a worker take no more jobs", {200: ONE_WORKER})
    def post(self, request: Request, id: str) -> Response:
        return self.direct(id, "quiet")


class Terminate(_Directive):
    """``/ojs/v1/workers/{id}/terminate``."""

    @operation("terminateWorker", "worker control", "Let a worker stop", {200: ONE_WORKER})
    def post(self, request: Request, id: str) -> Response:
        return self.direct(id, "terminate")


class Resume(_Directive):
    """``/ojs/v1/workers/{id}/resume``."""

    @operation("resumeWorker", "worker control", "Let a worker go on", {200: ONE_WORKER})
    def post(self, request: Request, id: str) -> Response:
        return self.direct(id, "")
