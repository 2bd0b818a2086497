"""The OpenAPI document: drf-spectacular generates it from the routes and from what their views say.

Import this module only where it is needed: the API works without drf-spectacular, and then loads faster.
"""

from __future__ import annotations

from functools import cache
from http import HTTPStatus
from threading import Lock
from typing import Any

from drf_spectacular.authentication import TokenScheme
from drf_spectacular.generators import SchemaGenerator
from drf_spectacular.openapi import AutoSchema
from drf_spectacular.settings import SPECTACULAR_DEFAULTS, patched_settings
from drf_spectacular.utils import OpenApiExample, OpenApiParameter, OpenApiResponse

from ...wire.schema import Object
from ..base import VERSION, Operation
from ..urls import urlpatterns
from ..wire.codec import ACCEPTED
from ..wire.errors import REFUSAL
from .examples import EXAMPLES

OPENAPI_VERSION = "3.1.0"
_REFUSED_ANYWHERE = (401, 403, 422, 429, 500, 503)
_lock = Lock()


def document(prefix: str = "") -> dict[str, Any]:
    """Return the OpenAPI document of the API that is mounted below the path ``prefix``."""
    with _lock:
        made = _document()
    return {**made, "servers": [{"url": prefix or "/"}]}


@cache
def _document() -> dict[str, Any]:
    from ... import __version__

    foreign = {
        name: value
        for name, value in SPECTACULAR_DEFAULTS.items()
        if not name.startswith("SERVE_") and name != "DEFAULT_GENERATOR_CLASS"
    }  # the project's own settings of drf-spectacular do not apply
    ours = {
        "OAS_VERSION": OPENAPI_VERSION,
        "TITLE": "Open Job Spec over HTTP",
        "DESCRIPTION": f"Jobs in the database of a Django project, by django-ojs-unique. OJS {VERSION}.",
        "VERSION": __version__,
        "ENUM_GENERATE_CHOICE_DESCRIPTION": False,
        "POSTPROCESSING_HOOKS": [],
        "APPEND_COMPONENTS": {"schemas": Object.components},
    }
    with patched_settings({**foreign, **ours}):
        make: Any = OJSGenerator
        generator = make(patterns=urlpatterns)
        return generator.get_schema(public=True)  # type: ignore[no-any-return]


class OJSGenerator(SchemaGenerator):
    """Describes our routes with `OJSSchema`, whatever schema class the project has for its own."""

    def create_view(self, callback: Any, method: str, request: Any = None) -> Any:
        view = super().create_view(callback, method, request)  # type: ignore[no-untyped-call]
        self._set_schema_to_view(view, OJSSchema())  # type: ignore[no-untyped-call]
        return view


class OJSSchema(AutoSchema):
    """Describes one method of a view as its `Operation` says."""

    @property
    def described(self) -> Operation:
        return getattr(self.view, self.method.lower()).operation  # type: ignore[no-any-return]

    def get_operation_id(self) -> str:
        return self.described.id

    def get_tags(self) -> list[str]:
        return [self.described.tag]

    def get_summary(self) -> str:
        return self.described.summary

    def get_description(self) -> str:  # type: ignore[override]
        return ""

    def get_request_serializer(self) -> Any:
        request = self.described.request
        return None if request is None else dict.fromkeys(ACCEPTED, request.ref)

    def _get_request_body(self, direction: Any = "request") -> Any:
        body, request = super()._get_request_body(direction), self.described.request  # type: ignore[no-untyped-call]
        needs_some = request is not None and (request.required or request.either)
        return {**body, "required": True} if needs_some else body

    def get_response_serializers(self) -> Any:
        bodies = {**dict.fromkeys(self._refusals(), REFUSAL), **self.described.answers}
        return {
            status: OpenApiResponse(body.ref, description=HTTPStatus(status).phrase)
            for status, body in sorted(bodies.items())
        }

    def _refusals(self) -> set[int]:
        statuses = {*_REFUSED_ANYWHERE, *self.described.refusals}
        if self.described.query:
            statuses.add(400)
        if self.described.request is not None:
            statuses |= {400, 413}
        if "{" in self.path:
            statuses.add(404)
        return statuses

    def _get_format_parameters(self) -> list[Any]:
        return []  # `OJSNegotiation` reads no ``?format=``

    def get_override_parameters(self) -> list[Any]:
        query = [
            OpenApiParameter(
                name,
                {name: part for name, part in value.schema.items() if name != "description"},
                description=value.schema.get("description", ""),
            )
            for name, value in self.described.query.items()
        ]
        return [*query, *_HEADERS]

    def get_examples(self) -> list[OpenApiExample]:
        return [
            OpenApiExample(name, value, request_only=True, media_type=media_type)
            for name, value in EXAMPLES.get(self.described.id, {}).items()
            for media_type in ACCEPTED
        ]


_HEADERS = (
    OpenApiParameter(
        "OJS-Version",
        {"type": "string", "pattern": r"^1(\.[0-9]{1,9}){0,2}$"},
        OpenApiParameter.HEADER,
        description=f"Asked for; any of the major that this server speaks. The answer is in {VERSION}.",
    ),
    OpenApiParameter("OJS-Version", str, OpenApiParameter.HEADER, response=True, required=True),
    OpenApiParameter("X-Request-Id", str, OpenApiParameter.HEADER, response=True, required=True),
    OpenApiParameter(
        "Location", str, OpenApiParameter.HEADER, response=[201], description="Where the new resource is."
    ),
    OpenApiParameter("Retry-After", int, OpenApiParameter.HEADER, response=[429, 503], description="Seconds."),
)


class TokenExtension(TokenScheme):  # type: ignore[no-untyped-call]
    """Describes our `TokenAuthentication`."""

    target_class = "django_ojs_unique.api.authentication.TokenAuthentication"
    priority = 1

    def get_security_definition(self, auto_schema: Any) -> dict[str, Any]:
        return {"type": "http", "scheme": "bearer", "description": "`Token KEY` is the same as `Bearer KEY`."}
