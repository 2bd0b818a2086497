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
    """Shows the gauges of `JobsCollector` to staff, and to callers that send the token.

    ``token``: the text after ``Bearer`` in the header ``Authorization``; None means staff only. ``using``: the
    database, by default the one from which the router reads jobs. A subclass may override `may_read` to admit others.
    """

    token: str | None = None
    using: str | None = None
    http_method_names = ["get", "head"]

    @classmethod
    def as_view(cls, **initkwargs: Any) -> Callable[..., HttpResponseBase]:
        """Return the view function. Raises ImproperlyConfigured for a token that a header cannot hold."""
        token = initkwargs.get("token", cls.token)
        if token is not None and not (isinstance(token, str) and token.isascii() and token and token == token.strip()):
            raise ImproperlyConfigured(
                "MetricsView: the token must be ASCII text that is not empty, without white space around it, or None:"
                " staff only."
            )
        view = super().as_view(**initkwargs)
        for alias in connections:  # with ATOMIC_REQUESTS, a database that is down would fail before the view
            view = transaction.non_atomic_requests(alias)(view)
        return view

    def may_read(self, request: HttpRequest) -> bool:
        """Whether this caller may read the metrics."""
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
        message, headers = "Send the token: Authorization: Bearer ...\n", {"WWW-Authenticate": "Bearer"}
        return HttpResponse(message, status=401, headers=headers, content_type="text/plain")
    message = "Metrics are for staff. To let Prometheus in, give MetricsView a token.\n"
    return HttpResponse(message, status=403, content_type="text/plain")
