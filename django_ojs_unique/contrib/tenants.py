"""django-tenants: ``OJS_UNIQUE = {"CONTEXT": "django_ojs_unique.contrib.tenants.Tenant"}``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from django.db import connections
from django_tenants.utils import (
    get_public_schema_name,
    get_tenant_database_alias,
    get_tenant_model,
    schema_context,
    tenant_context,
)

from ..handlers.carried import Context


class Tenant(Context):
    """A job belongs to the tenant that is active at its enqueue: it runs there, and is unique there."""

    name = "tenant"
    unique = True
    of_connections = True

    def capture(self) -> dict[str, Any]:
        return {"schema_name": _connection().schema_name}

    def restore(self, captured: dict[str, Any]) -> AbstractContextManager[Any]:
        schema = captured["schema_name"]
        if schema == get_public_schema_name():
            return schema_context(schema)  # type: ignore[no-any-return]
        # An unknown schema would leave only `public` on the search path, so a tenant that is gone must raise.
        with schema_context(get_public_schema_name()):
            tenant = get_tenant_model()._default_manager.using(get_tenant_database_alias()).get(schema_name=schema)
        return tenant_context(tenant)  # type: ignore[no-any-return]

    def here(self) -> AbstractContextManager[Any]:
        return tenant_context(_connection().tenant)  # type: ignore[no-any-return]


def _connection() -> Any:
    return connections[get_tenant_database_alias()]
