"""The list of jobs: it uses an index if there is one, and else looks through the newest jobs only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.admin.options import IncorrectLookupParameters
from django.db import connections
from django.db.models import QuerySet
from django.http import HttpRequest

from ..models import SuppressedEnqueue
from ..reporting.parse import read_id
from ..reporting.text import MOST_COUNTED
from ..reporting.times import created_since
from .base import BoundedList, BoundedPaginator, may_view
from .dates import begin_of, check_dates, dates_of
from .filters import JobFilter
from .sentences import translate

MOST_SCANNED = 20_000
"""How many jobs a filter or search without an index looks at, the newest first, of those in the chosen dates."""
OLDER = "older_than"
"""The parameter with the id of the last job that was looked at before."""

LISTED = ("state", "attempt", "max_attempts", "run_at", "progress", "progress_note")
"""The fields that the list reads of a job, beside those that `reporting.list_columns` reads of the jobs of one page."""


READING = "reading"
"""The field of a bulk action's form with the number of the reading of the search term that has found its jobs.

Another reading may find others once these are changed.
"""


class NewestFirst(BoundedPaginator):
    """Counts by the primary key, which also orders and limits the jobs."""

    counts_in_order = True


class JobList(BoundedList):
    """The list of jobs. ``sees_newest_only``: it looked at `MOST_SCANNED` jobs only, and there are older ones."""

    most_scanned = MOST_SCANNED
    _last_seen: UUID | None = None
    _finds_too_many = False
    """Whether an index finds so many jobs that a page looks at the newest of all jobs instead."""

    def check_parameters(self) -> None:
        # Only these: the filters and the search report errors in their own values.
        check_dates(self.params)
        if OLDER in self.params and read_id(self.params[OLDER]) is None:
            raise IncorrectLookupParameters(OLDER)

    def get_filters_params(self, params: Any = None) -> Any:
        return {name: value for name, value in super().get_filters_params(params).items() if name != OLDER}

    @property
    def older(self) -> str:
        """The address of the list that looks at the jobs before these."""
        return self.get_query_string({OLDER: self._last_seen}, remove=["p"])

    @property
    def newest(self) -> str:
        """The address of the list that looks at the newest jobs again; empty if this one does."""
        return self.get_query_string(remove=["p", OLDER]) if OLDER in self.params else ""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[Any]:
        first, *_ = super().get_ordering(request, queryset)
        return ["pk"] if first == "pk" else ["-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> Any:
        jobs = self._matching(request, exclude_parameters)
        jobs.sees_newest_only, jobs.reading = (
            self.sees_newest_only,
            self.reading,
        )  # for a bulk action, which has no list
        return jobs

    def _matching(self, request: HttpRequest, exclude_parameters: Any) -> Any:
        # Without this, Django would apply the search before the list knows which jobs it may look at.
        query, self.query = self.query, ""
        jobs = super().get_queryset(request, exclude_parameters)
        self.query = query
        self.sees_newest_only, self.reading, self.note = False, "", ""
        filters = [spec for spec in self.filter_specs if isinstance(spec, JobFilter) and spec.value() is not None]
        scanning = [spec for spec in filters if spec.is_scanning]
        by_index = [spec for spec in filters if not spec.is_scanning]
        self.most_scanned = min([self.most_scanned, *(spec.most for spec in scanning if spec.most)])
        begin, term = begin_of(self.params), query.strip()
        if begin is not None:
            jobs = jobs.filter(created_since(begin))
        few = self._few(jobs, by_index[0].by) if by_index else None
        if few is not None:
            jobs = jobs.filter(pk__in=few)
        elif scanning:
            jobs = self._newest(jobs)
        for spec in scanning:
            jobs = spec.narrow(jobs)
        if term:
            jobs = self._find(jobs, term, request.POST.get(READING, ""), is_limited=bool(scanning or few is not None))
            if self.note and request.method == "GET":
                messages.info(request, translate(self.note))
        self._finds_too_many = bool(by_index) and few is None and not (scanning or term or begin)
        found: Any = jobs.only(*LISTED)
        if few is not None:
            found.counted = None if scanning or term else len(few)
        elif begin is not None and not self.sees_newest_only:
            return self._between(found, self.get_ordering(request, jobs))
        return found

    def get_results(self, request: HttpRequest) -> None:
        if self._finds_too_many:
            newest = self._newest(self.queryset)
            self.sees_newest_only = self.sees_newest_only and newest[: MOST_COUNTED + 1].count() <= MOST_COUNTED
            self.queryset = newest
        super().get_results(request)
        from ..reporting.list_columns import list_columns, with_list_columns
        from ..reporting.suppressed import count_met

        jobs = list(with_list_columns(self.result_list, LISTED))
        counts = count_met(jobs, self.root_queryset.db)
        links = may_view(request, SuppressedEnqueue)
        for job in jobs:
            job.met, job.links_met = counts.get(job.pk, 0), links
            job.list_columns = list_columns(job)
        self.result_list = jobs

    @property
    def dates(self) -> dict[str, Any]:
        """The context of ``admin/date_hierarchy.html``."""
        return dates_of(self)

    def _find(self, jobs: QuerySet[Any], term: str, chosen: str, *, is_limited: bool) -> QuerySet[Any]:
        """Select by the first reading of a term that finds some, or by the one that a bulk action has ``chosen``."""
        from ..reporting.search import readings

        found = jobs.none()
        for number, reading in enumerate(readings(term, jobs.db)):
            self.reading = str(number)
            self.note = reading.note
            if chosen not in ("", self.reading):
                continue
            if not (reading.by_index or is_limited):
                jobs, is_limited = self._newest(jobs), True
            found = reading.select(jobs)
            if chosen or (found.exists() if reading.by_index else found.values_list("pk")[:1]):
                break
        return found

    def _few(self, jobs: QuerySet[Any], by: Sequence[str]) -> list[UUID] | None:
        """Return the ids of jobs if they are few. They are sorted later: a scan from the newest may read all jobs.

        ``by``: the order of the index that finds them; without this order PostgreSQL would read the table.
        """
        order = by if connections[jobs.db].features.supports_partial_indexes else ()
        ids = list(jobs.order_by(*order).values_list("pk", flat=True)[: MOST_COUNTED + 1])
        return ids if len(ids) <= MOST_COUNTED else None

    def _between(self, jobs: QuerySet[Any], order: Sequence[str]) -> Any:
        """Find the first of the jobs, and the last if they are few, so that a page passes over no other jobs."""
        ids = list(jobs.order_by(*order).values_list("pk", flat=True)[: MOST_COUNTED + 1])
        begin, end = ("pk__lte", "pk__gte") if order == ["-pk"] else ("pk__gte", "pk__lte")
        found: Any = jobs.filter(**{begin: ids[0]}) if ids else jobs.none()
        if 0 < len(ids) <= MOST_COUNTED:
            found = found.filter(**{end: ids[-1]})
        found.counted = len(ids)
        return found

    def _newest(self, jobs: QuerySet[Any]) -> QuerySet[Any]:
        """Select those of the jobs that are among the newest ones of all, or of the chosen dates."""
        newest = jobs if begin_of(self.params) is not None else self.root_queryset
        if OLDER in self.params:
            jobs, newest = (rows.filter(pk__lt=self.params[OLDER]) for rows in (jobs, newest))
        seen = newest.order_by("-pk").values_list("pk", flat=True)[self.most_scanned - 1 : self.most_scanned + 1]
        last, *more = (*seen, None)
        if not more:  # there are fewer
            return jobs
        self._last_seen = last
        self.sees_newest_only = bool(more[0])
        return jobs.filter(pk__gte=last)
