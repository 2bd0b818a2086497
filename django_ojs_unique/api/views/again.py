"""Run a finished job again: revive it, or enqueue it again as a new job. Beyond the specification."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...maintenance.on_demand import run_maintenance
from ...reporting.preview import Consequence, of_enqueues_again, of_revivals
from ..authorize import show_allowed
from ..base import OJSView
from ..wire.envelope import show
from ..wire.flags import read_flags


class Revive(OJSView):
    """``/ojs/v1/jobs/{id}/revive``: make a discarded or cancelled job available.

    While a live job has its key, the answer is 409. ``{"replace": true}`` cancels that job, ``{"force": true}`` lets
    both run. ``{"dry_run": true}`` only says what would be done.
    """

    def post(self, request: Request, id: str) -> Response:
        flags = read_flags(self.body, ("replace", "force", "dry_run"))
        run_maintenance(self.jobs, timezone.now())
        job = self.found(id, "change")
        if flags.pop("dry_run", False):
            return _preview(*of_revivals(self.jobs, [job.pk], timezone.now(), **{"force": False, **flags}))
        job.revive(**flags)
        return Response({"job": show(job)})


class EnqueueAgain(OJSView):
    """``/ojs/v1/jobs/{id}/enqueue-again``: enqueue a finished job's type, args and options as a new job.

    The answers are those of ``POST /ojs/v1/jobs``. ``{"dry_run": true}`` only says what would be done.
    """

    def post(self, request: Request, id: str) -> Response:
        flags = read_flags(self.body, ("dry_run",))
        run_maintenance(self.jobs, timezone.now())
        job = self.found(id, "enqueue")
        self.demand("read", job.queue, job.type)  # the answer has its args
        if flags.get("dry_run"):
            return _preview(*of_enqueues_again(self.jobs, [job.pk], timezone.now()))
        result = job.enqueue_again()
        if result.deduplicated:
            return Response({"job": show_allowed(request, result), "deduplicated": True})
        return Response({"job": show(result.job)}, status=201)


def _preview(said: Consequence) -> Response:
    preview = {
        "allowed": not said.refusal,
        "message": said.refusal or " ".join(said.sentences),
        "duplicates": [{"id": str(rival.pk), "state": rival.state} for rival in said.rivals],
    }
    return Response({"preview": preview})
