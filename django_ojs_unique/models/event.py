"""What happened to jobs: events for clients that poll them (HTTP binding, section 15), and counts of the past."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import IntegrityError, models, router, transaction
from django.db.models import F, Q
from django.db.models.functions import Coalesce
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..conf import settings
from ..db.constraints import PartiallyIndexed
from ..db.fields import PayloadField, new_id
from ..exceptions import InvalidRequest
from ..ojs.moments import milliseconds
from ..ojs.names import UUID_TEXT

PUBLISHED_AT_ONCE = 1000
LOOKED_THROUGH = 10_000
"""How many events one call searches for those that match."""
PRUNED_AT_ONCE = 5000
"""So many because a worker prunes only every ten seconds, and a job has three events or more."""
DEFAULT_LIMIT, LARGEST_LIMIT = 100, 1000

_PREFIX = "evt_"


@dataclass(frozen=True, slots=True)
class EventPage:
    """Some events, the oldest first; ``cursor`` is the ``after`` of the next call."""

    events: list[Event]
    cursor: str | None
    has_more: bool


class EventQuerySet(models.QuerySet["Event"]):
    """Events."""

    def follow(
        self,
        after: str | None = None,
        *,
        limit: int = DEFAULT_LIMIT,
        types: Collection[str] = (),
        queues: Collection[str] = (),
        job_types: Collection[str] = (),
        max_bytes: int | None = None,
    ) -> EventPage:
        """Return the events after the one with the id ``after``; without it, from the oldest that is still stored.

        A client that continues from the ``cursor`` sees every event exactly once, however late its transaction
        committed. A page with filters may have fewer than ``limit`` events, or none, though there are more. A page also
        ends before the event that would exceed ``max_bytes``, but has at least one. Raises InvalidRequest for an
        ``after`` that is not the id of an event, or the id of one that is no longer stored.
        """
        if self._db is None:  # type: ignore[attr-defined] # it writes, and a replica may be behind
            primary = self.using(router.db_for_write(self.model))
            return primary.follow(
                after, limit=limit, types=types, queues=queues, job_types=job_types, max_bytes=max_bytes
            )
        has_more = self._publish()
        ahead = self.filter(position__gt=self._position(after)).order_by("position")
        chosen = {"type__in": types, "queue__in": queues, "job_type__in": job_types}
        # Read the end first: events that are published after this query are left to the next call.
        last = ahead[LOOKED_THROUGH - 1 : LOOKED_THROUGH].first()
        has_more, last = has_more or last is not None, last or ahead.last()
        if last is None:
            return EventPage([], after, has_more)
        matching = ahead.filter(position__lte=last.position)
        matching = matching.filter(**{name: among for name, among in chosen.items() if among})
        if max_bytes is not None:
            from ..db.sizes import fitting

            limit = max(1, fitting(matching, limit, max_bytes, ("data",))[0])
        found = list(matching[: limit + 1])
        if len(found) > limit:
            return EventPage(found[:limit], str(found[limit - 1]), True)
        # At the end of the events, the last match is a good cursor. Else take the last event that was searched: without
        # a match the cursor would never advance.
        return EventPage(found, str(found[-1] if found and not has_more else last), has_more)

    def prune(self, now: datetime) -> int:
        """Delete a batch of events that are older than ``OJS_UNIQUE["EVENT_RETENTION"]``; return how many.

        The newest stays: the next position is counted from it, and clients that wait for the next event have its id.
        """
        # The primary keys are in the order of time, so the oldest are found without reading the others.
        oldest = self.order_by("pk").values_list("pk", "time")[:PRUNED_AT_ONCE]
        cutoff = now - settings.event_retention
        old = {pk for pk, time in oldest if time < cutoff}
        newest = self.filter(position__isnull=False).order_by("-position").values_list("pk", flat=True).first()
        return self.filter(pk__in=old - {newest}).delete()[0] if old else 0

    def _publish(self) -> bool:
        """Give positions to a batch of newly committed events; return whether there may be more.

        The ids cannot be the cursors: a transaction that commits late adds events before some that were already read.
        """
        from ..enqueue.unit_of_work import UnitOfWork

        for work in UnitOfWork(self.db):
            with work:
                there_may_be_more = self._publish_some()
        return there_may_be_more

    def _publish_some(self) -> bool:
        from ..db.dialects import dialect_of
        from ..enqueue.unit_of_work import LostRace

        fresh = list(self.filter(position=None).order_by("pk").values_list("pk", flat=True)[:PUBLISHED_AT_ONCE])
        if not fresh:
            return False
        # Coalesce, because MariaDB might use the index of the positions, and wait for rows that are not committed.
        unpublished = self.annotate(current=Coalesce("position", 0)).filter(current=0, pk__in=fresh)
        try:
            with transaction.atomic(using=self.db):
                dialect_of(self).take_write_lock()
                # Concurrent calls that read the same last position all write the next one. It is unique, so one wins.
                last = self.aggregate(last=models.Max("position"))["last"] or 0
                if unpublished.update(position=F("pk") + (last + 1 - fresh[0])) < len(fresh):
                    raise LostRace
        except IntegrityError as error:
            raise LostRace from error
        return len(fresh) == PUBLISHED_AT_ONCE

    def _position(self, after: str | None) -> int:
        if after is None:
            return 0
        id = after.removeprefix(_PREFIX) if isinstance(after, str) else ""
        if id == after or not UUID_TEXT.fullmatch(id):
            raise InvalidRequest.at(
                "after", "is not the id of an event", value=after, hint="Send the `cursor` of the last answer."
            )
        position = self.filter(event_id=UUID(id)).values_list("position", flat=True).first()
        if position is None:
            hint = (
                "Leave it out to begin with the oldest event, and poll more often than OJS_UNIQUE['EVENT_RETENTION']."
            )
            raise InvalidRequest.at("after", "names an event that is not kept, or never was", value=after, hint=hint)
        return position


class Event(PartiallyIndexed):
    """Something that happened to a job, a queue or a periodic job; recorded while ``OJS_UNIQUE["EVENTS"]`` is on.

    ``position`` is the place in the feed: None until a client polls after the commit. Positions follow the commits.
    """

    id = models.BigAutoField(primary_key=True)
    event_id = models.UUIDField(default=new_id, unique=True, editable=False)
    position = models.BigIntegerField(null=True, unique=True, editable=False)
    type = models.CharField(max_length=32)
    subject = models.CharField(max_length=255, help_text="The id of the job, or the name of the queue or cron entry.")
    job_type = models.CharField(max_length=255, default="", blank=True)
    queue = models.CharField(max_length=128, default="", blank=True)
    time = models.DateTimeField(default=timezone.now)
    data = PayloadField(default=dict)

    objects = EventQuerySet.as_manager()

    class Meta:
        verbose_name = _("event")
        verbose_name_plural = _("events")
        indexes = [
            # The events without a position. On MariaDB the index of the positions finds them: it has the ids, too.
            models.Index(fields=["id"], condition=Q(position=None), name="ojs_event_unpublished")
        ]

    def __str__(self) -> str:
        return f"{_PREFIX}{self.event_id}"

    def to_dict(self) -> dict[str, Any]:
        """Return the event as a JSON object (OJS events, "Event envelope")."""
        about_job = {"job_id": self.subject, "job_type": self.job_type, "queue": self.queue}
        return {
            "specversion": "1.0",
            "id": str(self),
            "type": self.type,
            "source": "ojs://django-ojs-unique",
            "time": milliseconds(self.time),
            "subject": self.subject,
            "data": {**about_job, **self.data} if self.type.startswith("job.") else self.data,
        }


class ActivityRollup(models.Model):
    """How many jobs were enqueued, suppressed, completed and failed for good in the quarter of an hour from ``start``.

    A row with an empty ``queue`` counts all queues; the time that was counted ends with the last one. Where nothing
    happened, there is no other row. Workers write the rows; the jobs that they count may have been deleted since, or
    have run again.
    """

    start = models.DateTimeField()
    queue = models.CharField(max_length=128)
    enqueued = models.PositiveIntegerField()
    suppressed = models.PositiveIntegerField()
    completed = models.PositiveIntegerField()
    failed = models.PositiveIntegerField()

    class Meta:
        constraints = [
            # Also for the dashboard, which reads the rows of all queues together, and when the last one starts.
            models.UniqueConstraint(fields=["queue", "start"], name="ojs_rollup_unique")
        ]

    def __str__(self) -> str:
        return f"{self.queue} {self.start:%Y-%m-%d %H:%M}".lstrip()
