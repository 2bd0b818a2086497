"""A check of the modules of the installed apps: whether one declares handlers that no process finds."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
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
    found = [
        (config, name)
        for config in apps.get_app_configs()
        for name, file in _modules(config)
        if f"{config.name}.{name}" not in sys.modules and _declares_handlers(file)
    ]
    searched = ", ".join(f"{name}.py" for name in settings.autodiscover_modules)
    return [
        Warning(
            f"{config.name}.{name} declares handlers with @job, but nothing imports it: no worker runs their jobs.",
            hint=f"Only {searched} of each app is searched. {_mend(config, name)}",
            id="django_ojs_unique.W023",
        )
        for config, name in found
    ]


def _mend(config: AppConfig, name: str) -> str:
    if name in LIKELY:
        return f"Add {name!r} to OJS_UNIQUE['AUTODISCOVER_MODULES'], or import the module in {config.name}.jobs."
    return f"Import the module in {config.name}.jobs."


def _modules(config: AppConfig) -> Iterator[tuple[str, Path]]:
    folder = Path(config.path)
    for name in LIKELY:
        files = [folder / f"{name}.py", *sorted((folder / name).rglob("*.py"))]
        for file in files:
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
