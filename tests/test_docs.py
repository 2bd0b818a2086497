"""The documentation tells the truth: whatever the language of a block, something runs it, or reads it."""

import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sentry_sdk
from django.conf import settings
from django.core.management import CommandError, get_commands, load_command_class
from django.db import DatabaseError, connection

from django_ojs_unique import hooks
from django_ojs_unique.signals import job_discarded
from tests import tutorial
from tests.support.pages import ROOT, a_module, blocks, text_of

PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLLOWED = [ROOT / page for page in tutorial.PAGES]
"""`tests.tutorial` does all that they say."""
FOREIGN = ("coming-from-", "migrate-from-")
"""Pages that begin thus show other systems' code beside ours."""
OURS = [page for page in PAGES if not page.name.startswith(FOREIGN)]


def named(path: Path) -> str:
    return path.name


# Python


@pytest.fixture
def modules(monkeypatch: Any) -> Iterator[None]:
    """Forget the modules that a page defines, and what it lets Sentry do; Sentry's SDK patches nothing else here."""
    before, tracer = set(sys.modules), hooks.tracer()
    plain = partial(sentry_sdk.init, auto_enabling_integrations=False, default_integrations=False)
    monkeypatch.setattr(sentry_sdk, "init", plain)
    yield
    plain()
    hooks.trace_with(tracer)
    job_discarded.disconnect(dispatch_uid="django_ojs_unique.contrib.sentry")
    for name in set(sys.modules) - before:
        if name.partition(".")[0] in ("mysite", "shop"):
            del sys.modules[name]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python") and page not in FOLLOWED], ids=named)
def test_the_python_of_a_page_runs(page: Path, handlers: Any, modules: None, capsys: Any) -> None:
    """A block that starts with a path is that module; the rest share a namespace. Output equals but for ids."""
    if page.name == "django-tasks.md" and not hasattr(settings, "TASKS"):
        pytest.skip("Django has no tasks before 6.0, and django-tasks is not installed")
    namespace: dict[str, Any] = {"__name__": "docs"}
    for line, source, output in blocks(page, "python"):
        # Empty lines before the code, so that an error names the line of the page.
        code = compile("\n" * (line - 1) + source, str(page), "exec")
        path = re.match(r"# (\w+)/(\w+)\.py(?:, at the end)?\n", source)
        exec(code, namespace if path is None else a_module(path[1], path[2]))
        printed = capsys.readouterr().out
        assert output is None or without_ids(printed) == without_ids(output)


def without_ids(text: str) -> str:
    return re.sub(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", "<id>", text)


def test_the_readme_shows_code_before_line_40_and_ends_after_two_screens() -> None:
    line, source, _ = blocks(ROOT / "README.md", "python")[2]
    assert "enqueue(" in source
    assert line + source.count("\n") < 40
    assert text_of("README.md").count("\n") <= 120


# Every other language


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each command; where some lines begin with a prompt, the others are output."""
    lines = script.splitlines()
    if any(line.startswith("$ ") for line in lines):
        lines = [line.removeprefix("$ ") for line in lines if line.startswith("$ ")]
    text = ""
    for line in lines:
        text += f"{line}\n"
        try:
            words = shlex.split(text.replace("\\\n", " "), comments=True)
        except ValueError:  # a quote that a later line closes
            continue
        if not line.endswith("\\"):
            yield words
            text = ""
    assert not text, f"a quote is not closed: {text}"


def check_shell(page: Path, script: str) -> None:
    if "$ " not in script:
        subprocess.run(["bash", "-n"], input=script, text=True, check=True)
    targets = re.findall(r"^(\w+):", text_of("Makefile"), re.MULTILINE)
    for words in commands(script):
        check_command(page, words)
        if words[:1] == ["make"]:
            assert {word for word in words[1:] if "=" not in word} <= set(targets), words


def check_command(page: Path, words: list[str]) -> None:
    """Have the command's own parser read what follows ``manage.py``."""
    place = next((place for place, word in enumerate(words) if word.endswith("manage.py")), None)
    if place is None:
        return
    name, *arguments = words[place + 1 :]
    end = next((place for place, word in enumerate(arguments) if word in ("|", "||", "&&", ";", "&", ">")), None)
    arguments = [re.sub(r"(?<=--database=).*", "default", word) for word in arguments[:end]]
    for place, word in enumerate(arguments[:-1]):
        if word == "--database":
            arguments[place + 1] = "default"
    if name not in get_commands():
        assert page.name.startswith(FOREIGN) or name in ("demo", "serve"), f"there is no command {name}"
        return
    app = get_commands()[name]
    command = load_command_class(app, name) if isinstance(app, str) else app
    try:
        command.create_parser("manage.py", name).parse_args(arguments)
    except (CommandError, SystemExit) as error:
        pytest.fail(f"manage.py {shlex.join([name, *arguments])}: {error}")


def check_json(page: Path, text: str) -> None:
    json.loads(text)


def check_foreign(page: Path, text: str) -> None:
    is_about_others = page.name.startswith((*FOREIGN, "from-sql"))
    assert is_about_others, "only a page about another system, or for other languages, may show their code"


def check_foreign_python(page: Path, text: str) -> None:
    """Compile it; beside other systems' code it may be what the tests under themes run, word for word."""
    if text not in (ROOT / "tests/themes/recipe/admin.py").read_text():
        check_foreign(page, text)
    compile(text, str(page), "exec")


def checked_elsewhere(page: Path, text: str) -> None:
    """Python and SQL run in tests of their own, and the docs build runs autodoc."""


CHECKS: dict[str, Callable[[Path, str], None]] = {
    "python": checked_elsewhere,
    "sql": checked_elsewhere,
    "plpgsql": checked_elsewhere,
    "{eval-rst}": checked_elsewhere,
    "console": check_shell,
    "sh": check_shell,
    "json": check_json,
    "py": check_foreign_python,
    "ruby": check_foreign,
    "go": check_foreign,
}


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_every_block_of_a_page_is_checked(page: Path) -> None:
    text, above, end = page.read_text(), "", 0
    assert not re.search(r"^[ \t]+(```|~~~)|^~~~", text, re.MULTILINE), "a block is indented, or begins with ~~~"
    for block in re.finditer(r"^```([^\n]*)\n(.*?)^```\n", text, re.MULTILINE | re.DOTALL):
        language, source = block.groups()
        where = f"line {text.count(chr(10), 0, block.start()) + 1}"
        if language == "text":
            is_output = above == "python" and text[end : block.start()] == "\n"
            assert is_output or page in FOLLOWED, f"{where}: output of what?"
        else:
            assert language in CHECKS, f"{where}: nothing checks {language or 'a block without a language'}"
            CHECKS[language](page, source)
        above, end = language, block.end()


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_a_page_works_in_a_clone_of_any_name(page: Path) -> None:
    assert not re.search(r"(\.\./|\bcd )django-ojs-unique", page.read_text())


@pytest.mark.django_db
@pytest.mark.every_database
@pytest.mark.parametrize("page", [page for page in OURS if blocks(page, "sql")], ids=named)
def test_the_sql_of_a_page_runs(page: Path) -> None:
    if connection.vendor != "postgresql":
        pytest.skip("the SQL of the pages is PostgreSQL's")
    for line, source, _ in blocks(page, "sql"):
        if "shop_order" in source:  # tests/maintenance/test_from_sql.py runs it, on its own database
            continue
        with connection.cursor() as cursor:
            try:
                cursor.execute(source)
            except DatabaseError as error:
                pytest.fail(f"line {line}: {error}")
