"""Imports point to a lower floor only (docs: the house)."""

import ast
import sys

from tests import layers
from tests.layers import FLOOR_OF, MODULES, imports, own_imports, room_of, tree, upward

PURE = {"rfc8785", "isodate", "cronsim", "django_ojs_unique"}


def test_every_import_points_to_a_lower_floor():
    assert {room_of(name) for name in MODULES} <= {*FLOOR_OF}
    assert {name: found for name in MODULES if (found := upward(name))} == {}
    assert layers.circle() == []


def test_the_specification_needs_the_standard_library_and_three_packages_only():
    pure = [name for name in MODULES if room_of(name) in ("ojs", "exceptions")]
    outside = {name: {module.partition(".")[0] for module in imports(name)} for name in pure}
    assert {name: more for name, found in outside.items() if (more := found - {*sys.stdlib_module_names} - PURE)} == {}


def test_only_the_databases_are_asked_for_a_vendor():
    asks = {
        name
        for name in MODULES
        for node in ast.walk(tree(name))
        if isinstance(node, ast.Attribute) and node.attr == "vendor"
    }
    assert {room_of(name) for name in asks} == {"db"}, f"Ask the dialect, db/dialects.py: {asks}"


def test_contributing_shows_the_floors():
    page = (layers.ROOT.parent / "CONTRIBUTING.md").read_text()
    assert layers.markdown() in page, "Take over what `python -m tests.layers --markdown` prints."


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
    layers.tree.cache_clear()
    assert (upward("lower"), upward("higher")) == (["higher"], [])
    assert {*layers.circle()} == {"lower", "higher"}
