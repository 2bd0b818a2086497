"""The guides' own scripts, so that what is tested is what is read."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.support.pages import ROOT, a_module, blocks, text_of


@pytest.fixture
def modules_of(handlers: Any) -> Iterator[Callable[[str], Any]]:
    """Return a function that makes the modules of the app `shop` which a page shows or has copied, and returns it."""

    def make(page: str) -> Any:
        for _, source, _ in blocks(ROOT / "docs" / page, "python"):
            if path := re.match(r"# (shop)/(\w+)\.py\n", source):
                exec(compile(source, page, "exec"), a_module(path[1], path[2]))
        for copied in re.findall(r"\(\.\./(examples/moving/\w+\.py)\) to `shop/moving\.py`", text_of(f"docs/{page}")):
            exec(compile((ROOT / copied).read_text(), copied, "exec"), a_module("shop", "moving"))
        return sys.modules["shop"]

    before = set(sys.modules)
    yield make
    for name in set(sys.modules) - before:
        if name.partition(".")[0] == "shop":
            del sys.modules[name]
