"""What a line of a list says of a job: its args, its key in words and its last error, each short.

A page reads no more than that: args may have a megabyte, and errors a traceback for each attempt.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from django.db.models import Func, QuerySet, TextField
from django.db.models.functions import Coalesce, Left

from ..exceptions import Message, OJSError
from ..handlers.redaction import redacted_args, redacted_beginning, redacted_canonical
from ..unique.fingerprint import canonical_text
from .text import shortened
from .timeline import failures
from .uniqueness import against, read_policy

LONGEST = 80
"""How many characters of args, of a key and of an error a line has."""

TOO_LONG, UNREADABLE = Message("too long to be shown here"), Message("unknown: its policy cannot be read")
"""What is said in the place of args and of a key."""

LONGEST_VALUE = 30
READ = 2_000
"""How many characters of args and meta are read; longer ones are shown as far as that, and their key without values."""

BIG = 8_000
"""In bytes: PostgreSQL would have to unpack a longer value as a whole to read its beginning."""

_ESCAPED = re.compile(r"\\u([0-9a-f]{4})")


@dataclass(frozen=True, slots=True)
class ListColumns:
    """The ``args``, the ``key`` in words and the last ``error`` of a job; empty if it has none."""

    args: str
    key: str
    error: str


class Begin(Func):
    """The first `READ` characters of a JSON column; NULL if it is `BIG`."""

    output_field = TextField()
    template = f"CASE WHEN PG_COLUMN_SIZE(%(expressions)s) <= {BIG} THEN LEFT(%(expressions)s::text, {READ}) END"

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=f"SUBSTR(%(expressions)s, 1, {READ})", **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        return self.as_sql(compiler, connection, template=f"LEFT(%(expressions)s, {READ})", **context)


class OfLastError(Func):
    """A member of the last of a job's errors, as text; NULL if there is none, or if the errors cannot be read."""

    output_field = TextField()
    template = "(%(expressions)s -> -1 ->> '%(member)s')"

    def __init__(self, member: str) -> None:
        super().__init__("errors", member=member)

    def as_sqlite(self, compiler: Any, connection: Any, **context: Any) -> Any:
        read = "JSON_EXTRACT(%(expressions)s, '$[#-1].%(member)s')"
        template = f"CASE WHEN JSON_VALID(%(expressions)s) THEN {read} END"
        return self.as_sql(compiler, connection, template=template, **context)

    def as_mysql(self, compiler: Any, connection: Any, **context: Any) -> Any:
        path = "CONCAT('$[', JSON_LENGTH(%(expressions)s) - 1, '].%(member)s')"
        return self.as_sql(compiler, connection, template=f"JSON_VALUE(%(expressions)s, {path})", **context)


def error_type() -> Coalesce:
    """Return the expression for the type of the last error of a job."""
    return Coalesce(OfLastError("type"), OfLastError("code"))


def error_message() -> Left:
    """Return the expression for the beginning of the message of the last error of a job."""
    return Left(OfLastError("message"), LONGEST + 1)


def with_list_columns(jobs: Any, fields: tuple[str, ...]) -> QuerySet[Any]:
    """Let jobs be read with these ``fields``, and with what `list_columns` needs."""
    read = jobs.only(*fields, "type", "queue", "key", "fingerprint", "unique", "created_at", "scheduled_at")
    return read.annotate(  # type: ignore[no-any-return]
        args_begin=Begin("args"),
        meta_begin=Begin("meta"),
        error_type=error_type(),
        error_message=error_message(),
    )


def list_columns(job: Any) -> ListColumns:
    """Return what a list says of a job, which was read by `with_list_columns` or as a whole; no query is made."""
    if "args_begin" in job.__dict__:
        args, meta = _read(job.type, job.args_begin), _read(job.type, job.meta_begin or "{}")
        failed = job.error_type, job.error_message
    else:
        args, meta = job.args, job.meta
        last = next(iter(failures(job)), None)
        failed = (last.type, last.message) if last else (None, None)
    return ListColumns(
        shortened(_args_text(redacted_args(job.type, args)), LONGEST),
        _key(job, args, meta),
        shortened(": ".join(filter(None, failed)), LONGEST),
    )


class _Cut(str):
    """The beginning of a JSON text."""


def _read(type: str, text: str | None) -> Any:
    if text is None:
        return _Cut()
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # an object or an array that was cut is not JSON
        return _Cut(_ESCAPED.sub(lambda found: chr(int(found[1], 16)), redacted_beginning(type, text)))


def _args_text(args: Any) -> str:
    if isinstance(args, _Cut):
        return str(args) if args else TOO_LONG
    if isinstance(args, dict):
        return ", ".join(f"{name}={_json(value)}" for name, value in args.items())
    return ", ".join(map(_json, args)) if isinstance(args, list) else _json(args)


def _key(job: Any, args: Any, meta: Any) -> str:
    if job.key is not None:
        return shortened(f"key {job.key}", LONGEST)
    if job.fingerprint is None:
        return ""
    policy, _ = read_policy(job)
    if policy is None:
        return UNREADABLE
    values = {}
    if not any(isinstance(each, _Cut) for each in (args, meta)):
        try:
            at = job.scheduled_at or job.created_at
            text = canonical_text(policy, type=job.type, queue=job.queue, args=args, meta=meta or {}, at=at)
            values = json.loads(redacted_canonical(job.type, text))
        except (OJSError, TypeError):  # pruned, or changed manually
            pass
    return shortened(against(policy, lambda name, member: _equals(values.get(name), member), meta=meta), 2 * LONGEST)


def _equals(members: Any, name: str) -> str:
    return f"={shortened(_json(members[name]), LONGEST_VALUE)}" if isinstance(members, dict) and name in members else ""


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)
