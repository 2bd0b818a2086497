"""The filters beside the list of jobs. If no index answers a filter, the list looks at the newest jobs only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from django.contrib import admin
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.db.models.lookups import Exact, IsNull
from django.http import HttpRequest
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..handlers.registry import registry
from ..models import Job, Queue, SuppressedEnqueue
from ..ojs.states import TERMINAL, TIMED, JobState
from ..reporting.text import MOST_COUNTED, harmless
from ..reporting.times import SPANS
from .display import IN_LAST
from .sentences import translate

MOST_CHOICES = 200
"""How many queues or types a filter offers; the query string may have any other."""

NO_ERROR = "none recorded"
"""What the filter by the last error calls jobs that have none."""

_FINISHED = ("payload_pruned", "state", "dead_letter", "finished_at")
_LIVE = ("state", "queue", "blocked_by", "-priority")


class JobFilter(admin.SimpleListFilter):
    """A filter of jobs. ``scans``: no index finds its jobs. ``by``: else, the order of the index that finds them.

    ``most``: how many jobs it looks at, if that is fewer than the list would let it.
    """

    scans = False
    most: int | None = None
    by: tuple[str, ...] = ()

    def condition(self, using: str, value: str) -> Q:
        """Return the condition for the jobs that a choice selects."""
        raise NotImplementedError

    def queryset(self, request: HttpRequest, queryset: QuerySet[Job]) -> QuerySet[Job]:
        return queryset if self.is_scanning else self.narrow(queryset)

    def narrow(self, jobs: QuerySet[Job]) -> QuerySet[Job]:
        """Select what is chosen; an unknown choice selects nothing."""
        value = self.value()
        if value is None:
            return jobs
        return jobs.filter(self.condition(jobs.db, value)) if value in dict(self.lookup_choices) else jobs.none()

    @property
    def is_scanning(self) -> bool:
        return self.scans and self.value() is not None

    def value(self) -> str | None:
        value = super().value()
        return value.replace("\0", "\ufffd") if value else None


class StateFilter(JobFilter):
    title = _("state")
    parameter_name = "state"

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        return [
            ("unfinished", gettext("unfinished")),
            ("finished", gettext("finished")),
            ("failed", gettext("failed for good")),
            *((str(state), translate(state)) for state in JobState),
        ]

    @property
    def by(self) -> tuple[str, ...]:  # type: ignore[override]
        return _FINISHED if self.value() in {"finished", "failed", *TERMINAL} else _LIVE

    def condition(self, using: str, value: str) -> Q:
        if value in ("unfinished", "finished"):
            return Q(finished_at__isnull=value == "unfinished")
        # The state implies the other conditions; they are here so that the partial indexes are used.
        if value == "failed":
            from ..reporting.failures import FAILED

            return FAILED & self.condition(using, JobState.DISCARDED)
        if value in TERMINAL:
            return Q(state=value, finished_at__isnull=False, payload_pruned__in=[False, True])
        return Q(state=value, finished_at__isnull=True)


class NameFilter(JobFilter):
    """A filter by names that have no complete list: it offers the known ones and the chosen one."""

    scans = True

    def known(self, model_admin: Any, request: HttpRequest) -> Iterable[str]:
        raise NotImplementedError

    def lookups(self, request: HttpRequest, model_admin: Any) -> list[tuple[str, str]]:
        names = sorted({*self.known(model_admin, request)})[:MOST_CHOICES]
        if (chosen := self.value()) is not None and chosen not in names:
            names.insert(0, chosen)
        return [(name, translate(name) if name == NO_ERROR else harmless(name)) for name in names]

    def condition(self, using: str, value: str) -> Q:
        return Q(**{self.parameter_name: value})  # type: ignore[arg-type]


class QueueListFilter(NameFilter):
    title = _("queue")
    parameter_name = "queue"

    def known(self, model_admin: Any, request: HttpRequest) -> Iterable[str]:
        using = model_admin.get_queryset(request).db
        yield from (definition.queue for definition in registry.definitions() if definition.queue)
        yield from Queue.objects.using(using).order_by("name").values_list("name", flat=True)[:MOST_CHOICES]
        from ..reporting.queues import in_use

        yield from in_use(using)


class TypeFilter(NameFilter):
    title = _("type")
    parameter_name = "type"

    def known(self, model_admin: Any, request: HttpRequest) -> Iterable[str]:
        return registry


class FinishedFilter(JobFilter):
    """When a job finished; the spans begin where those of the dashboard do."""

    title = _("finished")
    parameter_name = "finished"
    by = _FINISHED

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [(name, str(IN_LAST[name])) for name in SPANS]

    def condition(self, using: str, value: str) -> Q:
        return Q(
            state__in=sorted(TERMINAL),
            payload_pruned__in=[False, True],
            dead_letter__in=[False, True],
            finished_at__gte=SPANS[value].edges(database_now(using))[0],
        )


class ErrorFilter(NameFilter):
    """The type of the last error; the dashboard links to it, and it offers only what was chosen there."""

    title = _("last error")
    parameter_name = "error"
    most = 10_000

    def known(self, model_admin: Any, request: HttpRequest) -> Iterable[str]:
        return ()

    def condition(self, using: str, value: str) -> Q:
        from ..reporting.list_columns import error_type

        return Q(IsNull(error_type(), True)) if value == NO_ERROR else Q(Exact(error_type(), value))


class DuplicatesFilter(JobFilter):
    title = _("duplicates")
    parameter_name = "duplicates"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("met", gettext("met by an enqueue")), ("live", gettext("beside a live duplicate"))]

    @property
    def is_scanning(self) -> bool:
        return self.value() == "met"

    def condition(self, using: str, value: str) -> Q:
        if value == "met":
            attempts = SuppressedEnqueue.objects.using(using)
            return Q(
                Exists(attempts.filter(fingerprint=OuterRef("fingerprint"), existing_job=OuterRef("pk"))),
                fingerprint__isnull=False,
            )
        from ..reporting.duplicates import live_duplicates

        return Q(pk__in=live_duplicates(Job.objects.using(using), MOST_COUNTED))


class StuckFilter(JobFilter):
    """Jobs that do not go on by themselves, or only when a worker rescues them.

    ``untimed``: what `integrity` calls `Kind.DUE`; ``yes``: `Kind.LEASE`, and leases that ran out.
    """

    title = _("stuck")
    parameter_name = "stuck"
    by = _LIVE

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [
            ("yes", gettext("yes: the lease ran out or is missing")),
            ("untimed", gettext("yes: scheduled or retryable, but without a time")),
        ]

    @property
    def is_scanning(self) -> bool:
        return self.value() == "untimed"

    def condition(self, using: str, value: str) -> Q:
        if value == "untimed":
            return Q(state__in=sorted(TIMED), finished_at__isnull=True, run_at__isnull=True)
        lost = Q(lease_expires_at__isnull=True) | Q(lease_expires_at__lt=database_now(using))
        return Q(lost, state=JobState.ACTIVE, finished_at__isnull=True)


class UniqueFilter(JobFilter):
    title = _("uniqueness")
    parameter_name = "unique"
    scans = True

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("yes", gettext("unique")), ("no", gettext("not unique"))]

    def condition(self, using: str, value: str) -> Q:
        return Q(fingerprint__isnull=value != "yes")


class DeadLetterFilter(JobFilter):
    title = _("dead letter")
    parameter_name = "dead_letter"
    by = _FINISHED

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, str]]:
        return [("yes", gettext("dead letter"))]

    def condition(self, using: str, value: str) -> Q:
        return Q(
            state=JobState.DISCARDED, dead_letter=True, finished_at__isnull=False, payload_pruned__in=[False, True]
        )


FILTERS: list[Any] = [
    StateFilter,
    QueueListFilter,
    TypeFilter,
    FinishedFilter,
    ErrorFilter,
    DuplicatesFilter,
    StuckFilter,
    UniqueFilter,
    DeadLetterFilter,
]
PARAMETERS = frozenset(filter.parameter_name for filter in FILTERS)
