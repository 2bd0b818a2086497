"""The name, the bodies and the error statuses of each method of each route, for the OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from drf_spectacular.utils import OpenApiParameter

from ...models.event import DEFAULT_LIMIT as DEFAULT_EVENTS
from ...models.event import LARGEST_LIMIT as MOST_EVENTS
from ...ojs.workflows import Kind, WorkflowState
from ..wire.pages import DEFAULT_LIMIT, HIGHEST_LIMIT, HIGHEST_OFFSET, HIGHEST_PAGE
from .serializers import answers, operators, requests, work, workflows


@dataclass(frozen=True, slots=True)
class Operation:
    """The description of one method of one route.

    ``answers``: the body of each successful status. ``query``: the query parameters. ``refusals``: further error
    statuses, besides those that every operation has and those that follow from a body, a query or an id in the path.
    """

    id: str
    tag: str
    summary: str
    answers: Mapping[int, Any]
    request: Any = None
    query: Sequence[OpenApiParameter] = ()
    refusals: Sequence[int] = ()


def _query(name: str, description: str, type: Any = str, **schema: Any) -> OpenApiParameter:
    if schema:
        type = {"type": {int: "integer", str: "string"}[type], **schema}
    return OpenApiParameter(name, type, OpenApiParameter.QUERY, description=description)


PAGE = (
    _query("limit", "How many at most.", int, minimum=1, maximum=HIGHEST_LIMIT, default=DEFAULT_LIMIT),
    _query("offset", "How many to leave out.", int, minimum=0, maximum=HIGHEST_OFFSET),
    _query("cursor", "The `next_cursor` of the page before."),
    _query("per_page", "Another name of `limit`.", int, minimum=1, maximum=HIGHEST_LIMIT),
    _query("page", "Instead of `offset`: the number of the page, from 1.", int, minimum=1, maximum=HIGHEST_PAGE),
)

OPERATIONS: Mapping[str, Operation] = {
    "GET /ojs/v1/jobs": Operation(
        "listJobs",
        "jobs",
        "List jobs, the newest first",
        {200: answers.PageOfJobs},
        query=(
            _query("state", "In one of these states, with commas."),
            _query("queue", "Of one queue."),
            _query("type", "Of one type."),
            _query("key", "Enqueued with this key."),
            _query("worker_id", "That this worker holds, or had last."),
            _query("since", "Enqueued at or after this time, or so long ago, as in PT30M."),
            _query("until", "Enqueued before this time, or longer ago than this."),
            _query("dead_letter", "Only dead letters, or none of them.", enum=["true", "false"]),
            *PAGE,
        ),
    ),
    "POST /ojs/v1/jobs": Operation(
        "enqueueJob",
        "jobs",
        "Enqueue a job, unless it is queued already",
        {201: answers.OneJob, 200: answers.Deduplicated},
        requests.Enqueue,
        refusals=(409,),
    ),
    "POST /ojs/v1/jobs/batch": Operation(
        "enqueueJobs",
        "jobs",
        "Enqueue many jobs, all or none",
        {201: answers.Batch},
        requests.EnqueueBatch,
        refusals=(409,),
    ),
    "POST /ojs/v1/jobs/bulk": Operation(
        "enqueueEachJob", "jobs", "Enqueue many jobs, each on its own", {200: answers.Bulk}, requests.EnqueueBatch
    ),
    "POST /ojs/v1/jobs/explain": Operation(
        "explainJob",
        "jobs",
        "What an enqueue would do now, and why; nothing is written",
        {200: answers.Explained},
        requests.Enqueue,
    ),
    "GET /ojs/v1/jobs/{}": Operation("getJob", "jobs", "Look at a job", {200: answers.OneJob}),
    "DELETE /ojs/v1/jobs/{}": Operation("cancelJob", "jobs", "Cancel a job", {200: answers.Cancelled}, refusals=(409,)),
    "GET /ojs/v1/jobs/{}/progress": Operation("getProgress", "jobs", "How far a job is", {200: work.JobProgress}),
    "PUT /ojs/v1/jobs/{}/progress": Operation(
        "putProgress",
        "workers",
        "Say how far a job is; also a heartbeat",
        {200: work.Reported},
        requests.Progress,
        refusals=(409,),
    ),
    "POST /ojs/v1/jobs/{}/activate": Operation(
        "activateJob", "jobs", "Let a pending job run", {200: answers.OneJob}, refusals=(409,)
    ),
    "POST /ojs/v1/jobs/{}/retry": Operation(
        "retryJob",
        "jobs",
        "Let a waiting job run now, or run a discarded or cancelled one again",
        {200: answers.JobOrPreview},
        requests.RetryJob,
        refusals=(409,),
    ),
    "POST /ojs/v1/jobs/{}/enqueue-again": Operation(
        "enqueueJobAgain",
        "jobs",
        "Enqueue a finished job again, as a new job",
        {201: answers.OneJob, 200: answers.JobOrPreview},
        requests.EnqueueAgain,
        refusals=(409,),
    ),
    "GET /ojs/v1/workflows": Operation(
        "listWorkflows",
        "workflows",
        "List the outermost workflows, the newest first",
        {200: workflows.PageOfWorkflows},
        query=(
            _query("state", "In this state.", enum=[*WorkflowState]),
            _query("type", "Of this kind.", enum=[*Kind]),
            _query("name", "With this name."),
            *PAGE,
        ),
    ),
    "POST /ojs/v1/workflows": Operation(
        "startWorkflow",
        "workflows",
        "Start a chain, a group or a batch of jobs",
        {201: workflows.OneWorkflow},
        workflows.StartWorkflow,
        refusals=(409,),
    ),
    "GET /ojs/v1/workflows/{}": Operation(
        "getWorkflow",
        "workflows",
        "Look at a workflow",
        {200: workflows.OneWorkflow},
        query=(_query("members", "Whether to show its steps or jobs.", enum=["true", "false"]),),
    ),
    "DELETE /ojs/v1/workflows/{}": Operation(
        "cancelWorkflow", "workflows", "Cancel a workflow", {200: workflows.CancelledWorkflow}, refusals=(409,)
    ),
    "POST /ojs/v1/workers/fetch": Operation(
        "fetchJobs", "workers", "Take jobs to run", {200: answers.Fetched}, requests.Fetch
    ),
    "POST /ojs/v1/workers/ack": Operation(
        "ackJob", "workers", "Say that a job is done", {200: work.Acknowledged}, requests.Ack, refusals=(404, 409)
    ),
    "POST /ojs/v1/workers/nack": Operation(
        "nackJob", "workers", "Say that a job failed", {200: work.Nacked}, requests.Nack, refusals=(404, 409)
    ),
    "POST /ojs/v1/workers/progress": Operation(
        "reportProgress",
        "workers",
        "Say how far a job is; also a heartbeat",
        {200: work.Reported},
        requests.ProgressOf,
        refusals=(404, 409),
    ),
    "POST /ojs/v1/workers/heartbeat": Operation(
        "heartbeat", "workers", "Keep jobs, and ask what to do", {200: work.Beat}, requests.Heartbeat
    ),
    "GET /ojs/v1/workers": Operation(
        "listWorkers", "worker control", "List the workers", {200: answers.Workers}, query=PAGE
    ),
    "POST /ojs/v1/workers/{}/quiet": Operation(
        "quietWorker", "worker control", "Let a worker take no more jobs", {200: answers.OneWorker}
    ),
    "POST /ojs/v1/workers/{}/terminate": Operation(
        "terminateWorker", "worker control", "Let a worker stop", {200: answers.OneWorker}
    ),
    "POST /ojs/v1/workers/{}/resume": Operation(
        "resumeWorker", "worker control", "Let a worker go on", {200: answers.OneWorker}
    ),
    "GET /ojs/v1/dead-letter": Operation(
        "listDeadLetters",
        "dead letter",
        "List jobs that failed for good",
        {200: answers.PageOfJobs},
        query=(_query("queue", "Of one queue."), _query("type", "Of one type."), *PAGE),
    ),
    "GET /ojs/v1/dead-letter/{}": Operation(
        "getDeadLetter", "dead letter", "Look at a job that failed for good", {200: answers.OneJob}
    ),
    "DELETE /ojs/v1/dead-letter/{}": Operation(
        "deleteDeadLetter", "dead letter", "Delete a job that failed for good", {200: answers.Deleted}, refusals=(409,)
    ),
    "POST /ojs/v1/dead-letter/{}/retry": Operation(
        "retryDeadLetter",
        "dead letter",
        "Run a job again that failed for good",
        {200: answers.OneJob},
        requests.RetryDeadLetter,
        refusals=(409,),
    ),
    "GET /ojs/v1/cron": Operation("listCrons", "cron", "List the periodic jobs", {200: operators.Crons}, query=PAGE),
    "POST /ojs/v1/cron": Operation(
        "defineCron",
        "cron",
        "Define a periodic job, or change it",
        {201: operators.OneCron, 200: operators.OneCron},
        requests.DefineCron,
        refusals=(409,),
    ),
    "GET /ojs/v1/cron/{}": Operation("getCron", "cron", "Look at a periodic job", {200: operators.OneCron}),
    "DELETE /ojs/v1/cron/{}": Operation(
        "deleteCron", "cron", "Delete a periodic job", {200: operators.DeletedCron}, refusals=(409,)
    ),
    "GET /ojs/v1/queues": Operation("listQueues", "queues", "List the queues", {200: operators.Queues}, query=PAGE),
    "GET /ojs/v1/queues/{}/stats": Operation(
        "getQueueStats", "queues", "Count the jobs of a queue", {200: operators.OneQueueStats}, refusals=(400,)
    ),
    "POST /ojs/v1/queues/{}/pause": Operation(
        "pauseQueue", "queues", "Hand out nothing from a queue", {200: operators.OneQueuePause}, refusals=(400, 413)
    ),
    "POST /ojs/v1/queues/{}/resume": Operation(
        "resumeQueue", "queues", "Hand out from a queue again", {200: operators.OneQueuePause}, refusals=(400, 413)
    ),
    "GET /ojs/v1/events": Operation(
        "listEvents",
        "events",
        "What happened, oldest first",
        {200: answers.Events},
        query=(
            _query("types", "Of these types of events, with commas."),
            _query("queues", "Of these queues, with commas."),
            _query("job_types", "Of these types of jobs, with commas."),
            _query("after", "After the event with this id."),
            _query("limit", "How many at most.", int, minimum=1, maximum=MOST_EVENTS, default=DEFAULT_EVENTS),
        ),
    ),
    "GET /ojs/manifest": Operation("getManifest", "server", "What this server supports", {200: answers.Manifest}),
    "GET /ojs/v1/health": Operation(
        "getHealth", "server", "Whether the database answers", {200: answers.Health, 503: answers.Health}
    ),
    "GET /ojs/v1/openapi.json": Operation("getOpenAPI", "server", "This document", {200: answers.Document}),
    "GET /ojs/v1/errors/{}": Operation("getErrorCode", "server", "What a code means", {200: answers.ErrorMeaning}),
}
"""Each operation, by its method and its path with ``{}`` for each variable part."""
