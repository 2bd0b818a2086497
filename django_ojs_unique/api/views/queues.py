"""Queues: list, count, pause and resume (HTTP binding, "Queues")."""

from __future__ import annotations

from rest_framework.request import Request
from rest_framework.response import Response

from ...maintenance.on_demand import run_maintenance
from ...models import Queue
from ...ojs.moments import milliseconds
from ...ojs.names import queue_name
from ...ojs.states import JobState
from ...reporting.queues import counts, names
from ...wire.schema import Object, flag, one_of, text, time, whole
from ..authorize import may
from ..base import OJSView, operation
from ..wire.cron import STATUSES
from ..wire.pages import PARAMETERS, Page, paged

_QUEUE = {"name": text(), "paused": flag()}
_STATUS = {"status": one_of(STATUSES)}
QUEUES = paged("Queues", queues=Object("Queue", {**_QUEUE, **_STATUS}))
_COUNTS = {" ".join(JobState): whole()}
_STATS = {**_QUEUE, **_COUNTS}
ONE_QUEUE_STATS = Object(
    "OneQueueStats",
    {
        **_STATS,
        **_STATUS,
        "queue": Object("QueueStats", _STATS),
        "stats": Object("QueueCounts", _COUNTS),
        "exact": flag(),
        "computed_at": time(),
    },
)
PAUSED = Object("OneQueuePause", {"queue": Object("QueuePause", {**_QUEUE, "paused_at? resumed_at?": time()})})


class Queues(OJSView):
    """``/ojs/v1/queues``: those that have unfinished jobs, or a row because an operator paused or limited them."""

    @operation("listQueues", "queues", "List the queues", {200: QUEUES}, query=PARAMETERS)
    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "queues")
        shown, pagination = page.of_names([name for name in names(self.using) if may(request, "read", name, None)])
        paused = set(Queue.objects.using(self.using).exclude(paused_at=None).values_list("name", flat=True))
        queues = [{"name": name, "status": _status(name in paused), "paused": name in paused} for name in shown]
        return Response({"queues": queues, "pagination": pagination})


class QueueStats(OJSView):
    """``/ojs/v1/queues/{name}/stats``."""

    @operation("getQueueStats", "queues", "Count the jobs of a queue", {200: ONE_QUEUE_STATS}, refusals=(400,))
    def get(self, request: Request, name: str) -> Response:
        self.demand("read", queue_name(name), None)
        run_maintenance(self.jobs, self.now(), crons=True)
        now = self.now()
        found, exact = counts(self.using, name)
        by_state = {str(state): count for state, count in found.items()}
        paused = Queue.objects.using(self.using).filter(name=name).exclude(paused_at=None).exists()
        shown = {"name": name, **by_state, "paused": paused}
        # The suite reads the first, the HTTP chapter and two clients `stats`, another client the top.
        queue = name if self.asks_for_draft else shown
        answer = {"queue": queue, "stats": by_state, **shown, "status": _status(paused)}
        return Response({**answer, "exact": exact, "computed_at": milliseconds(now)})


class PauseQueue(OJSView):
    """``/ojs/v1/queues/{name}/pause``: also for a queue that was never used, or is paused already."""

    @operation("pauseQueue", "queues", "Hand out nothing from a queue", {200: PAUSED}, refusals=(400, 413))
    def post(self, request: Request, name: str) -> Response:
        _ = self.body  # read only to refuse a malformed body
        self.demand("change", queue_name(name), None)
        queues = Queue.objects.using(self.using)
        queues.pause(name)
        since = queues.filter(name=name).values_list("paused_at", flat=True).first()
        return Response({"queue": {"name": name, "paused": True, "paused_at": milliseconds(since or self.now())}})


class ResumeQueue(OJSView):
    """``/ojs/v1/queues/{name}/resume``."""

    @operation("resumeQueue", "queues", "Hand out from a queue again", {200: PAUSED}, refusals=(400, 413))
    def post(self, request: Request, name: str) -> Response:
        _ = self.body
        self.demand("change", queue_name(name), None)
        Queue.objects.using(self.using).resume(name)
        return Response({"queue": {"name": name, "paused": False, "resumed_at": milliseconds(self.now())}})


def _status(paused: bool) -> str:
    return "paused" if paused else "active"
