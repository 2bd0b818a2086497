"""Which jobs a request may see: those of ``get_queryset`` of the admin of jobs, which a project may narrow.

Every page asks here before it names a job. If the queryset has no condition, all jobs are seen, and no query is made.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any
from uuid import UUID

from django.db import router
from django.db.models import Exists, OuterRef, Q, QuerySet
from django.http import HttpRequest
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext

from ..models import Job, WorkflowMember
from .display import badge, job_link
from .sentences import translate

_NAMED = re.compile(r"(?:\b[Jj]ob )?\b([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
"""A job's id in a sentence, with the word before it."""


class Visibility:
    """The ``jobs`` that a request may see. ``is_narrowed``: whether others are hidden from it."""

    def __init__(self, jobs: QuerySet[Any]) -> None:
        self.jobs = jobs
        self.is_narrowed = bool(jobs.query.where)
        self._seen: dict[UUID, bool] = {}

    def look(self, ids: Iterable[Any]) -> None:
        """Find out by one query which of these jobs it may see, before they are asked for one by one."""
        if not self.is_narrowed:
            return
        if new := {_uuid(id) for id in ids if id is not None}.difference(self._seen):
            found = set(self.jobs.filter(pk__in=new).values_list("pk", flat=True))
            self._seen |= {id: id in found for id in new}

    def sees(self, id: Any) -> bool:
        """Tell whether it may see a job."""
        self.look([id])
        return not self.is_narrowed or self._seen[_uuid(id)]

    def link(self, id: Any, text: str | None = None) -> SafeString | str:
        """Link to a job; of a hidden one, show the ``text`` without a link."""
        return job_link(id, text) if self.sees(id) else text or hidden()

    def link_and_state(self, id: Any, state: str) -> SafeString:
        """Link to a job, and show a state that it has or had."""
        return format_html("{} {}", self.link(id), badge(state))

    def translate(self, text: object, *given: Any) -> str:
        """Return an English sentence in the visitor's language, in which no hidden job is named.

        ``given``: the ids that the visitor named; what is said of them is the same for hidden and for missing jobs.
        """
        return self.masked(translate(text), *given)

    def masked(self, text: str, *given: Any) -> str:
        """Take the ids of hidden jobs out of a text."""
        if not self.is_narrowed:
            return text
        self.look(found[1] for found in _NAMED.finditer(text))
        shown = set(map(str, given))
        return _NAMED.sub(lambda found: found[0] if found[1] in shown or self.sees(found[1]) else _instead(found), text)

    def attempts(self, attempts: QuerySet[Any]) -> QuerySet[Any]:
        """Select the suppressed enqueues that it may see.

        Their args are those of the job that was admitted, or would be: of that job, else of the one that they met.
        """
        if not self.is_narrowed:
            return attempts
        jobs = self.jobs.using(attempts.db).order_by().values("pk")
        return attempts.filter(Q(job__in=jobs) | Q(job=None, existing_job__in=jobs))

    def workflows(self, workflows: QuerySet[Any]) -> QuerySet[Any]:
        """Select the outermost workflows that it may see: those of which no job is hidden, or gone."""
        if not self.is_narrowed:
            return workflows
        seen = self.jobs.using(workflows.db).order_by().filter(pk=OuterRef("job_id"))
        members = WorkflowMember._default_manager.using(workflows.db).exclude(enqueued_at=None).exclude(job_id=None)
        within = Q(workflow=OuterRef("pk")) | Q(workflow__root=OuterRef("pk"))
        return workflows.exclude(Exists(members.filter(~Exists(seen), within)))


def visibility_of(model_admin: Any, request: HttpRequest) -> Visibility:
    """Return what a request may see on the site of an admin; no job, if the site has no admin of jobs."""
    site = model_admin.admin_site
    jobs = site.get_model_admin(Job).get_queryset(request) if site.is_registered(Job) else Job.objects.none()
    # A page may read from a replica; a change is decided on the database that it is written to.
    return Visibility(jobs.using(router.db_for_write(Job)) if request.method == "POST" else jobs)


def hidden() -> str:
    """Return what is said in the place of a hidden job."""
    return gettext("a job that you may not see")


def _instead(found: re.Match[str]) -> str:
    text = hidden()
    return text[:1].upper() + text[1:] if found.start() == 0 else text


def _uuid(id: Any) -> UUID:
    return id if isinstance(id, UUID) else UUID(str(id))
