"""Start workflows for HTTP clients: after overdue maintenance, and with the rate limits that they set for queues."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from uuid import UUID

from django.db import transaction
from django.db.models import QuerySet
from django.utils import timezone

from ...db.transactions import starting_over
from ...enqueue.new_job import Reader
from ...enqueue.request import Request
from ...maintenance.on_demand import run_maintenance
from ...models import Job, Queue, Workflow
from ...workflows.create import create
from ...workflows.definition import Flow


def start(jobs: QuerySet[Any], flow: Flow, id: UUID | str | None, rates: Mapping[int, int]) -> Workflow:
    """Store a workflow, and enqueue the jobs that wait for no other.

    ``rates``: in jobs per second, by the numbers of the jobs in `Flow.leaves`; they hold for the queues at once.
    Raises what `create` raises; nothing is stored then.
    """
    run_maintenance(jobs, timezone.now())  # so that a job that is over is no duplicate
    workflows = Workflow.objects.using(jobs.db)
    if not rates:
        return create(workflows, flow, id)  # type: ignore[no-any-return]
    requests = [leaf.request for leaf in flow.leaves()]
    queues = {_queue(requests[number]): rate for number, rate in rates.items()}

    def store() -> Any:
        with transaction.atomic(using=jobs.db):
            workflow = create(workflows, flow, id)
            for queue in sorted(queues):
                Queue.objects.using(jobs.db).rate_limit(queue, queues[queue])
        return workflow

    return starting_over(jobs.db, store)  # type: ignore[no-any-return]


def _queue(request: Request) -> str:
    return Reader(Job).shape_of(request).values["queue"]  # type: ignore[no-any-return]
