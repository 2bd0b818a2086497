"""What a caller may do with the jobs of a queue and a type: only this module asks ``OJS_UNIQUE["API"]["AUTHORIZE"]``.

A queue or type that is None stands for any. The functions named ``demand`` raise NotAuthorized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any, Literal

from django.db.models import QuerySet
from django.db.models.fields.json import KT
from rest_framework.request import Request

from ..conf import imported, settings
from ..enqueue.new_job import Reader
from ..enqueue.request import Request as Enqueue
from ..enqueue.results import EnqueueResult
from ..exceptions import OJSError
from ..models import CronJob, Job, WorkerProcess, Workflow, WorkflowMember
from ..ojs.names import QUEUE
from ..unique.keys import KeyScope
from ..wire.enqueue import EnqueueBody
from ..workflows.tables import below
from .wire.envelope import show_accepted, show_slim
from .wire.errors import NotAuthorized

Action = Literal["enqueue", "fetch", "read", "cancel", "change"]
"""``change`` is what operators do to jobs, queues and periodic jobs besides."""


def may(request: Request, action: Action, queue: str | None, type: str | None) -> bool:
    """Return whether the project's rule lets the caller do it; without a rule, everybody may."""
    rule: Any = imported(settings.api["AUTHORIZE"])
    return rule is None or rule(request, action, queue, type) is True


def demand(request: Request, action: Action, queue: str | None, type: str | None) -> None:
    """Refuse what the caller may not do."""
    if not may(request, action, queue, type):
        raise NotAuthorized.to(action, queue, type)


def demand_each(request: Request, action: Action, queues: Sequence[str], types: Sequence[str]) -> None:
    """Refuse a look at several queues and types unless the caller may do it in each; none of them means any."""
    for queue, type in product(queues or [None], types or [None]):  # type: ignore[list-item]
        demand(request, action, queue, type)


def demand_enqueue(request: Request, wanted: EnqueueBody) -> None:
    """Refuse an enqueue; raise what the enqueue itself raises about its type, queue and options."""
    try:
        demand_request(request, wanted.request)
    except OJSError as error:
        raise wanted.locate(error) from None


def demand_request(request: Request, wanted: Enqueue) -> None:
    """Refuse an enqueue whose request is valid."""
    if settings.api["AUTHORIZE"] is not None:
        demand(request, "enqueue", *_place(wanted))
        if wanted.key is not None and wanted.key_scope == KeyScope.GLOBAL:
            demand(request, "enqueue", None, None)  # it can rewrite a job of any queue and type


def demand_cron(request: Request, definition: Mapping[str, Any]) -> None:
    """Refuse to define a periodic job that the caller could not enqueue itself. Raises like `demand_enqueue`."""
    options = definition["options"]
    asked = {name: options[name] for name in ("queue", "key", "key_scope") if name in options}
    demand_request(request, Enqueue(definition["type"], elsewhere=True, **asked))


def fetchable(request: Request, queues: Sequence[str], types: Sequence[str] | None) -> dict[str, Sequence[str] | None]:
    """Return the queues from which the caller may fetch, each with the types; demand that there is one."""
    allowed: dict[str, Sequence[str] | None] = {}
    for queue in dict.fromkeys(queues):
        if types is None:
            if may(request, "fetch", queue, None):
                allowed[queue] = None
        elif kept := [type for type in types if may(request, "fetch", queue, type)]:
            allowed[queue] = kept
    if queues and not allowed:
        raise NotAuthorized.to("fetch", ", ".join(queues), None if types is None else ", ".join(types))
    return allowed


def demand_workflow(request: Request, action: Action, workflow: Workflow) -> None:
    """Refuse a call about a workflow unless the caller may do it to each of its jobs; to all around a nested one."""
    if settings.api["AUTHORIZE"] is None:
        return
    within = below(workflow.root_id or workflow.pk, "workflow")
    jobs = WorkflowMember._default_manager.using(workflow._state.db).filter(within, child=None).order_by()
    for type, queue in jobs.values_list(KT("request__type"), KT("request__queue")).distinct():
        demand(request, action, *_stored_place(type, queue))


def demand_worker(request: Request, action: Action, worker: WorkerProcess) -> None:
    """Refuse a call about a worker unless the caller may do it to all jobs of each of its queues."""
    for queue in _queues_of(worker):
        demand(request, action, queue, None)


def readable(request: Request, entries: QuerySet[CronJob]) -> QuerySet[CronJob]:
    """Return the periodic jobs that the caller may read."""
    if settings.api["AUTHORIZE"] is None:
        return entries
    known = entries.only("type", "options")
    return entries.filter(pk__in=[entry.pk for entry in known if may(request, "read", *place_of(entry))])


def readable_workers(request: Request, workers: QuerySet[WorkerProcess]) -> QuerySet[WorkerProcess]:
    """Return the workers on whose queues the caller may read all jobs."""
    if settings.api["AUTHORIZE"] is None:
        return workers
    known = ((worker.pk, _queues_of(worker)) for worker in workers.only("queues"))
    return workers.filter(pk__in=[pk for pk, queues in known if all(may(request, "read", one, None) for one in queues)])


def place_of(entry: CronJob) -> tuple[str | None, str]:
    """Return the queue and type of a periodic job; the queue is None if its row, changed manually, has no valid one."""
    queue = entry.options.get("queue") if isinstance(entry.options, dict) else None
    return _stored_place(entry.type, queue)


def _stored_place(type: Any, queue: Any) -> tuple[str | None, Any]:
    try:
        return _place(Enqueue(type, queue=queue, elsewhere=True))
    except OJSError:
        return None, type


def _queues_of(worker: WorkerProcess) -> list[str | None]:
    """Return the queues that a worker says it takes; only None, which stands for any, if it names none or patterns."""
    queues = worker.queues if isinstance(worker.queues, list) else []
    return queues if queues and all(isinstance(name, str) and QUEUE.fullmatch(name) for name in queues) else [None]


def _place(wanted: Enqueue) -> tuple[str, str]:
    values = Reader(Job).options_of(wanted).values
    return values["queue"], values["type"]


def show_allowed(request: Request, result: EnqueueResult) -> dict[str, Any]:
    """Return the JSON object of the job of an enqueue; one of others that the caller may not read has few members."""
    job = result.job
    hidden = (result.deduplicated or job.revision) and not may(request, "read", job.queue, job.type)
    return show_slim(job) if hidden else show_accepted(result)
