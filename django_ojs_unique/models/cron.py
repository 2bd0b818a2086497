"""Periodic jobs: what to enqueue, and when."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from django.core.exceptions import ValidationError
from django.db import IntegrityError, models, router, transaction
from django.db.models import Case, F, Q, Value, When
from django.utils.timezone import now
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..db.constraints import PartiallyIndexed
from ..db.fields import PayloadField
from ..db.transactions import starting_over
from ..exceptions import DeclaredInCode, InvalidRequest, Message, did_you_mean
from ..ojs.canonical import plain
from ..ojs.cron import Cron, OverlapPolicy
from ..ojs.moments import rfc3339
from ..options import REPEATED, as_stored

LONGEST_NAME = 255
NAME = re.compile(r"[a-z0-9][a-z0-9\-.]*")


_DECLARED = Message("Cron entry {name} is declared in code: change it there, or disable it.")


class CronJobQuerySet(models.QuerySet["CronJob"]):
    """Periodic jobs."""

    def define(
        self,
        name: str,
        expression: str,
        type: str,
        args: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        timezone: str | None = None,
        overlap_policy: str = OverlapPolicy.SKIP,
        enabled: bool = True,
        description: str = "",
        **options: Any,
    ) -> CronJob:
        """Create a periodic job, or change the one of this name; its next occurrence is counted from now.

        ``name``: lower-case letters, digits, ``-`` and ``.``. ``expression``, ``timezone``, ``overlap_policy`` and
        ``args`` are those of `Cron`; the zone is UTC by default. ``options``: the other arguments of
        ``Job.objects.enqueue()`` except ``scheduled_at``, ``delay``, ``expires_at`` and ``id``, and also ``lease``,
        ``schema`` and ``extra``. Raises what ``enqueue()`` raises for an invalid request; nothing is written then.
        """
        fields = {"name": name, "enabled": enabled, "description": description}
        using = self._everything().db
        return self._put(_read(using, expression, type, args, options, timezone, overlap_policy, **fields))[0]

    def define_from_outside(self, **definition: Any) -> tuple[CronJob, bool]:
        """Do what `define` does, with the ``options`` in one object; return the entry, and whether it is new.

        Raises DeclaredInCode for an entry that is declared in code, and must be changed there.
        """
        return self._put(_read(self._everything().db, **definition), over_declared=False)

    def update(self, **fields: Any) -> int:
        """Do what Django's does; an entry that this enables is next due at its next occurrence from now.

        Raises InvalidRequest when the times of one cannot be read.
        """
        if fields.get("enabled") is True and "next_run_at" not in fields:
            times = [When(pk=entry.pk, then=Value(entry._upcoming())) for entry in self.filter(enabled=False)]
            fields["next_run_at"] = Case(*times, default=F("next_run_at")) if times else F("next_run_at")
        return super().update(**fields)

    update.alters_data = True  # type: ignore[attr-defined]

    def remove(self, name: str) -> CronJob | None:
        """Delete the entry of this name, and return it; None when there is none.

        Raises DeclaredInCode for an entry that is declared in code: the next worker that starts would write it again.
        """
        from ..db.dialects import dialect_of

        entries = self._everything().filter(pk=name)

        def remove() -> CronJob | None:
            with transaction.atomic(using=entries.db):
                dialect_of(entries).take_write_lock()
                entry = entries.select_for_update().first()
                if entry is not None:
                    entry.refuse_if_declared()
                    entries.delete()
                return entry

        return starting_over(entries.db, remove)

    def _put(self, entry: CronJob, *, over_declared: bool = True) -> tuple[CronJob, bool]:
        entries = self._everything()

        def write() -> tuple[CronJob, bool]:
            with transaction.atomic(using=entries.db):
                stored = None
                while stored is None:  # another transaction may delete it meanwhile
                    is_new = _insert(entry, entries.db)
                    stored = entries.select_for_update().filter(pk=entry.pk).first()
                if not over_declared:
                    stored.refuse_if_declared()
                for field in _DEFINED:
                    setattr(stored, field, getattr(entry, field))
                stored.save(using=entries.db, update_fields=_DEFINED)
                return stored, is_new

        return starting_over(entries.db, write)

    def _everything(self) -> CronJobQuerySet:
        using = self._db or router.db_for_write(self.model, **self._hints)  # type: ignore[attr-defined]
        return self.__class__(self.model, using=using)


_DEFINED = (
    "expression", "timezone", "overlap_policy", "type", "args", "options", "enabled", "description", "next_run_at",
    "declared",
)  # fmt: skip


class CronJob(PartiallyIndexed):
    """A periodic job (HTTP binding, section 10): workers enqueue one job from it at each occurrence.

    Entries that handlers declare in code are written here by each worker that starts.
    """

    name = models.CharField(verbose_name=_("name"), max_length=255, primary_key=True)
    description = models.TextField(verbose_name=_("description"), default="", blank=True)
    expression = models.CharField(
        verbose_name=_("expression"),
        max_length=255,
        help_text=_("Five or six cron fields, @daily and its like, @every PT5M."),
    )
    timezone = models.CharField(verbose_name=_("time zone"), max_length=63, default="UTC")
    overlap_policy = models.CharField(
        verbose_name=_("overlap policy"),
        max_length=15,
        choices=[(str(policy), str(policy)) for policy in OverlapPolicy],
        default=OverlapPolicy.SKIP,
    )
    enabled = models.BooleanField(verbose_name=_("enabled"), default=True)
    declared = models.BooleanField(
        verbose_name=_("declared"), default=False, editable=False, help_text=_("Whether it is declared in code.")
    )

    type = models.CharField(verbose_name=_("type"), max_length=255)
    args = PayloadField(verbose_name=_("args"), default=dict, blank=True)
    options = PayloadField(
        verbose_name=_("options"), default=dict, blank=True, help_text=_("Further arguments of Job.objects.enqueue().")
    )

    created_at = models.DateTimeField(default=now, editable=False)
    next_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_run_at = models.DateTimeField(null=True, blank=True, editable=False)
    last_outcome = models.CharField(max_length=12, default="", blank=True, editable=False)
    last_outcome_at = models.DateTimeField(null=True, blank=True, editable=False)
    outcome_count = models.PositiveIntegerField(default=0, editable=False)
    """How many occurrences in a row had the last outcome, and enqueued nothing."""
    last_job_id = models.UUIDField(null=True, blank=True, editable=False)
    run_count = models.PositiveBigIntegerField(verbose_name=_("run count"), default=0, editable=False)

    objects = CronJobQuerySet.as_manager()

    class Meta:
        verbose_name = _("cron job")
        verbose_name_plural = _("cron jobs")
        indexes = [
            # The entries that are due.
            models.Index(fields=["next_run_at"], condition=Q(enabled=True), name="ojs_cron_due")
        ]

    def __str__(self) -> str:
        return self.name

    @classmethod
    def of(cls, cron: Cron, moment: datetime, **fields: Any) -> CronJob:
        """Return an entry that is not saved, of a schedule and other ``fields``; it is next due after the moment."""
        return cls(
            expression=cron.expression,
            timezone=str(cron.timezone),
            overlap_policy=str(cron.overlap_policy),
            args=cron.args,
            created_at=moment,
            next_run_at=cron.next_after(moment),
            **fields,
        )

    @property
    def cron(self) -> Cron:
        """When it is due. Raises InvalidRequest for an invalid row, because rows can be changed manually."""
        from ..handlers.redaction import hiding_values

        with hiding_values(self.type):
            return Cron(self.expression, self.timezone, self.overlap_policy, self.args)

    def job_at(self, occurrence: datetime) -> dict[str, Any]:
        """Return the members of the `Request` for an occurrence.

        Raises InvalidRequest for an unknown option.
        """
        from ..handlers.redaction import redacted

        if not isinstance(self.options, dict):
            raise InvalidRequest.at("options", "must be an object", value=redacted(self.type, self.options))
        for name in self.options:
            if name not in REPEATED:
                raise InvalidRequest.at(
                    f"options.{name}", "is not an option of a periodic job", hint=did_you_mean(name, REPEATED)
                )
        meta = self.options.get("meta") or {}
        if isinstance(meta, dict):
            meta = {**meta, "cron_name": self.name, "cron_triggered_at": rfc3339(occurrence)}
        return {"type": self.type, "args": self.args, **self.options, "meta": meta}

    def validate(self) -> None:
        """Raise InvalidRequest (or a subclass) for the first thing that is wrong."""
        if not self.declared and (not isinstance(self.name, str) or not NAME.fullmatch(self.name)):
            hint = Message("Write lower-case letters, digits, '-' and '.', as in 'reports.nightly'.")
            raise InvalidRequest.at("name", "is not a valid name", value=self.name, hint=hint)
        if len(self.name) > LONGEST_NAME:
            raise InvalidRequest.at(
                "name",
                Message("is longer than {count} characters", count=LONGEST_NAME),
                value=self.name,
                hint="Shorten it.",
            )
        if not isinstance(self.enabled, bool):
            raise InvalidRequest.at("enabled", "must be true or false", value=self.enabled)
        if not isinstance(self.description, str):
            raise InvalidRequest.at("description", "must be a string", value=self.description)
        plain(self.description, "description")
        from ..enqueue.new_job import read
        from ..enqueue.request import Request
        from .job import Job

        now = self._now()
        moment = self.cron.next_after(now)
        read(Request(**self.job_at(moment or now), elsewhere=True, context=None), Job, now)

    def refuse_if_declared(self) -> None:
        """Raise DeclaredInCode if it is declared in code."""
        if self.declared:
            raise DeclaredInCode(
                Message(_DECLARED, name=repr(self.name)),
                details={"resource_type": "cron entry", "resource_id": self.name},
            )

    def save(self, *args: Any, **options: Any) -> None:
        """Save it; if this enables it, it is next due at its next occurrence from now."""
        is_missed = self.enabled and self.next_run_at is not None and self.next_run_at <= self._now()
        if is_missed and self._row().filter(enabled=False).exists():
            self.next_run_at = self._upcoming()
            if options.get("update_fields") is not None:
                options["update_fields"] = {*options["update_fields"], "next_run_at"}
        super().save(*args, **options)

    def switch(self, enabled: bool) -> bool:
        """Enable or disable it, declared or not; return whether that changed anything.

        After enabling, its next occurrence is counted from now. Raises InvalidRequest when its times cannot be read.
        """
        changes: dict[str, Any] = {"next_run_at": self.cron.next_after(self._now())} if enabled else {}
        entries = self._row().filter(enabled=not enabled)
        changed = starting_over(entries.db, lambda: entries.update(enabled=enabled, **changes))
        return bool(changed)

    def clean(self) -> None:
        """Validate for forms, and count the next occurrence from now if the times were changed."""
        try:
            self.validate()
        except InvalidRequest as error:
            field = str(error.details.get("field", "")).partition(".")[0]
            raise ValidationError({field if hasattr(self, field) else "options": error.message}) from None
        stored, now = self._row().first(), self._now()
        if stored is None:
            self.created_at = now
        if (
            stored is None
            or stored.next_run_at is None
            or any(getattr(stored, name) != getattr(self, name) for name in ("expression", "timezone", "enabled"))
        ):
            self.next_run_at = self.cron.next_after(now)

    def _now(self) -> datetime:
        return database_now(router.db_for_write(CronJob, instance=self))

    def _upcoming(self) -> datetime | None:
        return self.cron.next_after(self._now())

    def _row(self) -> Any:
        return CronJob.objects.using(router.db_for_write(CronJob, instance=self)).filter(pk=self.pk)


def _read(
    using: str,
    expression: str,
    type: str,
    args: Mapping[str, Any] | Sequence[Any] | None,
    options: Mapping[str, Any],
    timezone: str | None = None,
    overlap_policy: str = OverlapPolicy.SKIP,
    **others: Any,
) -> CronJob:
    """Return a valid entry that is not saved. ``others``: its other fields."""
    from ..handlers.redaction import hiding_values

    with hiding_values(type):
        cron = Cron(expression, "UTC" if timezone is None else timezone, overlap_policy, {} if args is None else args)
        options = plain({name: as_stored(value) for name, value in options.items()}, "options")
    entry = CronJob.of(cron, database_now(using), type=type, options=options, **others)
    entry.validate()
    return entry


def _insert(entry: CronJob, using: str) -> bool:
    """Insert an entry; return False if there is one of its name."""
    try:
        with transaction.atomic(using=using):
            entry.save(using=using, force_insert=True)
    except IntegrityError:
        return False
    return True
