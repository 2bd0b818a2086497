"""About the server: manifest, health, and the meaning of its errors (HTTP binding, "Health", "Manifest")."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.urls import resolve, reverse
from rest_framework.request import Request
from rest_framework.response import Response

from ...conf import API_DEFAULTS, settings
from ...db.capabilities import unique_jobs
from ...db.dialects import kind_of
from ...exceptions import as_json
from ...models import Job
from ...wire.schema import Object, array, mapping, number, one_of, text, whole
from .. import health
from ..base import VERSION, OJSView, operation
from ..wire import workers
from ..wire.errors import CODES, NoRoute, NotFound

CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "pause_resume": True,
    "priority_queues": True,
    "rate_limiting": True,
    "workflows": True,
}
"""The capabilities in the manifest that do not depend on the settings and the database."""
EXTENSIONS = (
    "explain",
    "bulk_enqueue",
    "long_polling",
    "worker_control",
    "lease_tokens",
    "progress",
    "job_limits",
    "job_keys",
)
"""What is beyond the binding, or optional in it."""

MANIFEST = Object(
    "Manifest",
    {
        "specversion ojs_version conformance_tier backend": text(),
        "implementation": Object("Implementation", {"name version language": text()}),
        "conformance_level": whole(),
        "protocols extensions": array(text()),
        "unique_job_strength": one_of(("strong", "best-effort")),
        "capabilities": mapping(),
        "limits": mapping(number()),
        "endpoints": mapping(text()),
    },
)
HEALTH = Object(
    "Health",
    {
        "status": one_of(("ok", "degraded")),
        "version": text(),
        "uptime_seconds": whole(),
        "backend": Object("Backend", {"type status": text()}),
    },
)
DOCUMENT = Object("Document", {"openapi": text(), "info paths components": mapping()})
MEANING = Object("ErrorMeaning", {"code hint": text(), "status": whole()})


class Manifest(OJSView):
    """``/ojs/manifest``."""

    group = "status"

    @operation("getManifest", "server", "What this server supports", {200: MANIFEST})
    def get(self, request: Request) -> Response:
        from ... import __version__

        unique = unique_jobs(Job, self.using)
        capabilities = {"unique_jobs": True if self.asks_for_draft else unique, "events": settings.events}
        return Response(
            {
                "specversion": VERSION,
                "ojs_version": VERSION,
                "implementation": {"name": "django-ojs-unique", "version": __version__, "language": "python"},
                # A level includes all levels below it. Events belong to level 0, workflows to level 3.
                "conformance_level": 4 if settings.events else 0,
                "conformance_tier": "runtime",
                "protocols": ["http"],
                "backend": "django",
                "unique_job_strength": unique["strength"],
                "capabilities": {**capabilities, **CAPABILITIES},
                "extensions": list(EXTENSIONS),
                "limits": limits(),
                "endpoints": {name: reverse(f"ojs:{name}") for name in ("manifest", "health", "openapi")},
            }
        )


def limits() -> dict[str, float]:
    """Return the limits of one request and of one answer."""
    return {
        **{name.lower(): settings.api[name] for name in API_DEFAULTS if name.startswith("MAX_")},
        "max_args_bytes": settings.max_args_bytes,
        "max_meta_bytes": settings.max_meta_bytes,
        "max_result_bytes": settings.max_result_bytes,
        "max_queues": workers.MOST_QUEUES,
        "max_types": workers.MOST_TYPES,
        "max_queues_times_types": workers.MOST_PAIRS,
        "max_jobs": workers.MOST_JOBS,
    }


class Health(OJSView):
    """``/ojs/v1/health``: 200 while the database answers, else 503."""

    group = "status"

    @operation("getHealth", "server", "Whether the database answers", {200: HEALTH, 503: HEALTH})
    def get(self, request: Request) -> Response:
        return self._answer(health.answers(self.using))

    def handle_exception(self, exc: Exception) -> Response:
        """Answer 503 also if the database failed while the session or the token was read."""
        if isinstance(exc, (OperationalError, InterfaceError)):
            return self._answer(False)
        return super().handle_exception(exc)

    def _answer(self, well: bool) -> Response:
        status = "ok" if well else "degraded"
        body = {
            "status": status,
            "version": VERSION,
            "uptime_seconds": health.uptime(),
            "backend": {"type": kind_of(connections[self.using]).name, "status": "ok" if well else "unreachable"},
        }
        return Response(body, status=200 if well else 503)


class OpenAPI(OJSView):
    """``/ojs/v1/openapi.json``: the OpenAPI document of this API."""

    group = "status"

    @operation("getOpenAPI", "server", "This document", {200: DOCUMENT})
    def get(self, request: Request) -> Response:
        from ..openapi.generator import document  # drf-spectacular is slow to load

        return Response(document(reverse("ojs:manifest").removesuffix("/ojs/manifest")))


class ErrorCode(OJSView):
    """``/ojs/v1/errors/{code}``: what a code means; the ``docs_url`` of an error links here."""

    group = "status"

    @operation("getErrorCode", "server", "What a code means", {200: MEANING})
    def get(self, request: Request, code: str) -> Response:
        if (entry := CODES.get(code)) is None:
            raise NotFound.of("error code", code)
        return Response({"code": code, "status": entry.status, "hint": entry.hint})


class Nowhere(OJSView):
    """Every other path below ``/ojs``: a 404 in the shape of the binding, not the project's page."""

    schema = None  # not in the OpenAPI document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        path, script = request.path.rstrip("/"), request.path.removesuffix(request.path_info)
        message, there = f"There is nothing at {as_json(request.path)}.", resolve(path.removeprefix(script)).func
        if path != request.path and getattr(there, "view_class", None) is not type(self):
            message = f"{message} Write {as_json(path)}, without the slash at the end."
        raise NoRoute(message, details={"resource_type": "route"})
