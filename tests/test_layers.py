"""Imports point to a lower layer only (docs: the house)."""

import ast
import graphlib
from pathlib import Path

import pytest

import django_ojs_unique

ROOT = Path(django_ojs_unique.__file__).parent
LAYERS = [
    {"exceptions"},
    {"ojs"},
    {"conf", "control", "signals", "registry", "fields", "constraints", "transactions", "tracing"},
    {"lifecycle", "capabilities", "outcomes", "races", "request", "after_commit"},
    {"admission"},
    {"events"},
    {"keyed"},
    {"enqueue"},
    {"explain", "ledger"},
    {"batch", "revival"},
    {"managers"},
    {"models", "handlers"},
    {"worker", "idempotency", "upkeep", "insight", "operations", "resolve"},
    {"checks"},
    {"prometheus"},
    {"admin", "api", "tasks", "apps", "management", "opentelemetry", "testing", "pytest_plugin", ""},
]
"""Modules, packages with all their modules, and "" for the package root, from the lowest layer to the highest."""
LAYER_OF = {name: number for number, names in enumerate(LAYERS) for name in names}


def modules():
    """Return the module names below the package root and their files; migrations are no part of the house."""
    files = {}
    for file in sorted(ROOT.rglob("*.py")):
        parts = file.relative_to(ROOT).with_suffix("").parts
        if parts[0] != "migrations":
            files[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return files


MODULES = modules()


def imports(name):
    """Yield what a module imports when it is imported: absolute module names."""
    file = MODULES[name]
    package = f"django_ojs_unique.{name}".rstrip(".").split(".")
    if file.name != "__init__.py":
        package = package[:-1]
    for node in statements(ast.parse(file.read_text()).body):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        else:
            base = [*package[: len(package) - node.level + 1]] if node.level else []
            module = ".".join([*base, *([node.module] if node.module else [])])
            for alias in node.names:
                inner = f"{module}.{alias.name}".removeprefix("django_ojs_unique.")
                yield f"{module}.{alias.name}" if inner in MODULES else module


def statements(body):
    """Yield the imports that run at import time: not those in functions or for the type checker."""
    for node in body:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield node
        elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            yield from statements(node.orelse)
        else:
            for field in ("body", "orelse", "finalbody", "handlers"):
                yield from statements(getattr(node, field, []))


def own_imports(name):
    """Yield the modules of the package that a module imports, named from the package root."""
    for module in imports(name):
        if module.split(".")[0] == "django_ojs_unique":
            yield module.removeprefix("django_ojs_unique").lstrip(".")


def unit(name):
    return name.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_layer(name):
    assert unit(name) in LAYER_OF


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_to_a_lower_layer_only(name):
    upward = [
        other
        for other in own_imports(name)
        if unit(other) != unit(name) and LAYER_OF[unit(other)] >= LAYER_OF[unit(name)]
    ]
    assert upward == []


def test_no_modules_import_each_other():
    graphlib.TopologicalSorter({name: set(own_imports(name)) for name in MODULES}).prepare()


@pytest.mark.parametrize("name", [name for name in MODULES if unit(name) in ("ojs", "exceptions")])
def test_the_specification_needs_no_django(name):
    assert [module for module in imports(name) if unit(module) == "django"] == []


@pytest.mark.parametrize("name", [name for name in MODULES if unit(name) == "ojs"])
def test_the_specification_needs_the_standard_library_and_three_packages_only(name):
    import sys

    outside = {unit(module) for module in imports(name)} - set(sys.stdlib_module_names)
    assert outside <= {"rfc8785", "isodate", "cronsim", "django_ojs_unique"}


def test_this_test_sees_the_imports():
    assert "ojs.policy" in set(own_imports("ojs.fingerprint"))
    assert "lifecycle" in set(own_imports("models.job"))
    assert "models" not in set(own_imports("handlers"))
    assert "django.db" in set(imports("models.job"))
