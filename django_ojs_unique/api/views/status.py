"""What the server is and how it does: manifest, health, what its errors mean (HTTP binding, "Health", "Manifest")."""

from __future__ import annotations

from typing import Any

from django.db import InterfaceError, OperationalError, connections
from django.urls import reverse
from rest_framework.request import Request
from rest_framework.response import Response

from ...capabilities import unique_jobs
from ...conf import settings
from ...models import Job
from .. import health
from ..base import VERSION, OJSView
from ..errors import CODES, NotFound

HOMEPAGE = "https://pypi.org/project/django-ojs-unique/"
CAPABILITIES = {
    "batch_enqueue": True,
    "cron_jobs": True,
    "dead_letter": True,
    "delayed_jobs": True,
    "job_ttl": True,
    "pause_resume": True,
    "priority_queues": True,
    "rate_limiting": True,
    "workflows": False,
}
"""What the manifest declares, besides what depends on the settings and the database."""
EXTENSIONS = ("explain", "bulk_enqueue", "long_polling", "worker_control")
"""What the binding does not know, and what it knows and leaves to the server."""


class Manifest(OJSView):
    """``/ojs/manifest``."""

    group = "status"

    def get(self, request: Request) -> Response:
        from ... import __version__

        unique = unique_jobs(Job, self.using)
        return Response(
            {
                "specversion": VERSION,
                "ojs_version": VERSION,
                "implementation": {
                    "name": "django-ojs-unique",
                    "version": __version__,
                    "language": "python",
                    "homepage": HOMEPAGE,
                },
                # Each level needs those below it: events are of level 0, workflows are level 3.
                "conformance_level": 2 if settings.events else 0,
                "conformance_tier": "runtime",
                "protocols": ["http"],
                "backend": "django",
                "unique_job_strength": unique["strength"],
                "capabilities": {"unique_jobs": unique, "events": settings.events, **CAPABILITIES},
                "extensions": list(EXTENSIONS),
                "endpoints": {name: reverse(f"ojs:{name}") for name in ("manifest", "health", "openapi")},
            }
        )


class Health(OJSView):
    """``/ojs/v1/health``: 200 while the database answers, else 503."""

    group = "status"

    def get(self, request: Request) -> Response:
        return self._answer(health.answers(self.using))

    def handle_exception(self, exc: Exception) -> Response:
        """Answer as for a dead database also where it is the session or the token that could not be read."""
        if isinstance(exc, (OperationalError, InterfaceError)):
            return self._answer(False)
        return super().handle_exception(exc)

    def _answer(self, well: bool) -> Response:
        status = "ok" if well else "degraded"
        body = {
            "status": status,
            "version": VERSION,
            "uptime_seconds": health.uptime(),
            "backend": {"type": connections[self.using].vendor, "status": "ok" if well else "unreachable"},
        }
        return Response(body, status=200 if well else 503)


class OpenAPI(OJSView):
    """``/ojs/v1/openapi.json``: this API in the words of OpenAPI."""

    group = "status"

    def get(self, request: Request) -> Response:
        from ..schema import document  # drf-spectacular takes its time to load

        return Response(document(reverse("ojs:manifest").removesuffix("/ojs/manifest")))


class ErrorCode(OJSView):
    """``/ojs/v1/errors/{code}``: what the ``docs_url`` of an error leads to."""

    group = "status"

    def get(self, request: Request, code: str) -> Response:
        if (entry := CODES.get(code)) is None:
            raise NotFound.of("error code", code)
        return Response({"code": code, "status": entry.status, "hint": entry.hint})


class Nowhere(OJSView):
    """Every other path below ``/ojs``: the answer of the binding, not the project's page."""

    schema = None  # it is no part of the document

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        raise NotFound(f"There is nothing at {request.path[:200]!r}.", details={"resource_type": "route"})
