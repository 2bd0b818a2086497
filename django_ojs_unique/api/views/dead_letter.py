"""Dead letters: jobs that failed for good and wait for somebody to look at them (HTTP binding, "Dead letter")."""

from __future__ import annotations

from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ... import lifecycle
from ...exceptions import InvalidRequest, did_you_mean
from ...models import Job
from ...ojs.names import job_type, queue_name
from ...ojs.states import JobState
from ...worker.outside import pass_time
from ..base import OJSView
from ..envelope import show
from ..errors import NotFound
from ..pagination import Page

DEAD = {"slimmed__in": [False], "state": JobState.DISCARDED, "dead_letter__in": [True], "finished_at__isnull": False}
"""What dead letters have in common, put so that one index serves, which has them in the order of the list."""

_FILTERS = {"queue": queue_name, "type": job_type}
_WAYS = ("force", "replace")


class DeadLetters(OJSView):
    """``/ojs/v1/dead-letter``: the newest first, of one ``queue`` or ``type`` if the client says so."""

    def get(self, request: Request) -> Response:
        parameters = request.query_params
        page = Page.read(parameters, "dead_letter")
        wanted = {name: check(parameters[name]) for name, check in _FILTERS.items() if name in parameters}
        pass_time(self.jobs, timezone.now())
        jobs, pagination = page.of_rows(self.jobs.filter(**DEAD, **wanted), "-finished_at", "-id")
        return Response({"jobs": [_shown(job) for job in jobs], "pagination": pagination})


class DeadLetter(OJSView):
    """``/ojs/v1/dead-letter/{id}``."""

    def get(self, request: Request, id: str) -> Response:
        return Response({"job": _shown(_found(self, id))})

    def delete(self, request: Request, id: str) -> Response:
        """Delete the job: it is gone for good, and its key is free, even if its window was still open."""
        job = _found(self, id)
        if not lifecycle.remove(self.jobs.filter(pk=job.pk, **DEAD)):
            raise NotFound.of("dead letter", id)
        return Response({"deleted": True, "job_id": id})


class RetryDeadLetter(OJSView):
    """``/ojs/v1/dead-letter/{id}/retry``.

    While a live job has its key, that is a 409; of our own, ``{"replace": true}`` cancels that one, and
    ``{"force": true}`` lets both run.
    """

    def post(self, request: Request, id: str) -> Response:
        ways: dict[str, Any] = {}
        for name, value in self.body.items():
            if name not in _WAYS:
                raise InvalidRequest.at(name, "is not known here", mend=did_you_mean(name, _WAYS))
            if not isinstance(value, bool):
                raise InvalidRequest.at(name, "must be true or false", value=value)
            ways[name] = value
        job = _found(self, id)
        job.revive(**ways)
        return Response({"job": show(job)})


def _found(view: OJSView, id: str) -> Job:
    job = view.found(id)
    if job.state != JobState.DISCARDED or not job.dead_letter or job.slimmed:
        raise NotFound.of("dead letter", id)
    return job


def _shown(job: Job) -> dict[str, Any]:
    return {"errors": [], **show(job)}
