"""Run a finished job again: retry it, or enqueue it again as a new job. Beyond the specification."""

from __future__ import annotations

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...maintenance.on_demand import run_maintenance
from ...reporting.preview import Consequence, of_enqueues_again, of_retries
from ..authorize import show_allowed
from ..base import OJSView
from ..wire.envelope import show
from ..wire.flags import read_flags


class Retry(OJSView):
    """``/ojs/v1/jobs/{id}/retry``: let a waiting job run now, or run a discarded or cancelled one again.

    While a live job has the key of a finished one, the answer is 409. ``{"replace": true}`` cancels that job,
    ``{"force": true}`` lets both run. ``{"dry_run": true}`` only says what would be done.
    """

    def post(self, request: Request, id: str) -> Response:
        flags = read_flags(self.body, ("replace", "force", "dry_run"))
        run_maintenance(self.jobs, timezone.now())
        job = self.found(id, "change")
        if flags.pop("dry_run", False):
            return _preview(*of_retries(self.jobs, [job.pk], timezone.now(), **{"force": False, **flags}))
        job.retry(**flags)
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


def _preview(consequence: Consequence) -> Response:
    preview = {
        "allowed": not consequence.refusal,
        "message": consequence.refusal or " ".join(consequence.sentences),
        "duplicates": [{"id": str(rival.pk), "state": rival.state} for rival in consequence.rivals],
    }
    return Response({"preview": preview})
