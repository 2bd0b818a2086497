"""Expect an error by what programs read of it; `tests/refusals.md` keeps the texts."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_ojs_unique.exceptions import OJSError


@contextmanager
def refused(
    error: type[OJSError], field: str | None = None, *, names: str = "", **details: Any
) -> Iterator[pytest.ExceptionInfo[OJSError]]:
    """Expect exactly this class with its code, about this field and with these other details.

    ``names`` is what the message names besides, as a word of its own. A suggestion ends with its question mark:
    without one, the message lists all valid names.
    """
    with pytest.raises(error) as caught:
        yield caught
    found = caught.value
    wanted = {"field": field, **details}
    assert (caught.type, found.code) == (error, error.code)
    assert {name: found.details.get(name) for name in wanted} == wanted, found.message
    assert re.search(rf"(?<!\w){re.escape(names)}(?!\w)", found.message), found.message
