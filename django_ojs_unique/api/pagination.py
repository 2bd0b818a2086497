"""Lists in pages, by cursor or by offset (HTTP binding, "Pagination")."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from django.core.signing import BadSignature, Signer
from django.db.models import Q, QuerySet

from ..exceptions import InvalidRequest

DEFAULT_LIMIT, HIGHEST_LIMIT, HIGHEST_OFFSET = 50, 200, 999_999_999
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Page:
    """Which part of a list a client wants: ``limit`` entries after the ``offset`` first ones, or after a sort key."""

    limit: int
    offset: int
    after: Sequence[str] | None
    _signer: Signer

    @classmethod
    def read(cls, parameters: Mapping[str, str], of: str) -> Page:
        """Read ``limit``, ``offset`` and ``cursor``; ``of`` names the list, whose cursors serve for no other one.

        Raises InvalidRequest, which names the parameter.
        """
        limit = read_limit(parameters, DEFAULT_LIMIT, HIGHEST_LIMIT)
        offset, cursor = _number(parameters, "offset", 0, 0, HIGHEST_OFFSET), parameters.get("cursor")
        signer, after = Signer(salt=f"django_ojs_unique.{of}"), None
        if cursor:
            if offset:
                raise InvalidRequest.at("offset", "cannot be combined with cursor", mend="Leave one of them out.")
            try:
                after = signer.unsign_object(cursor)
            except BadSignature:
                mend = "Send a `next_cursor` of this list, or none to begin anew."
                raise InvalidRequest.at("cursor", "is not a cursor of this list", value=cursor, mend=mend) from None
        return cls(limit, offset, after, signer)

    def of_rows(self, rows: QuerySet[Any], *by: str) -> tuple[list[Any], dict[str, Any]]:
        """Return the page's part of rows in the order ``by``, which must be total, and what to say of it.

        A cursor goes on behind the last entry that was seen, so that none comes twice or is left out while others come
        and go. ``total`` is exact: the rows must be few, or counted from an index.
        """
        total = rows.count()
        fields = [field.removeprefix("-") for field in by]
        if self.after is not None:
            rows = rows.filter(_behind(by, self.after))
        found = list(rows.order_by(*by)[self.offset : self.offset + self.limit + 1])
        return self._shown(found, total, lambda row: [_text(getattr(row, field)) for field in fields])

    def of_names(self, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Return the page's part of sorted names, and what to say of it."""
        rest = [name for name in names if self.after is None or name > self.after[0]]
        return self._shown(rest[self.offset : self.offset + self.limit + 1], len(names), lambda name: [name])

    def _shown(self, found: list[Any], total: int, key: Callable[[Any], list[str]]) -> tuple[list[Any], dict[str, Any]]:
        shown, has_more = found[: self.limit], len(found) > self.limit
        pagination: dict[str, Any] = {
            "total": total,
            "has_more": has_more,
            "limit": self.limit,
            "offset": self.offset,
        }
        if has_more:
            pagination["next_cursor"] = self._signer.sign_object(key(shown[-1]))
        return shown, pagination


def read_limit(parameters: Mapping[str, str], default: int, highest: int) -> int:
    """Read how many entries a client wants at most. Raises InvalidRequest."""
    return _number(parameters, "limit", default, 1, highest)


def _behind(by: Sequence[str], after: Sequence[str]) -> Q:
    """Return the condition of the rows that come later in the order; its first part is a range for an index."""
    same, later = Q(), []
    for field, value in zip(by, after, strict=True):
        name, side = field.removeprefix("-"), "lt" if field.startswith("-") else "gt"
        later.append(same & Q(**{f"{name}__{side}": value}))
        same &= Q(**{name: value})
    first = by[0].removeprefix("-")
    side = "lte" if by[0].startswith("-") else "gte"
    return Q(**{f"{first}__{side}": after[0]}) & reduce(operator.or_, later)


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _number(parameters: Mapping[str, str], name: str, default: int, lowest: int, highest: int) -> int:
    text = parameters.get(name, str(default))
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
        raise InvalidRequest.at(name, f"must be a whole number from {lowest} to {highest}", value=text)
    return int(text)
