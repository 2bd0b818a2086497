"""Lists in pages, by cursor or by offset (HTTP binding, "Pagination")."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from django.core.signing import BadSignature, Signer
from django.db.models import QuerySet

from ...conf import settings
from ...db.sizes import fitting
from ...exceptions import InvalidRequest
from ...reporting.bounded import MOST_LOOKED_AT, behind, first
from ...reporting.job_filters import narrowed
from ...reporting.text import MOST_COUNTED

DEFAULT_LIMIT, HIGHEST_LIMIT, HIGHEST_OFFSET = 50, 200, 10_000
HIGHEST_PAGE = HIGHEST_OFFSET + 1
FURTHER = "Follow `next_cursor` to go further."
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
        offset, cursor = _number(parameters, "offset", 0, 0, HIGHEST_OFFSET, FURTHER), parameters.get("cursor")
        if "page" in parameters:
            offset = limit * (_number(parameters, "page", 1, 1, HIGHEST_OFFSET // limit + 1, FURTHER) - 1)
        signer, after = Signer(salt=f"django_ojs_unique.{of}"), None
        if cursor:
            if offset:
                raise InvalidRequest.at("offset", "cannot be combined with cursor", hint="Leave one of them out.")
            try:
                after = signer.unsign_object(cursor)
            except BadSignature:
                hint = "Send a `next_cursor` of this list, or none to begin anew."
                raise InvalidRequest.at("cursor", "is not a cursor of this list", value=cursor, hint=hint) from None
        return cls(limit, offset, after, signer)

    def of_rows(
        self,
        rows: QuerySet[Any],
        *by: str,
        wanted: Mapping[str, Any] | None = None,
        large: Collection[str] = (),
        copies: int = 1,
    ) -> tuple[list[Any], dict[str, Any]]:
        """Return the page's rows in the order ``by``, which must be total, and the ``pagination`` object.

        A cursor continues after the last entry that was seen, so no entry comes twice or is left out while others are
        added and removed. ``wanted`` are filters that no index knows, as arguments of `QuerySet.filter`: a page looks
        at `MOST_LOOKED_AT` rows, so it can be short, or empty, and have a next one. There is no ``total`` if there are
        more than `MOST_COUNTED` rows, with or without what the filters leave out. ``large`` names the JSON fields that
        can be large: the page ends before they exceed ``OJS_UNIQUE["API"]["MAX_RESPONSE_BYTES"]``. ``copies``: how
        often the answer has them.
        """
        seen = rows[: MOST_COUNTED + 1].count()
        total = None if seen > MOST_COUNTED else narrowed(rows, wanted).count() if wanted else seen
        if self.after is not None:
            rows = rows.filter(behind(by, self.after))
        last = None
        if wanted:
            rows, last = first(rows, by)
            rows = narrowed(rows, wanted)
        rest, most = rows.order_by(*by)[self.offset :], self.limit
        if large:
            most, _ = fitting(rest, most, settings.api["MAX_RESPONSE_BYTES"] // copies, large)
        fields = [field.removeprefix("-") for field in by]
        found = list(rest[: most + 1])
        if last is not None and self.offset and len(found) <= most:
            problem = f"is behind the {MOST_LOOKED_AT:,} rows that a page looks at for this filter"
            raise InvalidRequest.at("offset", problem, value=self.offset, hint=FURTHER)
        return self._shown(found, most, total, lambda row: [getattr(row, field) for field in fields], last)

    def of_names(self, names: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
        """Return the page's part of sorted names, and the ``pagination`` object."""
        rest = [name for name in names if self.after is None or name > self.after[0]]
        rest = rest[self.offset : self.offset + self.limit + 1]
        return self._shown(rest, self.limit, len(names), lambda name: [name])

    def _shown(
        self,
        found: list[Any],
        most: int,
        total: int | None,
        key: Callable[[Any], Sequence[Any]],
        last: Sequence[Any] | None = None,
    ) -> tuple[list[Any], dict[str, Any]]:
        if len(found) > most:
            last = key(found[most - 1])
        pagination: dict[str, Any] = {"has_more": last is not None, "limit": self.limit, "offset": self.offset}
        if total is not None:
            pagination["total"] = total
        if last is not None:
            pagination["next_cursor"] = self._signer.sign_object(list(map(_text, last)))
        return found[:most], pagination


def read_limit(parameters: Mapping[str, str], default: int, highest: int) -> int:
    """Read ``limit``, from 1 to ``highest``. Raises InvalidRequest."""
    return _number(parameters, "limit", default, 1, highest)


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def _number(parameters: Mapping[str, str], name: str, default: int, lowest: int, highest: int, hint: str = "") -> int:
    text = parameters.get(name, str(default))
    if not _NUMBER.fullmatch(text) or not lowest <= int(text) <= highest:
        raise InvalidRequest.at(name, f"must be a whole number from {lowest} to {highest}", value=text, hint=hint)
    return int(text)
