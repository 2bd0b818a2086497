"""What a job waits for at its gate, in sentences: a look at its limits, the turn of its lane, a slot of a key."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, QuerySet, Sum
from django.utils import timezone

from ..models import Job, LimitKey, LimitOverride, Slot
from ..models.limit import in_force, said
from ..ojs.gates import KEYS, LANES, LIMITED
from ..ojs.states import JobState
from ..redaction import redacted_member
from .queues import MOST_COUNTED, in_use
from .text import full, listed, shortened

MOST_HOLDERS = 3
"""How many of the jobs that hold slots of a key are named."""
LONGEST_KEY = 120
TIMES = {1: "second", 60: "minute", 3600: "hour"}


def waits_for(job: Any, using: str) -> tuple[str, ...]:
    """Say what an available job waits for before a worker may claim it; empty if it waits for a worker only.

    At most eight statements, whatever waits. Redacted values are masked.
    """
    if job.state != JobState.AVAILABLE:
        return ()
    if job.gate == LIMITED:
        return ("No worker has looked at its limits yet.", _before(job, using, [job.queue]))
    if job.gate.startswith(LANES):
        said_lane = f"Waits for a turn of its lane in the fair queue {job.queue}."
        return (said_lane, _before(job, using, [job.queue], "of its lane "))
    if job.gate.startswith(KEYS):
        return tuple(_for_a_slot(job, using))
    return ()


def key_text(limit: Mapping[str, Any]) -> str:
    """Write the key of a limit of a job; redact it before."""
    return shortened(said(limit["name"], limit["key"]), LONGEST_KEY)


def held(using: str, key: str) -> tuple[int, list[UUID]]:
    """Return the weight of the runs that hold slots of a key, and the first of these jobs. Two statements."""
    runs = Job.objects.using(using).filter(
        pk=OuterRef("job_id"), lease_token=OuterRef("lease_token"), state=JobState.ACTIVE
    )
    slots = Slot.objects.using(using).filter(Exists(runs), key=key)
    weight = slots.aggregate(weight=Sum("weight"))["weight"] or 0
    return weight, list(slots.order_by("taken_at", "pk").values_list("job_id", flat=True)[: MOST_HOLDERS + 1])


def _for_a_slot(job: Any, using: str) -> Iterator[str]:
    limit = next((one for one in redacted_member(job, "limits") or () if one["id"] == job.gate), None)
    if limit is None:
        yield "Waits at a gate that is none of its own: `manage.py jobs verify --fix` mends that."
        return
    key, weight = key_text(limit), limit.get("weight", 1)
    running, rate = in_force(limit, LimitOverride.objects.using(using).filter(pk=limit["name"]).first())
    used, holders = held(using, job.gate) if running is not None else (0, [])
    started = _started(using, job.gate, limit["seconds"]) if rate is not None else 0
    is_full = running is not None and used + min(weight, running) > running
    is_early = rate is not None and started + min(weight, rate) > rate
    if is_full:
        yield f"Waits for a slot of {key}: {used:,} of {running:,} in use."
        if holders:
            names = listed(map(str, holders[:MOST_HOLDERS]), "and")
            yield f"Held by {names}{' and others' if len(holders) > MOST_HOLDERS else ''}."
    if is_early:
        yield f"Waits for {key}: {started:,} of {rate:,} have started in the last {TIMES[limit['seconds']]}."
        opens_at = LimitKey.objects.using(using).filter(pk=job.gate).values_list("opens_at", flat=True).first()
        if opens_at is not None and opens_at > timezone.now():
            yield f"The next may start at {full(opens_at)}."
    if not is_full and not is_early:
        yield f"Waits for its turn of {key}: a slot is free."
    if weight > 1:
        yield f"It takes {weight:,} slots."
    yield _before(job, using, sorted(in_use(using)))


def _started(using: str, key: str, seconds: int) -> int:
    since = timezone.now() - timedelta(seconds=seconds)
    found: int | None = Slot.objects.using(using).filter(key=key, taken_at__gt=since).aggregate(n=Sum("weight"))["n"]
    return found or 0


def _before(job: Any, using: str, queues: list[str], which: str = "") -> str:
    """Say how many jobs at the same gate have their turn before this one. Three statements."""
    rows = Job.objects.using(using).filter(state=JobState.AVAILABLE, finished_at=None, queue__in=queues, gate=job.gate)
    same, since = rows.filter(priority=job.priority), job.enqueued_at or job.created_at
    # Three ranges of the index, so that no statement reads the jobs behind this one.
    parts: tuple[QuerySet[Any], ...] = (
        rows.filter(priority__gt=job.priority),
        same.filter(enqueued_at__lt=since),
        same.filter(enqueued_at=since, pk__lt=job.pk),
    )
    count = sum(part.order_by()[: MOST_COUNTED + 1].count() for part in parts)
    if count > MOST_COUNTED:
        return f"More than {MOST_COUNTED:,} jobs {which}wait before it."
    if not count:
        return f"No job {which}waits before it."
    return f"1 job {which}waits before it." if count == 1 else f"{count:,} jobs {which}wait before it."
