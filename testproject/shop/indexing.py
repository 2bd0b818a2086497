"""Index Python source files: the work of the demo."""

import ast
import sysconfig
from collections.abc import Iterator
from pathlib import Path, PurePath
from uuid import UUID

from .models import Execution, IndexedFile


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
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):  # the tests of the standard library have files that are broken on purpose
        return 0, 0
    functions = classes = 0
    for statement in _statements(tree):
        functions += isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        classes += isinstance(statement, ast.ClassDef)
    return functions, classes


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    """Walk the statements only; an expression cannot contain a function or class definition."""
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        yield node
        for block in ("body", "orelse", "finalbody", "handlers", "cases"):
            children = getattr(node, block, [])
            waiting.extend(children if isinstance(children, list) else [])
