"""Read a unique policy, also in the words that the OJS clients send (docs: HTTP, "Clients that others wrote")."""

from __future__ import annotations

from typing import Any

from ...exceptions import InvalidPolicy
from ...ojs.durations import format_duration
from ...unique.policy import DIMENSIONS, OnConflict
from .moments import read_milliseconds

USE_EXISTING = "use_existing"
"""What the OpenAPI document of OJS calls `OnConflict.IGNORE`."""
_KEYS = "Write `keys`, and `args_keys` for members of args."


def read_unique(policy: Any, args: Any, places: dict[str, str]) -> Any:
    """Return a policy with the specification's members in the place of ``key``, ``period_ms`` and ``use_existing``.

    Note in ``places`` which member the client wrote. Raises InvalidRequest for what could mean two things.
    """
    if not isinstance(policy, dict):
        return policy
    read = {name: value for name, value in policy.items() if name not in ("key", "period_ms")}
    if (key := policy.get("key")) is not None:
        member, names = _read_key(key, read, args)
        read[member], places[f"unique.{member}"] = names, f"{places['unique']}.key"
        if member == "args_keys":
            read["keys"] = ["type", "args"]
    if (period := policy.get("period_ms")) is not None:
        if read.get("period") is not None:
            raise InvalidPolicy.at("unique.period_ms", "says the same as period", hint="Leave one of them out.")
        read["period"] = format_duration(read_milliseconds(period, "unique.period_ms"))
        places["unique.period"] = f"{places['unique']}.period_ms"
    if read.get("on_conflict") == USE_EXISTING:
        read["on_conflict"] = str(OnConflict.IGNORE)
    return read


def _read_key(key: Any, policy: dict[str, Any], args: Any) -> tuple[str, list[str]]:
    """Return whether ``key`` means ``keys`` or ``args_keys``, and the names.

    The Python client sends dimensions; the Go and JavaScript clients send members of args. Only one of the two is
    possible, or the key is refused: the wrong one would make other jobs duplicates than the client meant.
    """
    field = "unique.key"
    if policy.get("keys") is not None:
        raise InvalidPolicy.at(field, "says the same as keys", hint="Leave one of them out.")
    if not isinstance(key, list) or not key or not all(isinstance(name, str) for name in key):
        raise InvalidPolicy.at(field, "must be a list of at least one name", value=key, hint=_KEYS)
    members = set() if policy.get("args_keys") is not None else _members(args)
    are_dimensions, are_members = set(DIMENSIONS).issuperset(key), members.issuperset(key)
    if are_dimensions and are_members:
        problem = "can mean dimensions of the job, and members of args with the same names"
        raise InvalidPolicy.at(field, problem, value=key, hint=f"{_KEYS} If your client cannot, rename the members.")
    if are_dimensions or are_members:
        return ("keys" if are_dimensions else "args_keys"), key
    problem = f"must name only dimensions ({', '.join(DIMENSIONS)}), or only members of args"
    raise InvalidPolicy.at(field, problem, value=key, hint=_KEYS)


def _members(args: Any) -> set[str]:
    """Return the names that ``args_keys`` may contain: of an object, or of the only object in an array."""
    if isinstance(args, list) and len(args) == 1:
        args = args[0]
    return set(args) if isinstance(args, dict) else set()
