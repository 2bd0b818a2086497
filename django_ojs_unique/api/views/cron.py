"""Periodic jobs: define, list, show, delete (HTTP binding, "Cron")."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.request import Request
from rest_framework.response import Response

from ...exceptions import OJSError
from ...maintenance.on_demand import run_maintenance
from ...models import CronJob
from ...wire.schema import Object, flag, text
from ..authorize import Action, demand_cron, place_of, readable
from ..base import OJSView, operation
from ..wire.cron import CRON, DEFINE, FLAT_CRON, read_cron, show, show_flat
from ..wire.errors import NotFound
from ..wire.pages import PARAMETERS, Page, paged

_NAME = re.compile(r"[a-z0-9][a-z0-9_\-.]*")
"""Names from clients. Entries that are declared in code have the names of job types."""

CRONS = paged("Crons", crons=CRON, cron_jobs=FLAT_CRON)
ONE_CRON = Object("OneCron", {"cron": CRON, "cron_job": FLAT_CRON})
DELETED = ONE_CRON.extended("DeletedCron", {"deleted": flag(), "name": text()})


class Crons(OJSView):
    """``/ojs/v1/cron``."""

    @operation("listCrons", "cron", "List the periodic jobs", {200: CRONS}, query=PARAMETERS)
    def get(self, request: Request) -> Response:
        page = Page.read(request.query_params, "cron")
        run_maintenance(self.jobs, self.now(), crons=True)
        known = readable(request, CronJob.objects.using(self.using))
        entries, pagination = page.of_rows(known, "name", large=("args", "options"), copies=2)
        crons = [show(entry) for entry in entries]
        return Response({"crons": crons, "cron_jobs": list(map(show_flat, crons)), "pagination": pagination})

    @operation(
        "defineCron",
        "cron",
        "Define a periodic job, or change it",
        {201: ONE_CRON, 200: ONE_CRON},
        DEFINE,
        refusals=(409,),
    )
    def post(self, request: Request) -> Response:
        """Define an entry (201), or change the one of this name (200). ``enabled`` can be changed alone."""
        wanted = read_cron(self.body, self.now())
        if (stored := _entries(self, wanted.name).first()) is not None:
            self.demand("change", *place_of(stored))
        try:
            if wanted.definition is None:
                entry, is_new = _known(stored, wanted.name), False
                entry.switch(wanted.enabled)
                entry.refresh_from_db()
            else:
                demand_cron(request, wanted.definition)
                entry, is_new = CronJob.objects.using(self.using).define_from_outside(**wanted.definition)
        except OJSError as error:
            raise wanted.locate(error) from None
        return Response(_shown(entry), status=201 if is_new else 200)


class Cron(OJSView):
    """``/ojs/v1/cron/{name}``."""

    @operation("getCron", "cron", "Look at a periodic job", {200: ONE_CRON})
    def get(self, request: Request, name: str) -> Response:
        run_maintenance(self.jobs, self.now(), crons=True)
        return Response(_shown(_found(self, name, "read")))

    @operation("deleteCron", "cron", "Delete a periodic job", {200: DELETED}, refusals=(409,))
    def delete(self, request: Request, name: str) -> Response:
        found = _found(self, name, "change")
        entry = _known(CronJob.objects.using(self.using).remove(found.name), name)
        return Response({**_shown(entry), "deleted": True, "name": name})


def _shown(entry: CronJob) -> dict[str, Any]:
    shown = show(entry)
    return {"cron": shown, "cron_job": show_flat(shown)}


def _entries(view: OJSView, name: Any) -> Any:
    entries = CronJob.objects.using(view.using)
    return entries.filter(pk=name) if isinstance(name, str) and _NAME.fullmatch(name) else entries.none()


def _found(view: OJSView, name: str, action: Action) -> CronJob:
    entry = _known(_entries(view, name).first(), name)
    view.demand(action, *place_of(entry))
    return entry


def _known(entry: CronJob | None, name: Any) -> CronJob:
    if entry is None:
        raise NotFound.of("cron entry", name)
    return entry
