"""Lists in pages, by cursor or by offset (HTTP binding, "Pagination")."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from typing import Any

from django.core.signing import BadSignature, Signer
from django.db.models import Q, QuerySet

from ...conf import settings
from ...db.sizes import fitting
from ...exceptions import InvalidRequest

DEFAULT_LIMIT, HIGHEST_LIMIT, HIGHEST_OFFSET = 50, 200, 999_999_999
HIGHEST_PAGE = HIGHEST_OFFSET // HIGHEST_LIMIT
_NUMBER = re.compile(r"[0-9]{1,9}")


@dataclass(frozen=True, slots=True)
class Page:
    """The part of a list that a client wants: ``limit`` entries after the first ``offset``, or after a sort key."""

    limit: int
    offset: int
    after: Sequence[str] | None
    _signer: Signer

    @classmethod
    def read(cls, parameters: Mapping[str, str], of: str) -> Page:
        """Read ``limit``, ``offset`` and ``cursor``. A cursor is valid only for the list named ``of``.

        The OJS client for JavaScript sends ``per_page`` and ``page``. Raises InvalidRequest, which names the parameter.
        """
        size = "per_page" if "per_page" in parameters else "limit"
        limit = _number(parameters, size, DEFAULT_LIMIT, 1, HIGHEST_LIMIT)
        offset, cursor = _number(parameters, "offset", 0, 0, HIGHEST_OFFSET), parameters.get("cursor")
        if "page" in parameters:
            offset = limit * (_number(parameters, "page", 1, 1, HIGHEST_PAGE) - 1)
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

    def of_rows(
        self,
        rows: QuerySet[Any],
        *by: str,
        large: Collection[str] = (),
        copies: int = 1,
        counted: int | None = None,
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the page's rows in the order ``by``, which must be total, and the ``pagination`` object.

        A cursor continues after the last entry that was seen, so no entry comes twice or is left out while others are
        added and removed. ``total`` is exact, so the rows must be few, or counted from an index; or at most ``counted``
        of them are counted, and if there are more, there is no ``total``. ``large`` names the JSON fields that can be
        large: the page ends before they exceed ``OJS_UNIQUE["API"]["MAX_RESPONSE_BYTES"]``. ``copies``: how often the
        answer has them.
        """
        total: int | None = rows.count() if counted is None else rows[: counted + 1].count()
        if counted is not None and total == counted + 1:
            total = None
        fields = [field.removeprefix("-") for field in by]
        if self.after is not None:
            rows = rows.filter(_behind(by, self.after))
        rest, most = rows.order_by(*by)[self.offset :], self.limit
        if large:
            most, _ = fitting(rest, most, settings.api["MAX_RESPONSE_BYTES"] // copies, large)
        return self._shown(rest[: most + 1], most, total, lambda row: [_text(getattr(row, field)) for field in fields])

    def of_names(self, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Return the page's part of sorted names, and the ``pagination`` object."""
        rest = [name for name in names if self.after is None or name > self.after[0]]
        rest = rest[self.offset : self.offset + self.limit + 1]
        return self._shown(rest, self.limit, len(names), lambda name: [name])

    def _shown(
        self, rows: Iterable[Any], most: int, total: int | None, key: Callable[[Any], list[str]]
    ) -> tuple[list[Any], dict[str, Any]]:
        found = list(rows)
        shown, has_more = found[:most], len(found) > most
        pagination: dict[str, Any] = {"has_more": has_more, "limit": self.limit, "offset": self.offset}
        if total is not None:
            pagination["total"] = total
        if has_more:
            pagination["next_cursor"] = self._signer.sign_object(key(shown[-1]))
        return shown, pagination


def read_limit(parameters: Mapping[str, str], default: int, highest: int) -> int:
    """Read ``limit``, from 1 to ``highest``. Raises InvalidRequest."""
    return _number(parameters, "limit", default, 1, highest)


def _behind(by: Sequence[str], after: Sequence[str]) -> Q:
    """Return the condition for the rows that come later in the order; its first part is a range for an index."""
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
