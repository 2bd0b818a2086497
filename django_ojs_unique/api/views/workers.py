"""Workers: fetch, ack, nack, heartbeat, and what operators tell them (HTTP binding, "Worker endpoints")."""

from __future__ import annotations

from functools import partial
from typing import Any

from django.conf import settings as django_settings
from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...conf import settings
from ...models import Job, WorkerProcess
from ...ojs.moments import milliseconds
from ...ojs.states import JobState
from ...transactions import starting_over
from ...worker import outside, presence
from ...worker.run import storable
from .. import reports
from ..base import OJSView
from ..envelope import show
from ..errors import NotFound
from ..pagination import Page
from ..waiting import wait_for

RUNNING = "running"


class Fetch(OJSView):
    """``/ojs/v1/workers/fetch``."""

    group = "workers"

    def post(self, request: Request) -> Response:
        queues, wait = reports.read_queues(self.body), reports.read_wait(self.body)
        fetch = partial(
            outside.fetch,
            self.jobs,
            queues,
            types=reports.read_types(self.body),
            count=reports.read_count(self.body),
            worker_id=reports.read_worker_id(self.body),
            lease=reports.read_lease(self.body),
        )
        jobs = wait_for(lambda: fetch(now=timezone.now()), self.jobs, queues, wait)
        shown = [show(job) for job in jobs]
        return Response({"jobs": shown, "job": shown[0]} if shown else {"jobs": []})


class _Report(OJSView):
    """What a worker says of one job that it holds."""

    group = "workers"

    def report(self) -> Job:
        """Do as the worker says; return the job. Raises Job.DoesNotExist."""
        raise NotImplementedError

    def answer(self, job: Job) -> dict[str, Any]:
        """Return what to answer beside the id and the state."""
        raise NotImplementedError

    def post(self, request: Request) -> Response:
        try:
            job = self.report()
        except Job.DoesNotExist:
            raise NotFound.of("job", self.body["job_id"]) from None
        return Response({"id": str(job.pk), "job_id": str(job.pk), "state": str(job.state), **self.answer(job)})

    @property
    def _holding(self) -> dict[str, Any]:
        worker_id = reports.read_worker_id(self.body)
        return {"id": reports.read_job_id(self.body), "worker_id": worker_id, "now": timezone.now()}


class Ack(_Report):
    """``/ojs/v1/workers/ack``."""

    def report(self) -> Job:
        return outside.ack(self.jobs, **self._holding, result=reports.read_result(self.body))  # type: ignore[no-any-return]

    def answer(self, job: Job) -> dict[str, Any]:
        assert job.finished_at is not None
        return {"acknowledged": True, "completed_at": milliseconds(job.finished_at)}


class Nack(_Report):
    """``/ojs/v1/workers/nack``."""

    def report(self) -> Job:
        failure = reports.read_failure(self.body)
        if reports.read_requeue(self.body):
            return outside.requeue(self.jobs, **self._holding)  # type: ignore[no-any-return]
        return outside.nack(self.jobs, **self._holding, failure=failure)  # type: ignore[no-any-return]

    def answer(self, job: Job) -> dict[str, Any]:
        said: dict[str, Any] = {"attempt": job.attempt, "max_attempts": job.max_attempts}
        if job.state == JobState.RETRYABLE:
            assert job.run_at is not None
            said |= {"next_attempt_at": milliseconds(job.run_at), "retry_delay_ms": job.errors[-1]["retry_delay_ms"]}
        elif job.state == JobState.DISCARDED:
            assert job.finished_at is not None
            said |= dict.fromkeys(("discarded_at", "completed_at"), milliseconds(job.finished_at))
        return said


class Heartbeat(OJSView):
    """``/ojs/v1/workers/heartbeat``."""

    group = "workers"

    def post(self, request: Request) -> Response:
        worker_id = reports.read_worker_id(self.body, required=True)
        ids, lease = reports.read_job_ids(self.body), reports.read_lease(self.body)
        assert worker_id is not None
        held = outside.extend(self.jobs, ids, worker_id=worker_id, lease=lease)
        now, facts = timezone.now(), reports.read_process(self.body)
        directive = presence.say_hello(self.using, worker_id, now, **facts, held=len(held))
        if django_settings.DEBUG and settings.api["TEST_DIRECTIVES"]:
            directive = _test_directive(held) or directive
        extended = [str(job.pk) for job in held]
        return Response({"state": directive or RUNNING, "jobs_extended": extended, "server_time": milliseconds(now)})


class Workers(OJSView):
    """``/ojs/v1/workers``."""

    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "workers")
        rows, pagination = page.of_rows(WorkerProcess.objects.using(self.using), "id")
        return Response({"workers": [_show(row) for row in rows], "pagination": pagination})


class Directive(OJSView):
    """``/ojs/v1/workers/{id}/quiet``, ``/terminate``, ``/resume``: what a worker is told with its next heartbeat."""

    directive = ""

    def post(self, request: Request, id: str) -> Response:
        rows = WorkerProcess.objects.using(self.using).filter(pk=storable(id))
        starting_over(self.using, lambda: rows.update(directive=self.directive))
        if (row := rows.first()) is None:
            raise NotFound.of("worker", id)
        return Response({"worker": _show(row)})


def _show(row: WorkerProcess) -> dict[str, Any]:
    """Return a worker's JSON object; ``directive`` is what it is told, ``state`` what it last said."""
    shown = {
        "id": row.pk,
        "state": row.state,
        "directive": row.directive or RUNNING,
        "hostname": row.hostname or None,
        "pid": row.pid,
        "queues": row.queues,
        "concurrency": row.concurrency,
        "held": row.held,
        "settled": row.settled,
        "started_at": milliseconds(row.started_at),
        "heartbeat_at": milliseconds(row.heartbeat_at),
    }
    return {name: value for name, value in shown.items() if value is not None}


def _test_directive(jobs: list[Any]) -> str | None:
    """Return what the metadata of a job tells its worker: an aid for conformance tests."""
    said = (job.meta.get("test_directive") for job in jobs)
    return next((directive for directive in said if directive in WorkerProcess.Directive.values), None)
