"""Many jobs at once: all or none, or each on its own (HTTP binding, "Batch enqueue")."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from ...enqueue.results import EnqueueResult, Outcome
from ...exceptions import OJSError
from ...wire.enqueue import BATCH as ENQUEUE_BATCH
from ...wire.enqueue import HINTS, EnqueueBody, hints, read_job, read_jobs
from ...wire.schema import Object, mapping, one_of, whole
from ..authorize import demand_enqueue, show_allowed
from ..base import OJSView, operation
from ..enqueue_for_client import enqueue_all, enqueue_each
from ..wire.envelope import JOB
from ..wire.errors import ERROR

BATCH = Object("Batch", {"jobs": [JOB], "count": whole(), **HINTS})
_RESULT: dict[str, Any] = {"index": whole(), "status": one_of(Outcome), "job?": JOB, "error?": ERROR}
BULK = Object(
    "Bulk",
    {"results": [Object("BulkResult", _RESULT, "What became of one element.")], "counts": mapping(whole()), **HINTS},
)


class Batch(OJSView):
    """``/ojs/v1/jobs/batch``: all of them, or none."""

    group = "producers"

    @operation("enqueueJobs", "jobs", "Enqueue many jobs, all or none", {201: BATCH}, ENQUEUE_BATCH, refusals=(409,))
    def post(self, request: Request) -> Response:
        now = self.now()
        wanted = [read_job(element, now, index) for index, element in enumerate(read_jobs(self.body))]
        for one in wanted:
            demand_enqueue(request, one)
        results = enqueue_all(self.jobs, wanted)
        answer = {"jobs": [show_allowed(request, result) for result in results], "count": len(results)}
        return Response({**answer, **_hints(wanted)}, status=201)


class Bulk(OJSView):
    """``/ojs/v1/jobs/bulk``: each on its own; the answer has the result of each (OJS bulk chapter)."""

    group = "producers"

    @operation("enqueueEachJob", "jobs", "Enqueue many jobs, each on its own", {200: BULK}, ENQUEUE_BATCH)
    def post(self, request: Request) -> Response:
        now = self.now()
        read = [self._read(element, now, index) for index, element in enumerate(read_jobs(self.body))]
        accepted = iter(enqueue_each(self.jobs, [one for one in read if isinstance(one, EnqueueBody)]))
        results = [
            self._refused(index, one) if isinstance(one, OJSError) else self._result(index, *next(accepted))
            for index, one in enumerate(read)
        ]
        counts = Counter(result["status"] for result in results)
        answer = {"results": results, "counts": {str(outcome): counts[outcome] for outcome in Outcome}}
        return Response({**answer, **_hints(one for one in read if isinstance(one, EnqueueBody))})

    def _result(self, index: int, result: EnqueueResult, error: OJSError | None) -> dict[str, Any]:
        if error is not None:
            return self._refused(index, error)
        return {"index": index, "status": str(result.outcome), "job": show_allowed(self.request, result)}

    def _refused(self, index: int, error: OJSError) -> dict[str, Any]:
        status = Outcome.REJECTED if error.code == "duplicate" else Outcome.INVALID
        return {"index": index, "status": str(status), "error": self.described(error)}

    def _read(self, element: Any, now: datetime, index: int) -> EnqueueBody | OJSError:
        try:
            wanted = read_job(element, now, index)
            demand_enqueue(self.request, wanted)
        except OJSError as error:
            return error
        return wanted


def _hints(wanted: Iterable[EnqueueBody]) -> dict[str, list[str]]:
    return hints((f"jobs[{one.index}]", one.request) for one in wanted)
