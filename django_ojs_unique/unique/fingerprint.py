"""Compute the fingerprint that a job shares with its duplicates (OJS unique jobs, "Key Computation")."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from datetime import datetime, timedelta
from typing import Any

from ..exceptions import InvalidPolicy
from ..ojs.canonical import canonical, to_nfc
from ..ojs.selection import object_of, select_members
from .policy import UniquePolicy, Window

SCHEME = 1
"""The version of the computation below. Each row stores it, so that a later version knows what to compute again."""

CONTEXT = "_context"
"""The member of ``meta`` that holds what a job carries from its enqueue to its runs; callers cannot set it."""


def canonical_text(
    policy: UniquePolicy, *, type: str, queue: str, args: Any, meta: dict[str, Any], at: datetime | None = None
) -> str:
    """Return the canonical JSON of the dimensions that count, for example ``{"args":{"user_id":42},"type":"t"}``.

    ``args`` and ``meta`` are plain JSON values. ``at`` is a time in the fixed window that counts; only a policy with
    fixed windows needs it. Raises InvalidPolicy when the policy names a member that ``args`` or ``meta`` does not have.
    """
    dimensions: dict[str, Any] = {"type": type}
    if "queue" in policy.keys:
        dimensions["queue"] = queue
    if "args" in policy.keys:
        dimensions["args"] = args
        if policy.args_keys is not None:
            members = to_nfc(_single_object(args))
            dimensions["args"] = select_members(members, policy.args_keys, "args", InvalidPolicy, "unique.args_keys")
    if "meta" in policy.keys:
        members = to_nfc(meta)
        dimensions["meta"] = select_members(members, policy.meta_keys or (), "meta", InvalidPolicy, "unique.meta_keys")
    if context := unique_context(meta):
        dimensions["context"] = context
    if policy.window is Window.FIXED:
        assert at is not None
        dimensions["window"] = policy.window_of(at)
    return canonical(dimensions)


def canonical_key(key: str, *, type: str | None, meta: Any = None) -> str:
    """Return the canonical JSON of a job key that is unique within a type or, for None, among all types.

    ``meta`` is the job's, for the context that it carries.
    """
    dimensions: dict[str, Any] = {"key": key} if type is None else {"key": key, "type": type}
    if context := unique_context(meta):
        dimensions["context"] = context
    return canonical(dimensions)


def unique_context(meta: Any) -> Any:
    """Return what only jobs that can be duplicates have in common, from their ``meta``; None if it has no such part."""
    context = meta.get(CONTEXT) if meta and isinstance(meta, dict) else None
    return context.get("unique") if isinstance(context, dict) else None


def stored_texts(row: Any, policy: UniquePolicy | None) -> Iterator[str]:
    """Yield the canonical texts from which a stored job's fingerprint may be computed, the most likely first.

    A job with a key needs no ``policy``; its row does not store the scope of the key, so both are possible. Raises
    InvalidPolicy as `canonical_text` does.
    """
    if row.key is not None:
        yield canonical_key(row.key, type=row.type, meta=row.meta)
        yield canonical_key(row.key, type=None, meta=row.meta)
        return
    assert policy is not None
    for moment in stored_moments(row, policy):
        yield canonical_text(policy, type=row.type, queue=row.queue, args=row.args, meta=row.meta or {}, at=moment)


def stored_moments(row: Any, policy: UniquePolicy) -> Iterator[datetime]:
    """Yield times in the fixed windows that a stored job's fingerprint may contain, the most likely first.

    An enqueue that waited for a lock chose its window before the wait, and got its ``created_at`` after it.
    """
    yield row.scheduled_at or row.created_at
    if policy.window is Window.FIXED and row.scheduled_at is None:
        assert isinstance(policy.duration, timedelta)
        yield row.created_at - policy.duration


def fingerprint(text: str) -> str:
    """Return the lower-case hex SHA-256 of a canonical text: 64 characters."""
    return hashlib.sha256(text.encode()).hexdigest()


def _single_object(args: Any) -> dict[str, Any]:
    found = object_of(args)
    if found is None:
        raise InvalidPolicy.at(
            "unique.args_keys",
            "needs args that are an object, or an array holding exactly one object",
            hint="Send args as an object, or leave args_keys out.",
        )
    return found
