"""The functions of PostgreSQL that put a request into the inbox, and wake a worker at the commit."""

from __future__ import annotations

from typing import Any

from .inserts import CHANNEL, INBOX

TABLE = "django_ojs_unique_inbox"
_SIGNATURES = ("ojs_enqueue(text, jsonb, jsonb)", "ojs_remove(text, text)")
_CREATE = """
CREATE FUNCTION {schema}.{signature} RETURNS bigint LANGUAGE sql SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
    SELECT pg_catalog.pg_notify('{channel}', '{inbox}');
    INSERT INTO {schema}.{table} ({columns}) VALUES ({values}) RETURNING id
$$
"""
_FUNCTIONS = (
    (
        "ojs_enqueue(type text, args jsonb DEFAULT '[]', options jsonb DEFAULT '{}')",
        "type, args, options",
        "$1, $2, $3",
    ),
    (
        "ojs_remove(key text, type text DEFAULT NULL)",
        "action, type, options",
        "'remove', $2, pg_catalog.jsonb_build_object('key', $1)",
    ),
)
"""The signature of each, the columns that it inserts, and their values."""


def create_functions(apps: Any, schema_editor: Any) -> None:
    """Create them in the schema of the table, for its owner only: who else may enqueue is granted EXECUTE.

    They act with the rights of the owner, so the callers need no others. Nothing in the caller's session decides which
    table they mean.
    """
    if schema_editor.connection.vendor != "postgresql":
        return
    schema = _schema(schema_editor)
    for signature, columns, values in _FUNCTIONS:
        schema_editor.execute(
            _CREATE.format(
                schema=schema,
                signature=signature,
                channel=CHANNEL,
                inbox=INBOX,
                table=TABLE,
                columns=columns,
                values=values,
            )
        )
    for name in _SIGNATURES:
        schema_editor.execute(f"REVOKE ALL ON FUNCTION {schema}.{name} FROM PUBLIC")


def drop_functions(apps: Any, schema_editor: Any) -> None:
    """Undo `create_functions`."""
    if schema_editor.connection.vendor == "postgresql":
        for name in _SIGNATURES:
            schema_editor.execute(f"DROP FUNCTION IF EXISTS {_schema(schema_editor)}.{name}")


def _schema(schema_editor: Any) -> str:
    with schema_editor.connection.cursor() as cursor:
        cursor.execute("SELECT relnamespace::regnamespace::text FROM pg_class WHERE oid = %s::regclass", [TABLE])
        (quoted,) = cursor.fetchone()
    return str(quoted)
