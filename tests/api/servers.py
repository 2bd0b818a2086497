"""Real HTTP servers on the test database: processes that serve each request in a thread."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx
from django.conf import settings
from django.core.handlers.wsgi import WSGIHandler
from django.core.servers.basehttp import ThreadedWSGIServer, WSGIRequestHandler
from rest_framework.authtoken.models import Token

from django_ojs_unique.api.wire.codec import MEDIA_TYPE
from tests.support.processes import PATIENCE, Parent, nursery, wait_until_alone


@contextmanager
def serving(count: int = 1) -> Iterator[list[str]]:
    """Yield the base URLs of ``count`` server processes, which end with the block."""
    with nursery() as start:
        servers = [start(_serve) for _ in range(count)]
        yield [f"http://127.0.0.1:{server.hear()}" for server in servers]
    wait_until_alone()


def caller(base_url: str, token: Token) -> httpx.Client:
    """Return a client of one server, which keeps its connection."""
    headers = {"Authorization": f"Token {token.key}", "Content-Type": MEDIA_TYPE}
    return httpx.Client(base_url=base_url, headers=headers, timeout=PATIENCE)


class _Handler(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


def _serve(parent: Parent) -> None:
    settings.ALLOWED_HOSTS = ["127.0.0.1"]
    server = ThreadedWSGIServer(("127.0.0.1", 0), _Handler)
    server.set_app(WSGIHandler())
    parent.tell(server.server_port)
    server.serve_forever()
