"""Extract what pages say into the catalogues, and compile these: `make messages`, or `python -m tests.messages`.

``python -m tests.messages de`` makes the catalogue of a new language. No system tool is needed: Babel reads and writes.
"""

from __future__ import annotations

import ast
import io
import sys
from collections.abc import Iterator
from pathlib import Path

from babel.messages.catalog import Catalog
from babel.messages.extract import extract
from babel.messages.mofile import read_mo, write_mo
from babel.messages.pofile import read_po, write_po
from django.utils.translation.template import templatize

PACKAGE = Path(__file__).parent.parent / "django_ojs_unique"
LOCALE = PACKAGE / "locale"
KEYWORDS = {
    **dict.fromkeys(("_", "gettext", "gettext_lazy", "gettext_noop", "noop", "Message", "say"), (1,)),
    **dict.fromkeys(("ngettext", "ngettext_lazy"), (1, 2)),
}

BUILDERS = {"at", "invalid", "_invalid", "_wrong"}
"""The functions that build an error from a field, a problem and a hint."""
SHOWN_BY_FORMS = ("ojs", "unique", "enqueue", "models")
FOR_CODE = {"presets", "on_commit", "items", "bulk", "event", "managers"}
"""The packages whose errors the forms of the admin show, and the modules in them whose errors only code gets."""


def template() -> Catalog:
    """Return the catalogue of all texts of the package, without translations."""
    found = Catalog(project="django-ojs-unique", fuzzy=False)
    for path, line, message in _texts():
        flags = ["python-brace-format"] if "{" in str(message) else []
        found.add(message, locations=[(path.relative_to(PACKAGE).as_posix(), line)], flags=flags)
    return found


def catalogue(language: str) -> Catalog:
    """Read the translations of a language; an empty catalogue if there are none."""
    path = po(language)
    if not path.exists():
        return Catalog(locale=language, project="django-ojs-unique", fuzzy=False)
    with path.open("rb") as file:
        return read_po(file, locale=language)


def updated(language: str) -> Catalog:
    """Return the catalogue of a language with the texts of today; a text that is new has no translation."""
    found = catalogue(language)
    found.update(template(), no_fuzzy_matching=True)
    found.obsolete.clear()
    return found


def compiled(language: str) -> Catalog:
    """Read the compiled translations of a language, which are what Django reads."""
    with mo(language).open("rb") as file:
        return read_mo(file)


def po(language: str) -> Path:
    return LOCALE / language / "LC_MESSAGES" / "django.po"


def mo(language: str) -> Path:
    return po(language).with_suffix(".mo")


def languages() -> list[str]:
    return sorted(path.name for path in LOCALE.iterdir() if path.is_dir())


def shown_by_forms() -> list[Path]:
    """Return the modules whose errors the forms of the admin show."""
    found = (path for folder in SHOWN_BY_FORMS for path in (PACKAGE / folder).glob("*.py"))
    return sorted(path for path in found if path.stem not in FOR_CODE)


def problems(path: Path) -> Iterator[ast.expr]:
    """Yield what a module says is wrong with a field, and what to write instead."""
    for node in ast.walk(ast.parse(path.read_text())):
        found: list[ast.expr] = []
        if isinstance(node, ast.Call) and _name(node) in BUILDERS:
            found = [*node.args[1:2], *node.args[3:4], *(each.value for each in node.keywords if each.arg == "hint")]
        elif isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") in ("problem", "hint"):
            found = [node.value]
        for each in found:
            parts = (each.body, each.orelse) if isinstance(each, ast.IfExp) else (each,)
            yield from (part for part in parts if not isinstance(part, ast.Constant) or part.value)


def calls(path: Path) -> Iterator[ast.Call]:
    """Yield the calls in a module."""
    yield from (node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call))


def _texts() -> Iterator[tuple[Path, int, str | tuple[str, ...]]]:
    for path in sorted(PACKAGE.rglob("*.py")):
        for call in calls(path):
            args = call.args[: len(KEYWORDS.get(getattr(call.func, "id", ""), ()))]
            if args and all(isinstance(each, ast.Constant) for each in args):
                yield path, call.lineno, tuple(each.value for each in args) if args[1:] else args[0].value
    for path in shown_by_forms():
        yield from ((path, each.lineno, each.value) for each in problems(path) if isinstance(each, ast.Constant))
    for path in sorted(PACKAGE.rglob("templates/**/*.html")):
        # Python's indentation has no meaning in what Django makes of a template.
        source = "\n".join(line.strip() for line in templatize(path.read_text()).split("\n"))
        for line, message, _, _ in extract("python", io.BytesIO(source.encode()), KEYWORDS):
            yield path, line, message


def _name(call: ast.Call) -> str:
    return getattr(call.func, "attr", getattr(call.func, "id", ""))


def main() -> None:
    for language in sys.argv[1:] or languages():
        found = updated(language)
        path = po(language)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("wb") as file:
            write_po(file, found, sort_output=True, include_previous=False, omit_header=False, no_location=True)
        with mo(language).open("wb") as file:
            write_mo(file, catalogue(language))
        missing = sum(1 for message in found if message.id and not all(_strings(message)))
        print(f"{language}: {len(found)} texts, {missing} without a translation")


def _strings(message: object) -> tuple[str, ...]:
    string = message.string  # type: ignore[attr-defined]
    return tuple(string) if isinstance(string, (tuple, list)) else (string,)


if __name__ == "__main__":
    main()
