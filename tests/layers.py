"""The floors of the house: which modules there are, and what each may import.

``python -m tests.layers`` prints the floors, each import that points upwards and each circle, and ends with 1 if there
is any. ``--markdown`` prints the table for CONTRIBUTING.md.

Every import counts: also one inside a function, and one for the type checker only.
"""

from __future__ import annotations

import argparse
import ast
import graphlib
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

PACKAGE = "django_ojs_unique"
ROOT = Path(__file__).parent.parent / PACKAGE

FLOORS: list[tuple[str, str]] = [
    ("exceptions bars", "the errors, with their codes and default messages; progress bars"),
    ("ojs", "the specification as pure functions and values; no Django"),
    (
        "conf signals registry instrumentation",
        "settings; signals; the handlers of each type; spans around enqueues and runs",
    ),
    ("db", "databases: the only folder that distinguishes PostgreSQL, MariaDB and SQLite"),
    (
        "lifecycle capabilities context conversion redaction",
        "changes of state, each one guarded UPDATE; how strong the promise of uniqueness is; what jobs carry; from type"
        " hints to JSON and back; what of it nobody is shown",
    ),
    ("events", "the record of what happened to jobs, written in the same transaction"),
    ("unit_of_work", "one change with its events, repeated after a deadlock or a lost race"),
    ("enqueue", "the heart: from the caller's arguments to one row, or to the reason why there is none"),
    ("by_hand", "what a project and its operators do to stored jobs: cancel, retry, revive, enqueue again"),
    ("workflows", "from the definition of a workflow to its rows, and from the ends of its jobs to the next ones"),
    ("managers", "`Job.objects`"),
    ("models", "the tables"),
    ("limits", "how many jobs of a key run at once or start in a time; whose turn it is in a fair queue"),
    ("handlers compose", "the functions that run jobs, and workflows of them: declaration, context, signature"),
    (". idempotency", "the public names; help for handlers that are safe to repeat"),
    ("execution", "claim, run and settle a job, in any kind of worker"),
    ("maintenance integrity", "work that is due at some time; verify, rekey and repair"),
    ("insight operations", "what operators read; what operators and HTTP clients do"),
    ("worker", "the process: its loop, pools and supervisor; workers over HTTP"),
    ("checks prometheus", "system checks; metrics"),
    (
        "api admin tasks management testing opentelemetry sentry tenants",
        "surfaces: they contain no logic, and none imports another",
    ),
    ("apps pytest_plugin", "the entry points of Django and pytest"),
]
"""From the lowest floor to the highest: rooms (modules, or folders with all their modules; "." is the package's own
``__init__``), and what they know."""
FLOOR_OF = {room: number for number, (rooms, _) in enumerate(FLOORS) for room in rooms.split()}


def _modules() -> dict[str, Path]:
    """Return the modules below the package by name, with their files; migrations are no part of the house."""
    found = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "migrations":
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


MODULES = _modules()


@cache
def imports(name: str) -> frozenset[str]:
    """Return the absolute names of the modules that a module imports, wherever in it."""
    package = f"{PACKAGE}.{name}".rstrip(".").split(".")
    if MODULES[name].name != "__init__.py":
        package = package[:-1]
    return frozenset(_imports(tree(name), package))


@cache
def tree(name: str) -> ast.Module:
    """Return a module as Python's parser reads it."""
    return ast.parse(MODULES[name].read_text())


def _imports(tree: ast.Module, package: list[str]) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}"
                yield inner if inner.removeprefix(f"{PACKAGE}.") in MODULES else module


def own_imports(name: str) -> set[str]:
    """Return the modules of the package that a module imports, named from the package root."""
    return {module.removeprefix(PACKAGE).lstrip(".") for module in imports(name) if module.partition(".")[0] == PACKAGE}


def room_of(name: str) -> str:
    """Return the module or the folder at the top level to which a module belongs."""
    return name.partition(".")[0] or "."


def upward(name: str) -> list[str]:
    """Return what a module imports from its own floor, but another room, or from a higher one."""
    room = room_of(name)
    others = (other for other in own_imports(name) if room_of(other) != room)
    return sorted(other for other in others if FLOOR_OF[room_of(other)] >= FLOOR_OF[room])


def circle() -> list[str]:
    """Return modules each of which imports the one before it, and the first the last; empty if there is no circle."""
    try:
        graphlib.TopologicalSorter({name: own_imports(name) - {name} for name in MODULES}).prepare()
    except graphlib.CycleError as error:
        return list(error.args[1])
    return []


def markdown() -> str:
    """Return the floors as the table of CONTRIBUTING.md."""
    lines = ["| floor | rooms | what they know |", "|---|---|---|"]
    for number, (rooms, known) in enumerate(FLOORS):
        shown = " ".join(f"`{_shown(room)}`" for room in rooms.split())
        lines.append(f"| {number} | {shown} | {known} |")
    return "\n".join(lines)


def _shown(room: str) -> str:
    if room == ".":
        return PACKAGE
    return f"{room}/" if (ROOT / room).is_dir() else room


def main() -> int:
    parser = argparse.ArgumentParser("python -m tests.layers", description=__doc__.partition("\n\n")[0])
    parser.add_argument("--markdown", action="store_true", help="print the table for CONTRIBUTING.md")
    if parser.parse_args().markdown:
        print(markdown())
        return 0
    for number, (rooms, known) in enumerate(FLOORS):
        print(f"{number:>2}  {' '.join(map(_shown, rooms.split()))}\n      {known}")
    wrong = [f"{name} -> {other}" for name in MODULES for other in upward(name)]
    around = circle()
    print(f"\n{len(MODULES)} modules, {sum(len(own_imports(name)) for name in MODULES)} imports among them")
    print(f"{len(wrong)} upward", *(f"  {line}" for line in wrong), sep="\n")
    print(f"{1 if around else 0} circles", *([f"  {' <- '.join(around)}"] if around else []), sep="\n")
    return 1 if wrong or around else 0


if __name__ == "__main__":
    sys.exit(main())
