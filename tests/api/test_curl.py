"""The page about HTTP tells the truth: a shell with curl gets from a real server what it shows.

An answer on the page may leave members out. Ids and moments are of the same kind, not the same; an id that the page
shows stands for the real one from then on.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from django_ojs_unique.api import urls
from django_ojs_unique.api.wire.errors import CODES
from tests.support.pages import blocks, table

from .servers import serving

PAGE = Path(__file__).parents[2] / "docs/http.md"
ID = re.compile(r"(?:evt_|req_)?[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
MOMENT = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z")
MEASURED = ("uptime_seconds", "duration_ms", "version", "docs_url", "next_cursor")
"""Members that differ from run to run, or from release to release."""


def commands() -> Iterator[tuple[int, str, str]]:
    """Yield each command of the page with the number of its line and the answer that the page shows."""
    for line, block, _ in blocks(PAGE, "console"):
        for match in re.finditer(r"^\$ (.+)\n((?:(?!\$ ).*\n)*)", block, re.MULTILINE):
            yield line + block.count("\n", 0, match.start()), match[1], match[2]


@pytest.fixture
def shell(transactional_db: None, settings: Any) -> Iterator[dict[str, str]]:
    """The environment of a reader who has set up a server."""
    settings.OJS_UNIQUE = {"EVENTS": True}
    token = Token.objects.create(user=User.objects.create_user("reader", is_staff=True))
    with serving() as (url,):
        variables = {"OJS": f"{url}/ojs/v1", "AUTH": f"Authorization: Token {token.key}"}
        yield {**os.environ, **variables, "no_proxy": "127.0.0.1"}


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_commands_of_the_page_print_what_it_shows(shell):
    real: dict[str, str] = {}
    for line, command, shown in commands():
        assert command.startswith("curl "), f"line {line}"
        command = ID.sub(lambda id: real.get(id[0], id[0]), command)
        done = subprocess.run(["bash", "-c", command], env=shell, capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, f"line {line}: {done.stderr}"
        compare(json.loads(shown), json.loads(done.stdout), real, f"line {line}: {done.stdout}")


def compare(shown: Any, given: Any, real: dict[str, str], where: str) -> None:
    """Assert that an answer has what the page shows; remember the ids."""
    if isinstance(shown, dict):
        assert isinstance(given, dict), where
        for name, value in shown.items():
            assert name in given, where
            if name not in MEASURED:
                compare(value, given[name], real, where)
    elif isinstance(shown, list):
        assert isinstance(given, list), where
        assert len(shown) == len(given), where
        for one, other in zip(shown, given, strict=True):
            compare(one, other, real, where)
    elif isinstance(shown, str) and ID.fullmatch(shown):
        assert ID.fullmatch(given), where
        assert real.setdefault(shown, given) == given, where
    elif isinstance(shown, str) and MOMENT.fullmatch(shown):
        assert MOMENT.fullmatch(given), where
    elif isinstance(shown, str) and isinstance(given, str):
        assert ID.sub(lambda id: real.get(id[0], id[0]), shown) == given, where
    else:
        assert shown == given, where


def test_the_page_shows_each_endpoint():
    paths = {re.sub(r"<\w+:(\w+)>", r"{\1}", f"/{one.pattern}") for one in urls.urlpatterns}
    paths = {path for path in paths if not path.startswith("/^")}
    assert {row[0].partition(" ")[2].partition("?")[0] for row in table("docs/http.md", "call")} == paths


def test_the_errors_are_the_errors():
    assert {row[0]: int(row[1]) for row in table("docs/http.md", "code")} == {
        code: entry.status for code, entry in CODES.items()
    }
