"""The example project under gunicorn or uvicorn, as ``make conformance`` and a test start it."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

from tests.support.ports import HOST, reserved_port

PROJECT = Path(__file__).parents[2] / "testproject"
LONGEST_START_SECONDS = 120


@contextmanager
def gunicorn(
    database_url: str, *, workers: int = 1, threads: int = 8, settings: str = "testproject.conformance"
) -> Iterator[str]:
    """Migrate a database, serve it under the settings of the conformance suite, and yield the base URL."""
    options = ["--workers", str(workers), "--threads", str(threads), "testproject.wsgi"]
    with _serving(database_url, settings, lambda host, port: ["gunicorn", "--bind", f"{host}:{port}", *options]) as url:
        yield url


@contextmanager
def uvicorn(database_url: str, *, settings: str) -> Iterator[str]:
    """Do the same under ASGI."""
    application = ["--factory", "django.core.asgi:get_asgi_application"]
    with _serving(
        database_url, settings, lambda host, port: ["uvicorn", "--host", host, "--port", port, *application]
    ) as url:
        yield url


@contextmanager
def _serving(database_url: str, settings: str, command: Callable[[str, str], list[str]]) -> Iterator[str]:
    variables = {**environment(database_url), "DJANGO_SETTINGS_MODULE": settings}
    migrate = [sys.executable, "-m", "django", "migrate", "--verbosity", "0"]
    subprocess.run(migrate, env=variables, cwd=PROJECT, check=True)
    with reserved_port() as port:
        url = f"http://{HOST}:{port}"
        server = subprocess.Popen(
            [sys.executable, "-m", *command(HOST, str(port)), "--log-level", "warning"], env=variables, cwd=PROJECT
        )
        try:
            _wait_until_it_answers(server, f"{url}/ojs/v1/health")
            yield url
        finally:
            server.terminate()
            server.wait()


def environment(database_url: str) -> dict[str, str]:
    """Return the environment of the example project that serves the conformance suite."""
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith("COV")},
        "DATABASE_URL": database_url,
        "DJANGO_SETTINGS_MODULE": "testproject.conformance",
        "PYTHONPATH": os.pathsep.join([str(PROJECT), str(PROJECT.parent)]),
    }


def _wait_until_it_answers(server: subprocess.Popen[bytes], url: str) -> None:
    deadline = time.monotonic() + LONGEST_START_SECONDS
    while time.monotonic() < deadline and server.poll() is None:
        try:
            with urlopen(url, timeout=LONGEST_START_SECONDS):
                return
        except HTTPError as error:
            raise RuntimeError(f"{url} answered {error.code}.") from None
        except OSError:
            time.sleep(0.05)
    raise RuntimeError(f"The server did not answer at {url}.")
