"""Statements: tell from the text of a statement what it leaves in the session of its connection."""

from __future__ import annotations

import re
from enum import Enum, auto
from functools import lru_cache
from typing import Any

LONGEST_KEPT = 10_000
"""The longest statement, in characters, whose effects are cached."""


class Effect(Enum):
    """What stays in the session after a statement."""

    BEGINS = auto()
    ENDS = auto()
    LOCKS = auto()
    UNLOCKS = auto()
    UNLOCKS_ALL = auto()
    CONFIGURES = auto()
    """It changes the session, unless its last parameter limits the change to the transaction."""
    CHANGES = auto()


Effects = tuple[Effect, ...]

_HARMLESS = {
    "",
    *("select", "insert", "update", "delete", "with", "values", "replace", "merge", "savepoint", "release", "explain"),
    *("create", "alter", "drop", "truncate", "comment", "analyze", "vacuum", "refresh", "reindex", "copy", "notify"),
    *("call", "do", "show", "unlock", "table"),
}
"""First words of statements that change only rows and tables. Any other word counts as a change of the session."""
_WRITING = re.compile(r"\b(?:insert|update|delete|merge|replace|truncate|create|alter|drop|copy|load)\b")
_FIRST = re.compile(r"(?:[\s(]|--[^\n]*(?:\n|$)|/\*.*?\*/)*(\w*)\s*(\w*)", re.DOTALL)
_TEMPORARY = re.compile(
    r"\b(?:create|into)\s+(?:or\s+replace\s+)?(?:local\s+|global\s+)?temp(?:orary)?\b(?!.*\bon\s+commit\s+drop\b)",
    re.DOTALL,
)
_FUNCTION = re.compile(
    r"\b(?:(?P<locks>pg_(?:try_)?advisory_lock(?:_shared)?|get_lock)"
    r"|(?P<unlocks>pg_advisory_unlock(?:_shared)?|release_lock)"
    r"|(?P<all>pg_advisory_unlock_all|release_all_locks)"
    r"|(?P<configures>set_config))\s*\("
)
_CONFIGURES_TRANSACTION = re.compile(r"[^()]*,\s*(?:is_local\s*(?:=>|:=)\s*)?true\s*\)")


def effects_of(sql: Any, connection: Any) -> Effects:
    """Return the effects of a statement, in order; most statements have none."""
    if not isinstance(sql, str):
        try:
            sql = sql.as_string(connection.connection)  # psycopg's composed SQL
        except Exception:
            return (Effect.CHANGES,)
    if len(sql) <= LONGEST_KEPT:
        return _remembered(sql, connection.vendor)
    return _effects(sql, connection.vendor)


def writes(sql: Any, connection: Any) -> bool:
    """Tell whether a statement writes rows or tables, by its first word; after WITH, by any of its words."""
    if not isinstance(sql, str):
        try:
            sql = sql.as_string(connection.connection)
        except Exception:
            return False
    text = sql[:LONGEST_KEPT].lower()
    found = _FIRST.match(text)
    assert found is not None
    return _WRITING.search(text if found[1] == "with" else found[1]) is not None


def _effects(sql: str, vendor: str) -> Effects:
    text = sql.lower()
    effects: list[Effect] = []
    for part in text.split(";"):  # also inside a literal: at worst a connection is closed needlessly
        effects += _of_first_words(part, vendor)
    if "temp" in text and _TEMPORARY.search(text):
        effects.append(Effect.CHANGES)
    if "_lock" in text or "_unlock" in text or "set_config" in text:
        for found in _FUNCTION.finditer(text):
            effects += _of_function(found)
    return tuple(effects)


_remembered = lru_cache(maxsize=1_000)(_effects)


def _of_first_words(part: str, vendor: str) -> Effects:
    found = _FIRST.match(part)
    assert found is not None
    first, second = found.groups()
    if first in _HARMLESS or (first == "set" and second == "statement"):
        return ()
    if vendor == "postgresql" and (
        first == "lock" or (first == "set" and second in ("local", "transaction", "constraints"))
    ):
        return ()
    if first == "begin" or (first == "start" and second == "transaction"):
        return (Effect.BEGINS,)
    if first in ("commit", "rollback", "end", "abort"):
        if re.search(r"\band\s+chain\b", part):
            return (Effect.BEGINS,)
        return () if re.search(r"\bto\b", part) else (Effect.ENDS,)
    return (Effect.CHANGES,)


def _of_function(found: re.Match[str]) -> Effects:
    match found.lastgroup:
        case "locks":
            return (Effect.LOCKS,)
        case "unlocks":
            return (Effect.UNLOCKS,)
        case "all":
            return (Effect.UNLOCKS_ALL,)
    if _CONFIGURES_TRANSACTION.match(found.string, found.end()):
        return ()
    return (Effect.CONFIGURES,)
