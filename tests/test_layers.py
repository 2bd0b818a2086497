"""Each package imports only from those above it in `layers.ORDER`."""

import ast
import sys

from tests import layers
from tests.layers import FACADES, MODULES, ORDER, Import, against_the_order, imports, package_of, tree

PURE = {"rfc8785", "isodate", "cronsim", "django_ojs_unique"}


def test_a_package_imports_only_from_those_above_it():
    assert {package_of(module) for module in MODULES} - layers.ENTRIES == {*ORDER}
    assert {(by, of) for by, of, _ in against_the_order()} == FACADES
    assert all(found.later for found in against_the_order())


def test_the_specification_needs_the_standard_library_and_three_packages_only():
    outside = {
        (module, name)
        for module in MODULES
        if package_of(module) in ("ojs", "unique", "exceptions")
        for node in ast.walk(tree(module))
        for name in _outside(node)
    }
    assert {found for found in outside if found[1] not in {*sys.stdlib_module_names} | PURE} == set()


def _outside(node: ast.AST) -> list[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
    if isinstance(node, ast.ImportFrom) and not node.level:
        names = [node.module or ""]
    return [name.partition(".")[0] for name in names]


def test_only_the_databases_are_asked_for_a_vendor():
    asks = {
        module
        for module in MODULES
        for node in ast.walk(tree(module))
        if isinstance(node, ast.Attribute) and node.attr == "vendor"
    }
    assert {package_of(module) for module in asks} == {"db"}, f"Ask the dialect, db/dialects.py: {asks}"


HOSTS_CLOCK = {("timezone", "now"), ("datetime", "now"), ("datetime", "utcnow"), ("date", "today"), ("time", "time")}
MAY_READ_IT = {
    "db.clock": "adds the offset of the database's clock",
    "testing.time_travel": "moves the host's clock itself",
    "checks.handlers": "compares lengths of time, and runs without a database",
    "contrib.prometheus.collector": "names gauges without a value",
    "execution.run_result": "is the default for a result that nobody has timed, as in tests",
    **dict.fromkeys(
        ["models.cron", "models.event", "models.job", "models.limit", "models.suppressed", "models.workflow"],
        "is the default for a row that is written manually: the package itself gives its rows the database's time",
    ),
}
"""The modules that read the host's clock, which decides nothing: all others call `database_now`."""


def test_only_the_database_tells_the_time():
    readers = {
        module
        for module in MODULES
        for node in ast.walk(tree(module))
        for names in _names(node)
        if names in HOSTS_CLOCK
    }
    assert readers == MAY_READ_IT.keys()


def _names(node: ast.AST) -> list[tuple[str, str]]:
    if isinstance(node, ast.ImportFrom):
        return [((node.module or "").rpartition(".")[2], alias.name) for alias in node.names]
    return [(getattr(node.value, "id", ""), node.attr)] if isinstance(node, ast.Attribute) else []


def test_contributing_shows_the_order():
    page = (layers.ROOT.parent / "CONTRIBUTING.md").read_text()
    assert layers.markdown() in page, "Take over what `python -m tests.layers` prints."


def test_imports_are_seen_wherever_they_stand(monkeypatch, tmp_path):
    assert Import("unique.fingerprint", "unique.policy", False) in imports("unique.fingerprint")
    assert Import("handlers.handler", "models", True) in imports("handlers.handler")
    module = tmp_path / "wrong.py"
    module.write_text("from .. import admin\nfrom ..admin.base import x\ndef f():\n    from ..api import y\n")
    monkeypatch.setattr(layers, "MODULES", {**MODULES, "ojs.wrong": module})
    tree.cache_clear()
    wrong = {found for found in against_the_order() if found.by == "ojs.wrong"}
    assert wrong == {
        Import("ojs.wrong", "admin", False),
        Import("ojs.wrong", "admin.base", False),
        Import("ojs.wrong", "api", True),
    }
