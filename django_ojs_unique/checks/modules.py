"""A check of the modules of the installed apps: whether one declares handlers that no process finds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from django.apps import AppConfig, apps
from django.core.checks import CheckMessage, Warning

from ..conf import settings

PACKAGE = "django_ojs_unique"
LIKELY = ("jobs", "tasks")
"""The modules and packages of an app in which handlers usually are."""


def check_modules(**kwargs: Any) -> list[CheckMessage]:
    """W023: a module declares handlers and nothing imports it, such as an app's ``tasks.py``."""
    searched = settings.autodiscover_modules
    return [
        _lost(config.name, root, lost, searched)
        for config in apps.get_app_configs()
        for root in LIKELY
        if (lost := [name for name, file in _modules(config, root) if _is_lost(f"{config.name}.{name}", file)])
    ]


def _lost(app: str, root: str, modules: Sequence[str], searched: Sequence[str]) -> CheckMessage:
    mends = [] if modules == [root] else [f"Import them in {app}.{root}."]
    if root not in searched:
        mends.append(f"Add {root!r} to OJS_UNIQUE['AUTODISCOVER_MODULES'].")
    names = ", ".join(f"{app}.{name}" for name in modules)
    return Warning(
        f"Handlers are declared with @job in modules that nothing imports, so no worker runs their jobs: {names}.",
        hint=f"The start imports only these modules of each app: {', '.join(searched)}. {' '.join(mends)}",
        id="django_ojs_unique.W023",
    )


def _is_lost(module: str, file: Path) -> bool:
    return module not in sys.modules and _declares_handlers(file)


def _modules(config: AppConfig, root: str) -> Iterator[tuple[str, Path]]:
    """Yield the names, within the app, and the files of a module or of the modules of a package."""
    folder = Path(config.path)
    for file in [folder / f"{root}.py", *sorted((folder / root).rglob("*.py"))]:
        parts = file.relative_to(folder).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), file


def _declares_handlers(file: Path) -> bool:
    """Whether a file that nobody imports decorates a function with our ``job``; it is read, not run."""
    with suppress(OSError, SyntaxError, ValueError):
        source = file.read_text()
        return PACKAGE in source and _is_decorating(ast.parse(source))
    return False


def _is_decorating(module: ast.Module) -> bool:
    names = set()
    for node in ast.walk(module):
        if isinstance(node, ast.ImportFrom) and node.module == PACKAGE:
            names |= {each.asname or each.name for each in node.names if each.name == "job"}
        elif isinstance(node, ast.Import):
            names |= {f"{each.asname or each.name}.job" for each in node.names if each.name == PACKAGE}
    return any(
        isinstance(decorator, ast.Call) and ast.unparse(decorator.func) in names
        for node in ast.walk(module)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))
        for decorator in node.decorator_list
    )
