"""Imports point to a lower floor only (docs: the house)."""

import ast
import sys

import pytest

from tests import layers
from tests.layers import FLOOR_OF, MODULES, imports, own_imports, room_of, upward


@pytest.mark.parametrize("name", MODULES)
def test_every_module_has_a_floor(name):
    assert room_of(name) in FLOOR_OF


@pytest.mark.parametrize("name", MODULES)
def test_imports_point_to_a_lower_floor_only(name):
    assert upward(name) == []


def test_no_modules_import_each_other():
    assert layers.circle() == []


@pytest.mark.parametrize("name", [name for name in MODULES if room_of(name) in ("ojs", "exceptions")])
def test_the_specification_needs_the_standard_library_and_three_packages_only(name):
    outside = {module.partition(".")[0] for module in imports(name)} - set(sys.stdlib_module_names)
    assert outside <= {"rfc8785", "isodate", "cronsim", "django_ojs_unique"}


def test_contributing_shows_the_floors():
    page = (layers.ROOT.parent / "CONTRIBUTING.md").read_text()
    assert layers.markdown() in page, "Take over what `python -m tests.layers --markdown` prints."


@pytest.mark.parametrize("name", MODULES)
def test_a_module_and_its_classes_are_of_a_readable_length(name):
    source = MODULES[name].read_text()
    classes = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.ClassDef)]
    assert len(source.splitlines()) <= 300
    assert max((node.end_lineno - node.lineno + 1 for node in classes), default=0) <= 250


def test_this_test_sees_the_imports():
    assert "ojs.policy" in own_imports("ojs.fingerprint")
    assert "lifecycle" in own_imports("models.moves")
    assert "models" in own_imports("handlers.handler")  # inside a function
    assert "models" in own_imports("handlers.context")  # for the type checker
    assert "django.db" in imports("models.job")


def test_a_circle_and_an_upward_import_are_seen(monkeypatch, tmp_path):
    lower, higher = tmp_path / "lower.py", tmp_path / "higher.py"
    lower.write_text("def later():\n    from . import higher\n")
    higher.write_text("from . import lower\n")
    monkeypatch.setattr(layers, "MODULES", {"lower": lower, "higher": higher})
    monkeypatch.setattr(layers, "FLOOR_OF", {"lower": 0, "higher": 1})
    layers.imports.cache_clear()
    assert (upward("lower"), upward("higher")) == (["higher"], [])
    assert {*layers.circle()} == {"lower", "higher"}


@pytest.mark.parametrize("name", [name for name in MODULES if room_of(name) != "db"])
def test_only_the_room_of_the_databases_asks_for_a_vendor(name):
    tree = ast.parse(MODULES[name].read_text())
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    assert "vendor" not in attributes, "Ask the dialect: db/dialects.py."
