"""Characters that some databases, or some columns of them, cannot store."""

from __future__ import annotations

import re
from typing import Any

from django.db import connections
from django.db.models import Model

_BEYOND_UTF8MB3 = re.compile("[\U00010000-\U0010ffff]")


def storable(text: str) -> str:
    """Replace the characters of a text that some databases refuse in every column: U+0000 and lone surrogates."""
    return text.replace("\x00", "�").encode(errors="replace").decode()


def storable_in(field: Any, using: str, text: str) -> str:
    """Replace what the column of a field cannot store; only a text with emoji or the like costs a query."""
    if text.isascii() or not _BEYOND_UTF8MB3.search(text) or not lacks_characters(field.model, using, field.column):
        return text
    return _BEYOND_UTF8MB3.sub("�", text)


def lacks_characters(model: type[Model], using: str, column: str = "") -> bool:
    """Tell whether a column of the model, or any, cannot store all characters: MariaDB's utf8mb3 has no emoji."""
    if connections[using].vendor != "mysql":
        return False
    with connections[using].cursor() as cursor:
        cursor.execute(
            "SELECT COUNT(*) FROM information_schema.columns WHERE table_schema = DATABASE() AND table_name = %s"
            " AND character_set_name = 'utf8mb3' AND %s IN ('', column_name)",
            [model._meta.db_table, column],
        )
        return bool(cursor.fetchone()[0])
