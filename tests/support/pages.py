"""What the pages of the documentation show: text, tables, blocks of code."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]


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


def a_module(package: str, name: str) -> dict[str, Any]:
    parent = sys.modules.setdefault(package, ModuleType(package))
    parent.__path__ = []  # which makes it a package
    module = sys.modules[f"{package}.{name}"] = ModuleType(f"{package}.{name}")
    vars(module).update(INSTALLED_APPS=[], urlpatterns=[])  # what is there before a block that is put at the end
    setattr(parent, name, module)
    return vars(module)
