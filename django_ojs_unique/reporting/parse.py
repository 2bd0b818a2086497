"""Read what a person types."""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

from ..exceptions import Message, shorten


def read_id(text: str) -> UUID | None:
    """Read a job's id, with or without its dashes; None for anything else."""
    try:
        return UUID(text)
    except ValueError:
        return None


def fingerprint_begins(digits: str) -> dict[str, str]:
    """Return the filter for fingerprints that begin with ``digits``, which are hexadecimal and in lower case."""
    # A range, not LIKE: indexes answer LIKE under some collations only. In every collation, g sorts after all digits.
    return {"fingerprint__gte": digits, "fingerprint__lt": f"{digits}g"}


def read_json(text: str) -> Any:
    """Read strict JSON: no object has a member twice, and NaN and Infinity are refused.

    Raises ValueError, whose message says what to correct.
    """
    try:
        return json.loads(text, object_pairs_hook=_object, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        template = Message("This is not JSON: line {line}, column {column}: {problem}.")
        raise ValueError(Message(template, line=error.lineno, column=error.colno, problem=error.msg)) from None
    except RecursionError:
        raise ValueError(Message("This is nested too deeply to be read. Flatten it.")) from None
    except _Refused:
        raise
    except ValueError:
        raise ValueError(Message("This has a number of too many digits. Send it as a string.")) from None


class _Refused(ValueError):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members: dict[str, Any] = {}
    for name, value in pairs:
        if name in members:
            raise _Refused(Message("An object has the member {name} twice. Drop one of them.", name=shorten(name)))
        members[name] = value
    return members


def _refuse_constant(name: str) -> None:
    raise _Refused(Message("{name} is not JSON. Send null, or a string.", name=name))
