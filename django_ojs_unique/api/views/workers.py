"""Workers: fetch, ack, nack, heartbeat, and directives of operators (HTTP binding, "Worker endpoints")."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...conf import settings
from ...db.transactions import starting_over
from ...execution.errors import storable
from ...models import Job, WorkerProcess
from ...ojs.moments import milliseconds
from ...ojs.states import JobState
from ...worker import heartbeat, remote
from ...worker.remote_worker import RemoteWorker, new_token
from ...workflows.results import places_of
from ..authorize import fetchable
from ..base import OJSView
from ..waiting import COME_BACK, Crowded, has_gone, wait_for
from ..wire import worker_requests
from ..wire.envelope import show_fetched
from ..wire.errors import NotFound
from ..wire.pages import Page

RUNNING = "running"


class Fetch(OJSView):
    """``/ojs/v1/workers/fetch``."""

    group = "workers"

    def post(self, request: Request) -> Response:
        queues, wait = worker_requests.read_queues(self.body), worker_requests.read_wait(self.body)
        lease, wanted = (
            worker_requests.read_lease(self.body),
            fetchable(request, queues, worker_requests.read_types(self.body, queues)),
        )
        fetch = partial(
            remote.fetch,
            self.jobs,
            wanted,
            count=worker_requests.read_count(self.body),
            worker_id=worker_requests.read_worker_id(self.body),
            token=new_token(self.account),
            max_bytes=settings.api["MAX_RESPONSE_BYTES"],
        )
        client, headers = request._request, {}
        jobs = [] if has_gone(client) else fetch(lease=lease, now=timezone.now())
        if wait and not jobs:
            try:
                jobs = wait_for(
                    lambda: fetch(lease=lease.at_first(), now=timezone.now()), self.jobs, wanted, wait, client
                )
            except Crowded:
                headers["Retry-After"] = str(COME_BACK)
        places = places_of(jobs)
        shown = [show_fetched(job, places.get(job.pk)) for job in jobs]
        return Response({"jobs": shown, "job": shown[0]} if shown else {"jobs": []}, headers=headers)


class _Report(OJSView):
    """A worker's report about one job that it has claimed."""

    group = "workers"

    def report(self) -> Job:
        """Apply the report; return the job. Raises Job.DoesNotExist."""
        raise NotImplementedError

    def answer(self, job: Job) -> dict[str, Any]:
        """Return the members of the answer besides the id and the state."""
        raise NotImplementedError

    def post(self, request: Request) -> Response:
        try:
            job = self.report()
        except Job.DoesNotExist:
            raise NotFound.of("job", self.body["job_id"]) from None
        return Response({"id": str(job.pk), "job_id": str(job.pk), "state": str(job.state), **self.answer(job)})

    @property
    def _holding(self) -> dict[str, Any]:
        holder = worker_requests.read_holder(self.body, self.account)
        return {"id": worker_requests.read_job_id(self.body), "holder": holder, "now": timezone.now()}


class Ack(_Report):
    """``/ojs/v1/workers/ack``."""

    def report(self) -> Job:
        return remote.ack(self.jobs, **self._holding, result=worker_requests.read_result(self.body))  # type: ignore[no-any-return]

    def answer(self, job: Job) -> dict[str, Any]:
        assert job.finished_at is not None
        return {"acknowledged": True, "completed_at": milliseconds(job.finished_at)}


class Nack(_Report):
    """``/ojs/v1/workers/nack``."""

    def report(self) -> Job:
        failure = worker_requests.read_failure(self.body)
        if worker_requests.read_requeue(self.body):
            return remote.requeue(self.jobs, **self._holding)  # type: ignore[no-any-return]
        return remote.nack(self.jobs, **self._holding, failure=failure)  # type: ignore[no-any-return]

    def answer(self, job: Job) -> dict[str, Any]:
        answer: dict[str, Any] = {"attempt": job.attempt, "max_attempts": job.most_attempts}
        if job.state == JobState.RETRYABLE:
            assert job.run_at is not None
            delay = job.errors[-1].get("retry_delay_ms", 0) if job.errors else 0  # a requeued job has none
            answer |= {"next_attempt_at": milliseconds(job.run_at), "retry_delay_ms": delay}
        elif job.state == JobState.DISCARDED:
            assert job.finished_at is not None
            answer |= dict.fromkeys(("discarded_at", "completed_at"), milliseconds(job.finished_at))
        return answer


class Heartbeat(OJSView):
    """``/ojs/v1/workers/heartbeat``."""

    group = "workers"

    def post(self, request: Request) -> Response:
        worker_id = worker_requests.read_worker_id(self.body, required=True)
        ids, lease = worker_requests.read_job_ids(self.body), worker_requests.read_lease(self.body)
        assert worker_id is not None
        holder, tokens = RemoteWorker(self.account, worker_id), worker_requests.read_tokens(self.body)
        leased = remote.extend(self.jobs, ids, holder=holder, tokens=tokens, lease=lease)
        now, facts = timezone.now(), worker_requests.read_process(self.body)
        directive = heartbeat.say_hello(self.using, worker_id, now, **facts, claimed=len(leased))
        extended = [str(job.pk) for job in leased]
        return Response({"state": directive or RUNNING, "jobs_extended": extended, "server_time": milliseconds(now)})


class Workers(OJSView):
    """``/ojs/v1/workers``."""

    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "workers")
        rows, pagination = page.of_rows(WorkerProcess.objects.using(self.using), "id")
        return Response({"workers": [_show(row) for row in rows], "pagination": pagination})


class Directive(OJSView):
    """``/ojs/v1/workers/{id}/quiet``, ``/terminate``, ``/resume``: the worker gets it with its next heartbeat."""

    directive = ""

    def post(self, request: Request, id: str) -> Response:
        rows = WorkerProcess.objects.using(self.using).filter(pk=storable(id))
        starting_over(self.using, lambda: rows.update(directive=self.directive))
        if (row := rows.first()) is None:
            raise NotFound.of("worker", id)
        return Response({"worker": _show(row)})


def _show(row: WorkerProcess) -> dict[str, Any]:
    """Return a worker's JSON object. ``directive``: what operators want of it. ``state``: what it reported last."""
    shown = {
        "id": row.pk,
        "state": row.state,
        "directive": row.directive or RUNNING,
        "hostname": row.hostname or None,
        "pid": row.pid,
        "queues": row.queues,
        "concurrency": row.concurrency,
        "held": row.claimed,
        "finalized": row.finalized,
        "started_at": milliseconds(row.started_at),
        "heartbeat_at": milliseconds(row.heartbeat_at),
    }
    return {name: value for name, value in shown.items() if value is not None}
