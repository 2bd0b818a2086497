"""The endpoint that Prometheus scrapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib.auth.decorators import login_not_required
from django.core.exceptions import ImproperlyConfigured
from django.db import InterfaceError, OperationalError, connections, transaction
from django.http import HttpRequest, HttpResponse, HttpResponseBase
from django.utils.crypto import constant_time_compare
from django.utils.decorators import method_decorator
from django.views import View
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

from .collector import JobsCollector


@method_decorator(login_not_required, name="dispatch")
class MetricsView(View):
    """Shows the gauges of `JobsCollector` to staff, and to who brings the token.

    ``token``: what follows ``Bearer`` in the header ``Authorization``; None: staff only. ``using``: the database, by
    default where the router reads jobs. A subclass may let others in by `may_read`.
    """

    token: str | None = None
    using: str | None = None
    http_method_names = ["get", "head"]

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., HttpResponseBase]:
        """Return the view function. Raises ImproperlyConfigured for a token that no header can carry."""
        token = initkwargs.get("token", cls.token)
        if token is not None and not (isinstance(token, str) and token.isascii() and token and token == token.strip()):
            raise ImproperlyConfigured(
                "MetricsView: the token must be ASCII text that is not empty, without white space around it, or None:"
                " staff only."
            )
        view = super().as_view(**initkwargs)
        for alias in connections:  # ATOMIC_REQUESTS would ask a database that is away before the view can say so
            view = transaction.non_atomic_requests(alias)(view)
        return view

    def may_read(self, request: HttpRequest) -> bool:
        """Tell whether the metrics are for this caller."""
        user = getattr(request, "user", None)
        if user is not None and user.is_active and user.is_staff:
            return True
        if self.token is None:
            return False
        scheme, _, given = request.headers.get("Authorization", "").partition(" ")
        return scheme.lower() == "bearer" and constant_time_compare(given.strip(), self.token)

    def get(self, request: HttpRequest) -> HttpResponse:
        try:
            if not self.may_read(request):
                return _refusal(has_token=self.token is not None)
            registry = CollectorRegistry()
            registry.register(JobsCollector(self.using))
            response = HttpResponse(generate_latest(registry), content_type=CONTENT_TYPE_LATEST)
        except (OperationalError, InterfaceError):
            response = HttpResponse("The database does not answer.\n", status=503, content_type="text/plain")
        response.headers["Cache-Control"] = "no-store"
        return response


def _refusal(*, has_token: bool) -> HttpResponse:
    if has_token:
        said, headers = "Send the token: Authorization: Bearer ...\n", {"WWW-Authenticate": "Bearer"}
        return HttpResponse(said, status=401, headers=headers, content_type="text/plain")
    said = "Metrics are for staff. To let Prometheus in, give MetricsView a token.\n"
    return HttpResponse(said, status=403, content_type="text/plain")
