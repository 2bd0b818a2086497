"""`tests/refusals.md` keeps the texts of errors: this test compares them, and writes them anew for `make refusals`."""

import os
import re
from pathlib import Path

import pytest
from django.db import connection, transaction

from .tasks import framework  # isort: skip - it skips this module where there are no tasks
from django_ojs_unique.handlers.registry import registry

SNAPSHOT = Path(__file__).parent / "refusals.md"
SHARED = re.compile(r"^```python\n(.+?)^```", re.MULTILINE | re.DOTALL)
EXAMPLE = re.compile(r"^(>>> .*\n(?:\.\.\..*\n)*)((?:(?!```).+\n)*)", re.MULTILINE)
PROMPT = re.compile(r"^(?:>>>|\.\.\.) ?", re.MULTILINE)
ID = re.compile(r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def said(call, shared):
    """Return what is said when this is called, which leaves nothing behind."""
    names = {"__name__": "shop.jobs", "OURS": framework.OURS}
    before = registry._definitions.copy()
    try:
        with transaction.atomic():
            exec(shared, names)
            try:
                exec(PROMPT.sub("", call), names)
            except NameError:
                raise
            except Exception as error:
                transaction.set_rollback(True)
                name = type(error).__name__.replace("InvalidTaskError", "InvalidTask")  # the two frameworks differ
                return ID.sub("<id>", f"{name}: {error}\n")
    finally:
        registry._definitions = before
    return pytest.fail(f"Nothing is said about\n{call}")


@pytest.mark.skipif(connection.vendor != "sqlite", reason="a text is the same on each database")
@pytest.mark.django_db
def test_what_is_said_about_a_mistake_is_what_is_written():
    written = SNAPSHOT.read_text()
    shared = SHARED.search(written)[1]
    found = EXAMPLE.sub(lambda example: example[1] + said(example[1], shared), written)
    if os.environ.get("OJS_TEST_RENEW"):
        SNAPSHOT.write_text(found)
    else:
        assert written.splitlines() == found.splitlines()  # else: make refusals, and read the difference
