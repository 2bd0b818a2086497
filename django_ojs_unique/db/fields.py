"""The model fields and the ids that the job table needs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import models
from django.db.models.lookups import IsNull

from ..ojs.canonical import to_nfc
from ..ojs.encoder import encoder
from ..ojs.states import JobState, from_mask, to_mask
from .characters import storable_in

if sys.version_info >= (3, 14):
    from uuid import uuid7
else:
    from uuid_utils.compat import uuid7


if TYPE_CHECKING:
    _Field = models.Field[Any, Any]
else:
    _Field = object


_TO_UNICODE = encoder(ensure_ascii=False)


def new_id() -> UUID:
    """Return a UUIDv7: ordered by time, and within one process strictly increasing (OJS core, "id")."""
    return uuid7()


class StateSetField(models.SmallIntegerField):  # type: ignore[type-arg]
    """A set of job states, kept as a bit mask so that a constraint can read it."""

    def from_db_value(self, value: int | None, expression: Any, connection: Any) -> frozenset[JobState] | None:
        return None if value is None else from_mask(value)

    def to_python(self, value: Any) -> Any:
        return from_mask(value) if isinstance(value, int) else value

    def get_prep_value(self, value: Any) -> int | None:
        if isinstance(value, Iterable) and not isinstance(value, str):
            return to_mask(value)
        return super().get_prep_value(value)  # type: ignore[no-any-return]

    def formfield(self, **kwargs: Any) -> None:
        """Offer no form field: it changes through the manager and the job's methods only."""
        return

    def value_to_string(self, obj: models.Model) -> str:
        return str(self.get_prep_value(self.value_from_object(obj)))


class PayloadField(models.JSONField):
    """JSON of any depth, validated before by `ojs.canonical.plain`.

    It has no column checks: those of Django and MariaDB refuse more than 32 levels.
    """

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        """Read the JSON; return text that was stored manually and cannot be read as it is, like Django does."""
        try:
            return super().from_db_value(value, expression, connection)
        except (ValueError, RecursionError):  # a number of too many digits, or nested too deeply
            return value

    def db_type(self, connection: Any) -> str | None:
        return "longtext" if connection.vendor == "mysql" else super().db_type(connection)

    def db_check(self, connection: Any) -> None:
        return None


class BriefPayloadField(PayloadField):
    """JSON that is an object or an array, of which a large one is not kept: only its size in bytes, a number."""

    LARGEST = 4096

    @classmethod
    def brief(cls, to_json: Callable[[Any], Any]) -> Callable[[Any], Any]:
        """Return the function that writes the JSON text of a value, or of its size."""

        def text_or_size(value: Any) -> Any:
            text = to_json(value)  # at least as long as in UTF-8, as it escapes other characters than ASCII
            if len(text) <= cls.LARGEST or (size := len(_TO_UNICODE(value).encode())) <= cls.LARGEST:
                return text
            return str(size)

        return text_or_size


class ComposedField(models.CharField):  # type: ignore[type-arg]
    """Text in NFC: what is stored, and what is looked for."""

    def get_prep_value(self, value: Any) -> Any:
        return to_nfc(super().get_prep_value(value))


class Sparse(_Field):
    """A field that stores its default as NULL, which takes no space in a row; Python sees the default."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{**kwargs, "null": True})

    def from_db_value(self, value: Any, expression: Any, connection: Any) -> Any:
        if value is None:
            return self.get_default()
        read: Any = getattr(super(), "from_db_value", None)
        return value if read is None else read(value, expression, connection)

    def get_lookup(self, lookup_name: str) -> Any:
        found: Any = super().get_lookup(lookup_name)
        if lookup_name != "exact":
            return found
        return lambda lhs, rhs: IsNull(lhs, True) if rhs == self.get_default() else found(lhs, rhs)

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        return None if value == self.get_default() else super().get_db_prep_save(value, connection)


class SparsePayloadField(Sparse, PayloadField):
    """JSON that is mostly empty."""


class SparseCharField(Sparse, models.CharField):  # type: ignore[type-arg]
    """Text that is mostly empty."""


class FreeTextField(SparseCharField):
    """Text of a handler: no run fails because the column cannot store a character of it, which is replaced."""

    def get_db_prep_save(self, value: Any, connection: Any) -> Any:
        if isinstance(value, str):
            value = storable_in(self, connection.alias, value)
        return super().get_db_prep_save(value, connection)
