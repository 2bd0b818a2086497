"""Database settings from a URL."""

from pathlib import Path
from typing import Any
from urllib.parse import quote

import dj_database_url


def database(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for a URL, with the options that SQLite needs under a worker."""
    settings: dict[str, Any] = dict(dj_database_url.parse(url))
    if settings["ENGINE"] == "django.db.backends.sqlite3":
        settings["OPTIONS"] = {
            # A transaction takes the write lock at its start and waits for it, instead of failing half way.
            "transaction_mode": "IMMEDIATE",
            # Readers and the writer do not wait for each other, and a commit does not wait for the disk.
            "init_command": "PRAGMA journal_mode=WAL; PRAGMA synchronous=NORMAL",
            "timeout": 30,
        }
    return settings


def sqlite_url(path: Path) -> str:
    """Return the URL of a SQLite file, whatever characters its folders have."""
    return f"sqlite:///{quote(path.as_posix())}"
