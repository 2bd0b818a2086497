"""A client of the binding."""

import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client
from rest_framework.authtoken.models import Token

from django_ojs_unique.api.wire.codec import MEDIA_TYPE

from .servers import serving

THREADED = {"wsgi.multithread": True}
"""What a server that serves each request in a thread says of itself."""


class OJSClient:
    """Speaks the binding as a member of staff; every answer is checked for what all answers have in common."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def get(self, path: str, **options: Any) -> Any:
        return self._checked(self._client.get(path, **options))

    def delete(self, path: str, **options: Any) -> Any:
        return self._checked(self._client.delete(path, **options))

    def post(self, path: str, body: Any = None, **options: Any) -> Any:
        """Send a body as JSON; bytes are sent as they are."""
        raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
        return self._checked(self._client.generic("POST", path, raw, **{"content_type": MEDIA_TYPE, **options}))

    def enqueue(self, type: str = "t", args: Any = (), **members: Any) -> dict[str, Any]:
        """Enqueue a job that must be accepted; return it."""
        answer = self.post("/ojs/v1/jobs", {"type": type, "args": args, **members})
        assert answer.status_code in (200, 201), answer.content
        return answer.json()["job"]

    def fetch(self, *queues: str, **members: Any) -> list[dict[str, Any]]:
        """Fetch jobs, by default from the default queue."""
        answer = self.post("/ojs/v1/workers/fetch", {"queues": queues or ("default",), **members})
        assert answer.status_code == 200, answer.content
        return answer.json()["jobs"]

    def put(self, path: str, body: Any) -> Any:
        return self._checked(self._client.generic("PUT", path, json.dumps(body).encode(), content_type=MEDIA_TYPE))

    def _checked(self, response: Any) -> Any:
        assert response["Content-Type"] == MEDIA_TYPE
        assert response["OJS-Version"] == "1.0"
        assert response["X-Request-Id"]
        if response.status_code >= 400:
            error = response.json()["error"]
            assert error["message"]
            assert error["hint"]
            assert error["docs_url"].startswith("http")
            assert error["request_id"] == response["X-Request-Id"]
            assert error["retryable"] is (response.status_code in (429, 500, 503))
        return response


@pytest.fixture
def staff(db: None) -> User:
    return User.objects.create_user("staff", is_staff=True)


@pytest.fixture
def ojs(staff: User) -> OJSClient:
    """A client that may do everything."""
    client = Client(**THREADED)
    client.force_login(staff)
    return OJSClient(client)


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep pytest from storing thousands of refused requests with their log: their garbage would count as CPU."""
    monkeypatch.setattr(logging.getLogger("django.request"), "disabled", True)


@pytest.fixture
def server(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of a server, which the examples find in their environment, with the token of somebody who may call."""
    token = Token.objects.create(user=User.objects.create_user("caller", is_staff=True))
    with serving() as (url,):
        monkeypatch.setenv("OJS_URL", url)
        monkeypatch.setenv("OJS_TOKEN", token.key)
        yield url


@pytest.fixture
def refused() -> Callable[..., dict[str, Any]]:
    """Check that an answer is an error of a status and code; return the error."""

    def check(response: Any, status: int, code: str) -> dict[str, Any]:
        assert (response.status_code, response.json()["error"]["code"]) == (status, code), response.content
        return response.json()["error"]

    return check
