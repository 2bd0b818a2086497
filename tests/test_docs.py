"""The documentation tells the truth: its code runs, and its tables equal the code."""

import ast
import inspect
import re
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from django.conf import settings

from django_ojs_unique import InvalidPolicy, RetryPolicy, UniquePolicy, checks, conf, exceptions
from django_ojs_unique.handlers import job
from django_ojs_unique.ojs.fingerprint import canonical_text
from django_ojs_unique.ojs.states import MOVES, JobState

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def named(path: Path) -> str:
    return path.name


def text_of(name: str) -> str:
    return (ROOT / name).read_text()


def blocks(path: Path, language: str) -> list[tuple[int, str, str | None]]:
    """Return the code blocks of a page: the number of the first line, the code, and the output if the page shows it."""
    text = path.read_text()
    found = re.finditer(rf"^```{language}\n(.*?)^```\n(?:\n```text\n(.*?)^```$)?", text, re.MULTILINE | re.DOTALL)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1], match[2]) for match in found]


def table(name: str, heading: str) -> list[list[str]]:
    """Return the rows of the table whose first heading is ``heading``, without that line; the back-ticks are gone."""
    lines = text_of(name).split("\n")
    start = next(number for number, line in enumerate(lines) if line.startswith(f"| {heading} |")) + 2
    rows = []
    for line in lines[start:]:
        if not line.startswith("|"):
            break
        rows.append([cell.strip().strip("`") for cell in line.strip("|").split(" | ")])
    return rows


# Code


@pytest.fixture
def modules() -> Iterator[None]:
    """Forget the modules that a page defines."""
    before = set(sys.modules)
    yield
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mysite", "shop"):
            del sys.modules[name]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=named)
def test_the_python_of_a_page_runs(page: Path, handlers: Any, modules: None, capsys: Any) -> None:
    """A block that starts with a path is that module; the rest share a namespace. Output equals but for ids."""
    if page.name == "django-tasks.md" and not hasattr(settings, "TASKS"):
        pytest.skip("Django has no tasks before 6.0, and django-tasks is not installed")
    namespace: dict[str, Any] = {"__name__": "docs"}
    for line, source, output in blocks(page, "python"):
        # Empty lines before the code, so that an error names the line of the page.
        code = compile("\n" * (line - 1) + source, str(page), "exec")
        path = re.match(r"# (\w+)/(\w+)\.py\n", source)
        exec(code, namespace if path is None else a_module(path[1], path[2]))
        printed = capsys.readouterr().out
        assert output is None or without_ids(printed) == without_ids(output)


def without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)


def a_module(package: str, name: str) -> dict[str, Any]:
    parent = sys.modules.setdefault(package, ModuleType(package))
    parent.__path__ = []  # which makes it a package
    module = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
    setattr(parent, name, module)
    return vars(module)


def test_the_readme_shows_code_before_line_40() -> None:
    line, source, _ = blocks(ROOT / "README.md", "python")[2]
    assert "enqueue(" in source
    assert line + source.count("\n") < 40


# Tables


def test_the_settings_are_the_settings() -> None:
    for page in ("README.md", "docs/settings.md"):
        assert {row[0]: ast.literal_eval(row[1]) for row in table(page, "name")} == conf.DEFAULTS


def test_the_settings_of_the_api_are_those() -> None:
    assert {row[0]: ast.literal_eval(row[1]) for row in table("docs/settings.md", "member")} == conf.API_DEFAULTS


def test_the_errors_are_the_errors() -> None:
    classes = {
        name: cls.code
        for name, cls in inspect.getmembers(exceptions, inspect.isclass)
        if issubclass(cls, exceptions.OJSError)
    }
    assert {row[0]: row[1] for row in table("docs/errors.md", "class")} == classes


def test_the_checks_are_the_checks() -> None:
    sources = inspect.getsource(checks) + text_of("django_ojs_unique/tasks/backend.py")
    ids = re.findall(r'id="(django_ojs_unique\.\w+)"', sources)
    assert [row[0] for row in table("docs/checks.md", "id")] == sorted(ids)


def test_the_fields_are_the_fields() -> None:
    policy = [row[0] for row in table("docs/policy.md", "field")]
    assert policy == [field.name for field in fields(UniquePolicy) if field.init]
    assert [row[0] for row in table("README.md", "field")] == policy
    retry = {row[0] for row in table("docs/worker.md", "`RetryPolicy`")}
    assert retry == {field.name for field in fields(RetryPolicy) if field.init}
    assert [row[0] for row in table("docs/worker.md", "argument")] == list(inspect.signature(job).parameters)


@pytest.mark.parametrize("row", table("docs/policy.md", "policy"), ids=lambda row: row[0])
def test_a_refused_policy_says_what_the_page_says(row: list[str]) -> None:
    policy, message = row
    with pytest.raises(InvalidPolicy) as refusal:
        UniquePolicy.parse(ast.literal_eval(policy))
    assert str(refusal.value) == message


@pytest.mark.parametrize("row", table("docs/policy.md", "policy | args"), ids=lambda row: row[1])
def test_a_policy_that_does_not_fit_says_what_the_page_says(row: list[str]) -> None:
    policy, args, meta, message = row
    with pytest.raises(InvalidPolicy) as refusal:
        canonical_text(
            UniquePolicy.parse(ast.literal_eval(policy)),
            type="report.daily",
            queue="default",
            args=ast.literal_eval(args),
            meta=ast.literal_eval(meta),
        )
    assert str(refusal.value) == message


def test_the_diagram_shows_the_moves() -> None:
    moves = [f"    {source} --> {target}\n" for source in MOVES for target in JobState if target in MOVES[source]]
    ((_, drawn, _),) = blocks(ROOT / "docs/states.md", "mermaid")
    assert sorted(drawn.splitlines(keepends=True)) == sorted(["stateDiagram-v2\n", *moves])
    assert {row[0] for row in table("docs/states.md", "state")} == set(JobState)


# Links


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_the_local_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", page.read_text()):
        linked = page.parent / target if target else page
        assert linked.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(linked), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_is_listed_in_the_index() -> None:
    index = text_of("docs/index.md")
    assert [page.name for page in (ROOT / "docs").glob("*.md") if f"({page.name})" not in index] == ["index.md"]
