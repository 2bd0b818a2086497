"""The browser of `tests.browser`, on a site with the theme that ``OJS_TEST_THEME`` names; without one, nothing runs."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from pytest_django.live_server_helper import LiveServer

from tests.browser.conftest import browser, operator, shop, visit  # noqa: F401 - they are fixtures

if not os.environ.get("OJS_TEST_THEME"):
    collect_ignore_glob = ["test_*.py"]


@pytest.fixture(scope="package")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    server = LiveServer("localhost")
    yield server
    server.stop()
