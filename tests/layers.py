"""The order of the packages, and what each module imports."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

NAME = "django_ojs_unique"
ROOT = Path(__file__).parent.parent / NAME

ORDER = {
    "exceptions": "the errors, with their codes and default messages",
    "signals": "who listens: Django's signals",
    "hooks": "who traces: spans around enqueues and runs",
    "progress": "progress bars on long work",
    "ojs": "the words of the Open Job Spec as pure values: states, durations, canonical text, retries, cron, limits",
    "unique": "what *the same job* means: policy, fingerprint, judge, presets, job keys; pure functions",
    "options": "the options of a job, described once: types, bounds, defaults, storage, names in JSON",
    "conf": "the settings",
    "db": "databases: dialects, statements, sessions, and how strong the promise of uniqueness is on one",
    "handlers": "`@job`, the registry, typed args, redaction, what a job carries along; not backoffs (`ojs`)",
    "lifecycle": "the moves between states, each one conditional UPDATE, and the events that they leave",
    "enqueue": "the heart: from a caller's arguments to one row, or to the answer why not",
    "workflows": "definitions, and the way from the end of one job to the next",
    "operations": "what people do to stored jobs: cancel, retry, enqueue again, remove; verify and repair",
    "models": "the tables, and `Job.objects`",
    "wire": "jobs in the words of the HTTP binding; not HTTP (`api`)",
    "limits": "slots, rates and turns: which jobs may start",
    "execution": "one job's way through the database: claim, run, finalize, leases, atomic handlers",
    "maintenance": "what time drives: promote, rescue, expire, prune, cron",
    "reporting": "each question that people ask, once, for admin, commands, HTTP and metrics",
    "tasks": "`django.tasks`",
    "checks": "system checks; not `jobs verify` (`operations`)",
    "worker": "the process: its loop, pools, upkeep and supervisor",
    "contrib": "Sentry, Prometheus, OpenTelemetry, django-tenants",
    "testing": "helpers for the tests of users",
    "api": "HTTP",
    "admin": "the admin",
    "management": "the commands",
}
"""Each package (or module), and what it knows. A package imports only from those before it."""

FACADES = {
    ("handlers.handler", "models"),
    ("handlers.context", "workflows.results"),
    ("workflows.compose", "models"),
}
"""The imports against the order: within functions of the public names, which the reader expects to lead there."""

ENTRIES = {"", "apps", "context", "idempotency", "integrity", "pytest_plugin"}
"""What may import all of them: the public names, and the entry points of Django and pytest."""


class Import(NamedTuple):
    """An import of a module of ours; ``later``: within a function."""

    by: str
    of: str
    later: bool


def _modules() -> dict[str, Path]:
    """Return the modules of the package by name, with their files, without the migrations."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "migrations":
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = _modules()


def package_of(module: str) -> str:
    """Return the package or module at the top level to which a module belongs."""
    return module.partition(".")[0]


@cache
def tree(module: str) -> ast.Module:
    """Return a module as Python's parser reads it."""
    return ast.parse(MODULES[module].read_text())


def imports(module: str) -> Iterator[Import]:
    """Yield what a module imports of the package, without what only type checkers import."""
    package = module.split(".") if MODULES[module].name == "__init__.py" else module.split(".")[:-1]
    for node, later in _walk(tree(module), later=False):
        base = package[: len(package) - node.level + 1] if node.level else []
        absolute = (node.module or "").split(".") if not node.level else [NAME, *base, *filter(None, [node.module])]
        if absolute[0] != NAME:
            continue
        for alias in node.names:
            inner = ".".join([*absolute[1:], alias.name])
            yield Import(module, inner if inner in MODULES else ".".join(absolute[1:]), later)


def _walk(node: ast.AST, *, later: bool) -> Iterator[tuple[ast.ImportFrom, bool]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom):
            yield child, later
        elif not (isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)):
            yield from _walk(child, later=later or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))
        else:
            yield from (found for branch in child.orelse for found in _walk(branch, later=later))


def against_the_order() -> list[Import]:
    """Return the imports of a package that does not come before the importing one."""
    rank = {name: number for number, name in enumerate(ORDER)}
    return [
        found
        for module in MODULES
        if package_of(module) not in ENTRIES
        for found in imports(module)
        if found.of and package_of(found.of) != package_of(module)
        if rank.get(package_of(found.of), len(rank)) >= rank[package_of(module)]
    ]


def markdown() -> str:
    """Return the table for CONTRIBUTING.md."""
    rows = (f"| `{name}{'/' if (ROOT / name).is_dir() else ''}` | {known} |" for name, known in ORDER.items())
    return "\n".join(["| package | what it knows |", "|---|---|", *rows])


if __name__ == "__main__":
    print(markdown())
