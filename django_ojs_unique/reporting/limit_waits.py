"""What a job waits for, in sentences: its queue, a look at its limits, a fair queue's turn, a slot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any
from uuid import UUID

from django.db.models import Exists, OuterRef, Sum

from ..db.clock import database_now
from ..enqueue.explain import Explanation
from ..exceptions import Message
from ..execution.queue_rules import handed_out_lately, running
from ..handlers.redaction import redacted_member
from ..limits.slots import started_since
from ..models import Job, LimitOverride, LimitPartition, Queue, Slot
from ..models.limit import in_force, partition_text, weight_in_force
from ..ojs.blocking import FAIR, ID, LIMITED, PARTITIONS
from ..ojs.states import WAITING, JobState
from .line import Line, Lines, Place, ahead_of, available, before_text
from .stopped import stopped
from .text import MOST_COUNTED, full, shortened

MOST_HOLDERS = 3
"""How many of the jobs that have slots of a partition are named."""
LONGEST_PARTITION = 120
TIMES = {1: Message("second"), 60: Message("minute"), 3600: Message("hour")}


def waits_for(job: Any, using: str) -> tuple[str, ...]:
    """Say why a waiting job does not start; empty if an available one waits for a worker only.

    At most seventeen statements, and seven for each limit of a job at which no worker has looked, whatever waits.
    Redacted values are masked.
    """
    if job.state not in WAITING:
        return ()
    row = _row_of(job.queue, using)
    if row.paused_at is not None:
        return (_paused(row),)
    if job.state != JobState.AVAILABLE:
        return ()
    ahead = partial(ahead_of, job, using)
    of_queue = _of_queue(row, using, ahead)
    if job.blocked_by == LIMITED:
        limits = redacted_member(job, "limits") or ()
        closed = (sentence for one in limits for sentence in _closed(one, _standing(one, using), using))
        return (*of_queue, Message("No worker has looked at its limits yet."), *closed, before_text(ahead()))
    if job.blocked_by.startswith(FAIR):
        waits_for_turn = Message("Waits for a turn of its partition in the fair queue {queue}.", queue=job.queue)
        return (*of_queue, waits_for_turn, before_text(ahead(), in_partition=True))
    if job.blocked_by.startswith(PARTITIONS):
        return (*of_queue, *_for_a_slot(job, using))
    return (*of_queue, before_text(ahead())) if of_queue else ()


def short_partition(limit: Mapping[str, Any]) -> str:
    """Write the partition of a limit of a job; redact it before."""
    return shortened(partition_text(limit["name"], limit["key"]), LONGEST_PARTITION)


def would_meet(explanation: Explanation, using: str) -> tuple[str, ...]:
    """Say of each limit of a job that would be stored whether the job would wait; redact the explanation before.

    Before that, say what its queue waits for; if that is paused, say only that. At most eight statements for each
    limit, and seven.
    """
    if explanation.action not in ("create", "replace"):
        return ()
    row = _row_of(explanation.queue, using)
    if row.paused_at is not None:
        return (_paused(row),)
    if explanation.run_at is not None:
        moment = full(explanation.run_at)
        return (Message("Would not ask for a slot before {moment}.", moment=moment),) if explanation.limits else ()
    found = _of_queue(row, using, available(using, [row.name]).order_by()[: MOST_COUNTED + 1].count)
    if not explanation.limits:
        return tuple(found)
    place = None if explanation.in_turns else Place(explanation.priority)
    replaced = [one.job.pk for one in explanation.duplicates] if explanation.action == "replace" else []
    lines = Lines(using, place, without=replaced)
    of_limits = (_would_meet(limit, _standing(limit, using), lines.of(limit["id"])) for limit in explanation.limits)
    return (*found, *of_limits)


def _would_meet(limit: Mapping[str, Any], now: _Standing, line: Line) -> str:
    say = partial(Message, key=short_partition(limit), numbers=now.numbers)
    if now.is_full or now.is_early:
        verdict = say("Would wait for a slot of {key}: {numbers}.")
    elif line.is_empty:
        verdict = say("Would have a slot of {key}: {numbers}.")
    else:
        verdict = say("Would wait for its turn of {key}: a slot is free, {numbers}.")
    return Message.joined(" ", [verdict, *_weight(limit), line.text])


def _weight(limit: Mapping[str, Any]) -> list[str]:
    weight = limit.get("weight", 1)
    return [Message("It takes {count} slots.", count=f"{weight:,}")] if weight > 1 else []


def _row_of(queue: str, using: str) -> Queue:
    return Queue.objects.using(using).filter(name=queue).first() or Queue(name=queue)


def _paused(row: Queue) -> str:
    return Message("Queue {queue} is paused: no worker claims its jobs.", queue=row.name)


def _of_queue(row: Queue, using: str, ahead: Callable[[], int]) -> list[str]:
    """Say which limits of a queue a job waits for, before which so many others have their turn."""
    found, now, most, rate = list[str](), database_now(using), row.concurrency_limit, row.max_per_second
    if most is not None and (count := running(Job.objects.using(using), row.name, now)) >= most:
        say = partial(Message, queue=row.name, count=f"{count:,}", most=f"{most:,}")
        found.append(say("Queue {queue} is full: {count} of {most} jobs run."))
    if rate is not None and (handed_out_lately(row, now) >= rate or ahead() >= min(rate, MOST_COUNTED)):
        found.append(Message("Queue {queue} starts at most {most} jobs in a second.", queue=row.name, most=f"{rate:,}"))
    return found


@dataclass(frozen=True, slots=True)
class _Standing:
    """What runs under a limit's partition, and what has started in its time.

    ``is_full``: too many run for the job; ``is_early``: too many have started.
    """

    running: int | None
    rate: int | None
    used: int
    started: int
    holders: list[UUID]
    is_full: bool
    is_early: bool
    time: str

    @property
    def numbers(self) -> str:
        say = partial(Message, used=f"{self.used:,}", count=f"{self.started:,}", rate=self.rate, time=self.time)
        if self.rate is None:
            return say("{used} of {most} in use", most=f"{self.running:,}")
        if self.running is None:
            return say("{count} of {most} started in the last {time}", most=f"{self.rate:,}")
        template = Message("{used} of {most} in use, {count} of {rate} started in the last {time}")
        return say(template, most=f"{self.running:,}", rate=f"{self.rate:,}")


def _standing(limit: Mapping[str, Any], using: str) -> _Standing:
    running, rate = in_force(limit, LimitOverride.objects.using(using).filter(pk=limit["name"]).first())
    weight, seconds = weight_in_force(limit, running, rate), limit.get("seconds", 0)
    used, holders = _used(using, limit["id"]) if running is not None else (0, [])
    started = _started(using, limit["id"], seconds) if rate is not None else 0
    return _Standing(
        running,
        rate,
        used,
        started,
        holders,
        is_full=running is not None and used + weight > running,
        is_early=rate is not None and started + weight > rate,
        time=TIMES.get(seconds, ""),
    )


def _for_a_slot(job: Any, using: str) -> Iterator[str]:
    limit = next((one for one in redacted_member(job, "limits") or () if one["id"] == job.blocked_by[:ID]), None)
    if limit is None:
        yield Message("Is blocked by what is none of its own: `manage.py jobs verify --fix` fixes that.")
        return
    now, line = _standing(limit, using), None
    yield from _closed(limit, now, using)
    if job.blocked_by == limit["id"]:
        line = Lines(using, Place.of(job)).of(limit["id"])
    if not now.is_full and not now.is_early:
        if line is not None and line.is_empty:
            yield Message("Waits for a worker: a slot of {key} is free.", key=short_partition(limit))
        else:
            yield Message("Waits for its turn of {key}: a slot is free.", key=short_partition(limit))
    yield from _weight(limit)
    yield before_text(ahead_of(job, using), in_partition=True) if line is None else line.text


def _closed(limit: Mapping[str, Any], now: _Standing, using: str) -> Iterator[str]:
    """Say that a limit lets no job start now; nothing if it does."""
    partition = short_partition(limit)
    if now.is_full:
        used, most = f"{now.used:,}", f"{now.running:,}"
        yield Message("Waits for a slot of {key}: {count} of {most} in use.", key=partition, count=used, most=most)
        if now.holders:
            names = ", ".join(map(str, now.holders[:MOST_HOLDERS]))
            more = len(now.holders) > MOST_HOLDERS
            yield Message("Held by {jobs} and others.", jobs=names) if more else Message("Held by {jobs}.", jobs=names)
    if now.is_early:
        say = partial(Message, key=partition, count=f"{now.started:,}", most=f"{now.rate:,}", time=now.time)
        yield say("Waits for {key}: {count} of {most} have started in the last {time}.")
        opens_at = LimitPartition.objects.using(using).filter(pk=limit["id"]).values_list("opens_at", flat=True).first()
        if opens_at is not None and opens_at > database_now(using):
            yield Message("The next may start at {moment}.", moment=full(opens_at))


def _used(using: str, partition: str) -> tuple[int, list[UUID]]:
    """Return the weight of the runs that have slots of a partition, and the first of these jobs.

    A run has a slot by its row, which is ``blocked_by`` the partition, or by a row of its own.
    """
    active = Job.objects.using(using).filter(state=JobState.ACTIVE, finished_at=None)
    rows = active.filter(blocked_by=partition).values_list("started_at", "pk")
    rows = rows.union(stopped(using, blocked_by=partition).values_list("started_at", "job_id"), all=True)
    same = {"job_id": OuterRef("job_id"), "lease_token": OuterRef("lease_token")}
    runs = Exists(active.filter(pk=same["job_id"], lease_token=same["lease_token"])) | Exists(stopped(using, **same))
    slots = Slot.objects.using(using).filter(runs, partition=partition)
    weight = rows.count() + (slots.aggregate(weight=Sum("weight"))["weight"] or 0)
    first = [
        *rows.order_by("started_at", "pk")[: MOST_HOLDERS + 1],
        *slots.order_by("taken_at", "pk").values_list("taken_at", "job_id")[: MOST_HOLDERS + 1],
    ]
    return weight, [id for _, id in sorted(first)[: MOST_HOLDERS + 1]]


def _started(using: str, partition: str, seconds: int) -> int:
    since = database_now(using) - timedelta(seconds=seconds)
    found: int | None = started_since(using, since).filter(partition=partition).aggregate(n=Sum("weight"))["n"]
    return found or 0
