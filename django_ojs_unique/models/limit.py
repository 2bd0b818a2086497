"""What limits need in the database: partitions to lock, slots of runs, runs that were stopped, operators' numbers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from django.db import models, router, transaction
from django.utils import timezone
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..db.fields import PayloadField
from ..db.transactions import starting_over
from ..exceptions import InvalidRequest, Message
from ..ojs.blocking import ID as ID_LENGTH
from ..ojs.blocking import LONGEST as LONGEST_BLOCK
from ..ojs.limits import LARGEST
from ..ojs.names import LONGEST_LIMIT, is_whole, limit_name


class LimitPartition(models.Model):
    """One partition of a limit, such as customer 42: claims of its jobs lock the row, so that they take turns."""

    id = models.CharField(max_length=ID_LENGTH, primary_key=True, editable=False)
    name = models.CharField(max_length=LONGEST_LIMIT)
    key = PayloadField()
    full_at = models.IntegerField(
        null=True,
        blank=True,
        help_text="The weight that ran when a job last found no slot; NULL: none waits, or for its rate only.",
    )
    full_since = models.DateTimeField(null=True, blank=True, help_text="Since when jobs may wait for its slots.")
    opens_at = models.DateTimeField(null=True, blank=True, help_text="When a claim is to look at its jobs again.")
    queues = PayloadField(null=True, blank=True, help_text="The queues in which jobs may wait for its slots.")
    left_since = models.DateTimeField(
        null=True, blank=True, help_text="Since when a slot is left free for the first job of another queue or type."
    )
    used_at = models.DateTimeField(help_text="When a job of the partition was last claimed.")

    class Meta:
        indexes = [
            models.Index(fields=["name"], name="ojs_limit_name"),
            models.Index(fields=["used_at"], name="ojs_limit_used"),
        ]
        verbose_name = _("partition of a limit")
        verbose_name_plural = _("partitions of limits")

    def __str__(self) -> str:
        return partition_text(self.name, self.key)


class Slot(models.Model):
    """A slot that a run has taken, unless the job's own row is that slot.

    A running job's row is the slot of its first limit, if that has neither a rate nor a weight: the row is
    ``blocked_by`` the partition. A slot here counts as running only while the job's row has the same lease token, so it
    has no state that could be lost. A rate counts it by ``taken_at``.
    """

    id = models.BigAutoField(primary_key=True)
    partition = models.ForeignKey(
        LimitPartition, on_delete=models.DO_NOTHING, db_constraint=False, db_index=False, related_name="slots"
    )
    job_id = models.UUIDField()
    lease_token = models.UUIDField()
    weight = models.IntegerField(default=1)
    taken_at = models.DateTimeField()
    kept_until = models.DateTimeField(help_text="Until when a rate may count it.")

    class Meta:
        verbose_name = _("slot")
        verbose_name_plural = _("slots")
        indexes = [
            models.Index(fields=["partition", "taken_at"], name="ojs_slot_partition"),
            # Pruning: only slots that run, or that a rate counts, come before those that are to be deleted.
            models.Index(fields=["kept_until"], name="ojs_slot_kept"),
        ]

    def __str__(self) -> str:
        return f"{self.partition_id} {self.job_id}"


class StoppedRun(models.Model):
    """A run whose job was cancelled or replaced, and of which its worker has not let go.

    It counts for the limits of its job and its queue until its lease ends. The row has all that this needs: the job's
    own row may be retried or deleted meanwhile.
    """

    id = models.BigAutoField(primary_key=True)
    job_id = models.UUIDField()
    queue = models.CharField(max_length=128)
    blocked_by = models.CharField(max_length=LONGEST_BLOCK)
    worker_id = models.CharField(max_length=255, null=True)
    started_at = models.DateTimeField(null=True)
    lease_token = models.UUIDField()
    lease_expires_at = models.DateTimeField()

    class Meta:
        verbose_name = _("stopped run")
        verbose_name_plural = _("stopped runs")
        indexes = [models.Index(fields=["job_id"], name="ojs_stopped_job")]

    def __str__(self) -> str:
        return f"{self.job_id} {self.worker_id}"


class LimitOverrideQuerySet(models.QuerySet["LimitOverride"]):
    """The numbers of operators. An invalid name or number raises InvalidRequest."""

    def set(self, name: str, *, running: int | None = None, rate: int | None = None) -> bool:
        """Let these numbers count for the limit of this name, also for the jobs that wait; None: the limit's own.

        ``rate`` is per the limit's own second, minute or hour. Return False when nothing changed.
        """
        name = limit_name(name)
        for field, value in (("running", running), ("rate", rate)):
            if value is not None and not is_whole(value, 1, LARGEST):
                raise InvalidRequest.at(
                    field,
                    Message("must be a whole number from 1 to {highest}, or None", highest=f"{LARGEST:,}"),
                    value=value,
                    hint="To stop a queue, pause it.",
                )
        using = self._db or router.db_for_write(self.model)  # type: ignore[attr-defined]
        return starting_over(using, lambda: self._store(using, name, running, rate))

    def _store(self, using: str, name: str, running: int | None, rate: int | None) -> bool:
        rows = LimitOverride.objects.using(using)
        with transaction.atomic(using=using):
            old = rows.filter(name=name).first()
            if (running, rate) == ((old.running, old.rate) if old else (None, None)):
                return False
            if running is None and rate is None:
                rows.filter(name=name).delete()
            else:
                numbers = {"running": running, "rate": rate, "changed_at": database_now(using)}
                rows.update_or_create(name=name, defaults=numbers)
            # The jobs that wait are looked at again.
            LimitPartition.objects.using(using).filter(name=name).update(full_at=None, opens_at=None)
        return True


class LimitOverride(models.Model):
    """The numbers that an operator has set for the limit of a name, in the place of those in the jobs."""

    name = models.CharField(max_length=LONGEST_LIMIT, primary_key=True)
    running = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many jobs of a partition may run at once; empty: as the code says.")
    )
    rate = models.PositiveIntegerField(
        null=True, blank=True, help_text=_("How many may start in the limit's time; empty: as the code says.")
    )
    changed_at = models.DateTimeField(default=timezone.now, editable=False)

    objects = LimitOverrideQuerySet.as_manager()

    class Meta:
        verbose_name = _("limit set by an operator")
        verbose_name_plural = _("limits set by operators")

    def __str__(self) -> str:
        return self.name


def in_force(limit: Mapping[str, Any], override: LimitOverride | None) -> tuple[int | None, int | None]:
    """Return how many jobs may run, and start in the limit's time: as an operator says, else as the job's limit does.

    None: any number. A rate counts only for a limit that has one.
    """
    running, rate = limit.get("running"), limit.get("rate")
    if override is not None:
        running = override.running or running
        rate = (override.rate or rate) if "seconds" in limit else None
    return running, rate


def weight_in_force(limit: Mapping[str, Any], *most: int | None) -> int:
    """Return for how many a job counts that asks for a slot: for no more than the numbers in force, so it can run."""
    weight: int = limit.get("weight", 1)
    return weight if weight == 1 else min(weight, *(number for number in most if number is not None))


def partition_text(name: str, key: Any) -> str:
    """Return a limit's partition in words, such as ``args.customer_id 42``; without a key, the limit's name."""
    if not isinstance(key, dict) or not key:
        return name
    parts = ", ".join(f"{part} {_text(value)}" for part, value in key.items())
    return parts if name == ",".join(key) else f"{name}: {parts}"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
