"""Periodic jobs: define, list, show, delete (HTTP binding, "Cron")."""

from __future__ import annotations

import re
from typing import Any

from django.utils import timezone
from rest_framework.request import Request
from rest_framework.response import Response

from ...exceptions import OJSError
from ...maintenance.on_demand import run_maintenance
from ...models import CronJob
from ..base import OJSView
from ..wire.cron import read_cron, show, show_flat
from ..wire.errors import NotFound
from ..wire.pages import Page

_NAME = re.compile(r"[a-z0-9][a-z0-9_\-.]*")
"""Names from clients. Entries that are declared in code have the names of job types."""


class Crons(OJSView):
    """``/ojs/v1/cron``."""

    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "cron")
        run_maintenance(self.jobs, timezone.now(), crons=True)
        entries, pagination = page.of_rows(
            CronJob.objects.using(self.using), "name", large=("args", "options"), copies=2
        )
        crons = [show(entry) for entry in entries]
        return Response({"crons": crons, "cron_jobs": list(map(show_flat, crons)), "pagination": pagination})

    def post(self, request: Request) -> Response:
        """Define an entry (201), or change the one of this name (200). ``enabled`` can be changed alone."""
        wanted = read_cron(self.body, timezone.now())
        try:
            if wanted.definition is None:
                entry, is_new = _known(_entries(self, wanted.name).first(), wanted.name), False
                entry.switch(wanted.enabled)
                entry.refresh_from_db()
            else:
                entry, is_new = CronJob.objects.using(self.using).define_from_outside(**wanted.definition)
        except OJSError as error:
            raise wanted.locate(error) from None
        return Response(_shown(entry), status=201 if is_new else 200)


class Cron(OJSView):
    """``/ojs/v1/cron/{name}``."""

    def get(self, request: Request, name: str) -> Response:
        run_maintenance(self.jobs, timezone.now(), crons=True)
        return Response(_shown(_known(_entries(self, name).first(), name)))

    def delete(self, request: Request, name: str) -> Response:
        found = _known(_entries(self, name).first(), name)
        entry = _known(CronJob.objects.using(self.using).remove(found.name), name)
        return Response({**_shown(entry), "deleted": True, "name": name})


def _shown(entry: CronJob) -> dict[str, Any]:
    shown = show(entry)
    return {"cron": shown, "cron_job": show_flat(shown)}


def _entries(view: OJSView, name: Any) -> Any:
    entries = CronJob.objects.using(view.using)
    return entries.filter(pk=name) if isinstance(name, str) and _NAME.fullmatch(name) else entries.none()


def _known(entry: CronJob | None, name: Any) -> CronJob:
    if entry is None:
        raise NotFound.of("cron entry", name)
    return entry
