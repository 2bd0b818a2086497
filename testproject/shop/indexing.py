"""Index Python source files: the work of the demo."""

import re
import sysconfig
from collections import Counter
from pathlib import Path, PurePath
from uuid import UUID

from .models import Execution, IndexedFile

DEFINITION = re.compile(rb"^[ \t]*(?:async[ \t]+)?(def|class)[ \t]+\w", re.MULTILINE)
"""The beginning of a definition. `ast.parse` fails at times in Python 3.11, if several threads call it at once."""


def library() -> Path:
    """Return the folder of the running Python's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def source_files() -> list[str]:
    """List the standard library's source files by relative path, without packages that were installed there."""
    root = library()
    relative = (path.relative_to(root) for path in root.rglob("*.py"))
    return sorted(path.as_posix() for path in relative if not {"site-packages", "dist-packages"} & set(path.parts))


def index(path: PurePath, *, job_id: UUID) -> None:
    """Count one file's lines, functions and classes into an IndexedFile."""
    # First, and outside any transaction: a second run must be recorded even if it fails.
    Execution.objects.create(path=path.as_posix(), job_id=job_id)
    source = (library() / path).read_bytes()
    functions, classes = _definitions(source)
    IndexedFile.objects.update_or_create(
        path=path.as_posix(),
        defaults={"lines": len(source.splitlines()), "functions": functions, "classes": classes},
    )


def _definitions(source: bytes) -> tuple[int, int]:
    keywords = Counter(DEFINITION.findall(source))
    return keywords[b"def"], keywords[b"class"]
