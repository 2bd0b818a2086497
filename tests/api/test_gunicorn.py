"""The example project under gunicorn, as `make conformance` serves it."""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from .gunicorns import PROJECT, environment, gunicorn

pytestmark = pytest.mark.skipif(
    "OJS_TEST_DATABASE_URL" in os.environ, reason="has a database of its own, and needs to run but once"
)

JOB = {"type": "t", "args": []}


@pytest.mark.slow
def test_a_server_of_several_processes_and_threads_begins_anew_when_it_is_reset(tmp_path: Path) -> None:
    with gunicorn(f"sqlite:///{tmp_path}/db.sqlite3", workers=2) as url, httpx.Client(base_url=url, timeout=60) as http:
        assert http.post("/ojs/v1/queues/default/pause").json()["queue"]["paused"]
        assert http.post("/ojs/v1/jobs", json=JOB).status_code == 201
        assert http.post("/ojs/v1/jobs", json={**JOB, "args": {}}).status_code == 400
        assert http.post("/test/reset").status_code == 204
        assert http.get("/test/reset").status_code == 405
        counts = http.get("/ojs/v1/queues/default/stats").json()["queue"]
        assert (counts["available"], counts["paused"]) == (0, False)
        assert http.get("/ojs/v1/events").json()["events"] == []
        with ThreadPoolExecutor(4) as pool:
            fetches = [pool.submit(fetch, http, 10) for _ in range(4)]
            ids = {http.post("/ojs/v1/jobs", json=JOB).json()["job"]["id"] for _ in range(4)}
            assert {fetched.result() for fetched in fetches} == ids
        assert fetch(http, 0) is None


@pytest.mark.slow
def test_a_body_may_come_in_chunks(tmp_path: Path) -> None:
    with gunicorn(f"sqlite:///{tmp_path}/db.sqlite3") as url, httpx.Client(base_url=url, timeout=60) as http:
        answer = http.post("/ojs/v1/jobs", content=iter([b'{"type": "t",', b' "args": [7]}']))
        assert (answer.status_code, answer.json()["job"]["args"]) == (201, [7])
        assert http.post("/ojs/v1/queues/q/pause", content=iter([])).status_code == 200
        large = http.post("/ojs/v1/jobs", content=iter([b" " * 2**20] * 5))
        assert (large.status_code, large.json()["error"]["code"]) == (413, "payload_too_large")


@pytest.mark.slow
def test_nobody_can_reset_a_server_outside_of_debug(tmp_path: Path) -> None:
    code = (
        "import django; from django.conf import settings; django.setup(); settings.DEBUG = False;"
        "import testproject.conformance_urls"
    )
    variables = environment(f"sqlite:///{tmp_path}/db.sqlite3")
    done = subprocess.run([sys.executable, "-c", code], env=variables, cwd=PROJECT, capture_output=True, text=True)
    assert done.returncode == 1
    assert "for DEBUG only" in done.stderr


@pytest.mark.parametrize("folder", ["", "nowhere"])
def test_make_conformance_says_what_it_needs(tmp_path: Path, folder: str) -> None:
    variables = {**os.environ, "CONFORMANCE": folder and str(tmp_path / folder)}
    done = subprocess.run(
        [sys.executable, "-m", "tests.conformance"], env=variables, cwd=PROJECT.parent, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert "run.py and suites/" in done.stdout
    assert "make conformance CONFORMANCE=" in done.stdout


def fetch(http: httpx.Client, wait: float) -> str | None:
    jobs = http.post("/ojs/v1/workers/fetch", json={"queues": ["default"], "wait": wait}).json()["jobs"]
    return jobs[0]["id"] if jobs else None
