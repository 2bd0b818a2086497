"""Lists in pages, by cursor or by offset (HTTP binding, "Pagination")."""

from __future__ import annotations

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
from ...wire.schema import Object, count, flag, text, whole

DEFAULT_LIMIT, HIGHEST_LIMIT, HIGHEST_OFFSET = 50, 200, 10_000
FURTHER = "Follow `next_cursor` to go further."

PAGINATION = Object(
    "Pagination",
    {
        "total?": whole("Left out of a list of very many."),
        "has_more": flag(),
        "next_cursor?": text(),
        "limit offset": whole(),
    },
)


def paged(name: str, **lists: Object) -> Object:
    """Describe the answer that has a page of each list."""
    return Object(name, {**{member: [one] for member, one in lists.items()}, "pagination": PAGINATION})


PARAMETERS = {
    "limit": count("How many at most.", 1, HIGHEST_LIMIT, default=DEFAULT_LIMIT),
    "offset": count("How many to leave out.", 0, HIGHEST_OFFSET, hint=FURTHER),
    "cursor": text("The `next_cursor` of the page before."),
    "per_page": count("Another name of `limit`.", 1, HIGHEST_LIMIT),
    "page": count("Instead of `offset`: the number of the page, from 1.", 1, HIGHEST_OFFSET + 1),
}
"""Of the query of a list."""


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
        limit = PARAMETERS[size].read(parameters.get(size, str(DEFAULT_LIMIT)), size)
        offset, cursor = PARAMETERS["offset"].read(parameters.get("offset", "0"), "offset"), parameters.get("cursor")
        if "page" in parameters:
            offset = limit * (
                count("", 1, HIGHEST_OFFSET // limit + 1, hint=FURTHER).read(parameters["page"], "page") - 1
            )
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


def _text(value: Any) -> str:
    return value.isoformat() if hasattr(value, "isoformat") else str(value)
