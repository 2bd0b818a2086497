"""Lines of JSON in one file, each appended in one step, whoever else writes and whatever becomes of the writer."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from django_ojs_unique import JobContext

FOLDER = Path(os.environ.get("SOAK_FOLDER", "/nowhere"))
LEASE = float(os.environ.get("SOAK_LEASE", "4"))
"""Seconds, of every worker."""


def write(name: str, **line: Any) -> None:
    """Append a line; it survives the end of this process."""
    file = os.open(FOLDER / name, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, json.dumps({**line, "pid": os.getpid(), "at": time.time()}, default=str).encode() + b"\n")
    finally:
        os.close(file)


@contextmanager
def written(context: JobContext) -> Iterator[None]:
    """Write down the start and the end of a run."""
    run = {"job": context.job_id, "token": context.job.lease_token, "attempt": context.attempt}
    write("runs", event="began", **run)
    try:
        yield
    finally:
        write("runs", event="ended", **run)


def read(folder: Path, name: str) -> Iterator[dict[str, Any]]:
    """Yield the lines in the order in which they were written."""
    path = folder / name
    if path.exists():
        with path.open() as lines:
            yield from map(json.loads, lines)
