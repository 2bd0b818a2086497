"""What all views of the API share: who may call, the body, the headers, and the shape of errors."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache, cached_property
from typing import Any, ClassVar, TypeVar

from django.apps import apps
from django.core.exceptions import DisallowedHost
from django.db import router, transaction
from django.urls import reverse
from django.utils import translation
from rest_framework import exceptions as drf
from rest_framework.authentication import BaseAuthentication, SessionAuthentication
from rest_framework.permissions import BasePermission
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView, set_rollback

from ..conf import API_DEFAULTS, imported, settings
from ..db.clock import database_now
from ..db.fields import new_id
from ..exceptions import DuplicateJob, OJSError, as_json
from ..maintenance.on_demand import is_overdue, run_maintenance
from ..models import Job
from ..ojs.names import UUID_TEXT
from ..wire.schema import Object, Value
from ..worker.remote_worker import RemoteWorker
from . import compatible
from .authentication import TokenAuthentication
from .authorize import Action, demand
from .wire import codec, errors

M = TypeVar("M", bound=Callable[..., Response])
VERSION = "1.0"
_SERVED_VERSIONS = re.compile(r"1(\.[0-9]{1,9}){0,2}(-[0-9A-Za-z.\-]{1,99})?")
"""Every version of the major that we speak, with its release candidates."""
_REQUEST_ID = re.compile(r"[!-~](?:[ -~]{0,253}[!-~])?")


@dataclass(frozen=True, slots=True)
class Operation:
    """What the OpenAPI document says of one method of a view.

    ``answers``: the body of each successful status. ``query``: the query parameters. ``refusals``: further error
    statuses, besides those that every operation has and those that follow from a body, a query or an id in the path.
    """

    id: str
    tag: str
    summary: str
    answers: Mapping[int, Object]
    request: Object | None = None
    query: Mapping[str, Value] = field(default_factory=dict)
    refusals: Sequence[int] = ()


def operation(*said: Any, **more: Any) -> Callable[[M], M]:
    """Describe a method of a view as an `Operation`."""

    def describe(method: M) -> M:
        method.operation = Operation(*said, **more)  # type: ignore[attr-defined]
        return method

    return describe


class OJSView(APIView):
    """A view of the binding. ``group`` names its permissions in ``OJS_UNIQUE["API"]["PERMISSIONS"]``.

    ``groups`` has those of the methods that belong to another group.
    """

    group = "operators"
    groups: ClassVar[Mapping[str, str]] = {}
    renderer_classes = (codec.OJSRenderer, codec.JSONRenderer)
    parser_classes = (codec.Unread,)
    content_negotiation_class = compatible.Negotiation
    metadata_class = None
    format_kwarg = None
    versioning_class = None
    http_method_names = ["get", "head", "post", "put", "delete"]

    @classmethod
    def as_view(cls, **options: Any) -> Any:
        """Return the view function; ``ATOMIC_REQUESTS`` does not apply to it, as it begins its own transactions."""
        view = super().as_view(**options)
        for using in {None, router.db_for_write(Job)}:
            view = transaction.non_atomic_requests(using)(view)
        return view

    def get_authenticators(self) -> list[BaseAuthentication]:
        names = settings.api["AUTHENTICATION"]
        return [one() for one in (_default_authentication() if names is None else _imported(tuple(names)))]

    @classmethod
    def group_of(cls, method: str) -> str:
        """Return the group of a method; HEAD has that of GET."""
        return cls.groups.get("GET" if method == "HEAD" else method, cls.group)

    def get_permissions(self) -> Sequence[BasePermission]:
        return _permissions(self.group_of(str(self.request.method)))

    def get_throttles(self) -> list[BaseThrottle]:
        return [one() for one in _imported(tuple(settings.api["THROTTLES"]))]

    def initial(self, request: Request, *args: Any, **kwargs: Any) -> None:
        with translation.override("en"):  # a program reads what Django REST framework refuses
            super().initial(request, *args, **kwargs)
        if not _SERVED_VERSIONS.fullmatch(self.asked_version):
            raise errors.Unsupported(
                f"OJS-Version {as_json(self.asked_version[:20])} is not served."
                f" Send {VERSION}, or leave the header out.",
                details={"field": "OJS-Version", "supported": [VERSION]},
            )

    def http_method_not_allowed(self, request: Any, *args: Any, **kwargs: Any) -> Response:
        with translation.override("en"):
            return super().http_method_not_allowed(request, *args, **kwargs)

    @cached_property
    def body(self) -> dict[str, Any]:
        """The JSON object that the request carries."""
        return codec.read_body(self.request._request, settings.api["MAX_BODY_BYTES"])

    @property
    def asked_version(self) -> str:
        """The version of the specification that the client asks for."""
        return self.request.META.get("HTTP_OJS_VERSION", VERSION)  # type: ignore[no-any-return]

    @property
    def asks_for_draft(self) -> bool:
        """Whether that is a release candidate. The OJS client for Go asks for one, and reads only its HTTP chapter."""
        return "-" in self.asked_version

    @cached_property
    def using(self) -> str:
        """The database of the jobs."""
        return router.db_for_write(Job)

    def now(self) -> datetime:
        """Return the time of that database."""
        return database_now(self.using)

    @property
    def account(self) -> str:
        """A text that identifies the caller's account; all anonymous callers share one."""
        return str(getattr(self.request.user, "pk", None))

    @property
    def jobs(self) -> Any:
        """The queryset of the jobs."""
        return Job.objects.using(self.using)

    @cached_property
    def request_id(self) -> str:
        """The client's ``X-Request-Id`` if it can be sent back, else a new one."""
        given = self.request.META.get("HTTP_X_REQUEST_ID", "")
        return given if _REQUEST_ID.fullmatch(given) else f"req_{new_id()}"

    def described(self, error: OJSError) -> dict[str, Any]:
        """Return the JSON object of an error."""
        path = reverse("ojs:error", args=[error.code])
        try:
            docs_url = self.request.build_absolute_uri(path)
        except DisallowedHost:
            docs_url = f"{self.request.scheme}://{self.request.META['SERVER_NAME']}{path}"
        return errors.show(error, self.request_id, docs_url)

    def demand(self, action: Action, queue: str | None, type: str | None) -> None:
        """Raise NotAuthorized unless the caller may do this to jobs of a queue and type; None stands for any."""
        demand(self.request, action, queue, type)

    def found(self, id: str, action: Action) -> Job:
        """Return the job of an id in a path, after maintenance if it is overdue. Raises NotFound and NotAuthorized."""
        job = self.stored(id)
        self.demand(action, job.queue, job.type)
        return job

    def stored(self, id: str) -> Job:
        """Return the same job, whatever the caller may do. Raises NotFound."""
        job = self.jobs.filter(pk=id).first() if UUID_TEXT.fullmatch(id) else None
        if job is not None and is_overdue(job, now := self.now()):
            run_maintenance(self.jobs, now, only=job.pk)
            job = self.jobs.filter(pk=id).first()
        if job is None:
            raise errors.NotFound.of("job", id)
        return job  # type: ignore[no-any-return]

    def handle_exception(self, exc: Exception) -> Response:
        if not isinstance(exc, DuplicateJob):  # its suppressed enqueue is stored in the caller's transaction
            set_rollback()
        error, status, headers = errors.understand(exc)
        if status == 401 and (header := self.get_authenticate_header(self.request)):
            headers["WWW-Authenticate"] = header
        body = {"error": self.described(error)}
        response = Response(body, status=status, headers=headers)
        response.exception = True
        return response

    def finalize_response(self, request: Any, response: Any, *args: Any, **kwargs: Any) -> Response:
        if not response.exception:
            response.data = compatible.shown(request, response.data)
        response = super().finalize_response(request, response, *args, **kwargs)
        response.headers["OJS-Version"] = VERSION
        response.headers["X-Request-Id"] = self.request_id
        response.headers["Cache-Control"] = "no-store"  # jobs hold private data
        return response  # type: ignore[no-any-return]


class OneJobView(OJSView):
    """A view of one job: producers may read it, and workers while their account has its lease."""

    group = "producers"

    def check_permissions(self, request: Request) -> None:
        try:
            super().check_permissions(request)
        except (drf.NotAuthenticated, drf.PermissionDenied):
            works = all(one.has_permission(request, self) for one in _permissions("workers"))
            if request.method not in ("GET", "HEAD") or not works:
                raise
            if not self._has_lease():
                message = "As a worker you may read a job only while your account has its lease."
                raise errors.Forbidden(message) from None

    def _has_lease(self) -> bool:
        """Tell whether the caller has fetched the job, and still has its lease; it has seen the whole job then."""
        try:
            return RemoteWorker(self.account).refusal(self.stored(self.kwargs["id"])) is None
        except errors.NotFound:
            return False


def _default_authentication() -> tuple[type[BaseAuthentication], ...]:
    """Return session authentication and, if ``rest_framework.authtoken`` is installed, token authentication."""
    tokens = apps.is_installed("rest_framework.authtoken")
    return (TokenAuthentication, SessionAuthentication) if tokens else (SessionAuthentication,)


def _permissions(group: str) -> list[BasePermission]:
    names = settings.api["PERMISSIONS"].get(group) or API_DEFAULTS["PERMISSIONS"][group]
    return [one() for one in _imported(tuple(names))]


@cache
def _imported(names: tuple[str, ...]) -> tuple[Any, ...]:
    return tuple(map(imported, names))
