"""Enqueue jobs over HTTP from any program, so that a lost answer never queues a job twice.

Needs httpx, and a server: ``make serve`` has one with the token ``demo``.

    OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=demo python examples/client.py
"""

import os
import secrets
import time
from typing import Any

import httpx

PAUSES = (0.5, 1, 2, 4, 8)
"""Seconds between the attempts to reach the server, if it does not say how long to wait."""


def connect(url: str, token: str) -> httpx.Client:
    return httpx.Client(base_url=url, headers={"Authorization": f"Token {token}"}, timeout=30)


def enqueue(http: httpx.Client, job: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Enqueue a job; return the stored job and the outcome: "created", "deduplicated" or "rejected".

    The id is chosen here, once. So it does no harm to send the job again if no answer came: the server either stores
    it now, or names the job that it stored the first time.
    """
    job = {"id": uuid7(), **job}
    answer = _answer(http, job)
    match answer.status_code:
        case 201 | 200:
            found = answer.json()["job"]
            return found, "created" if found["id"] == job["id"] else "deduplicated"
        case 409:
            existing = answer.json()["error"]["details"]["existing_job_id"]
            found = http.get(f"/ojs/v1/jobs/{existing}").raise_for_status().json()["job"]
            return found, "created" if existing == job["id"] else "rejected"
    raise ValueError(answer.json()["error"]["message"])


def uuid7() -> str:
    """Return a UUIDv7, which the specification asks for; from Python 3.14 on there is `uuid.uuid7()`."""
    noise = secrets.token_hex(10)
    moment = f"{time.time_ns() // 1_000_000:012x}"
    return f"{moment[:8]}-{moment[8:]}-7{noise[:3]}-{secrets.choice('89ab')}{noise[3:6]}-{noise[6:18]}"


def _answer(http: httpx.Client, job: dict[str, Any]) -> httpx.Response:
    """Send the job until the server has decided about it."""
    for pause in (*PAUSES, None):
        try:
            answer = http.post("/ojs/v1/jobs", json=job)
        except httpx.TransportError:
            if pause is None:
                raise
        else:
            if answer.status_code not in (429, 503) or pause is None:
                return answer
            pause = float(answer.headers.get("Retry-After", pause))
        time.sleep(pause)
    raise AssertionError("The last attempt returns or raises.")


def main() -> None:
    job = {
        "type": "letter.count",
        "args": [{"text": "never twice"}],
        "options": {"queue": "letters", "unique": {"keys": ["type", "args"], "on_conflict": "ignore"}},
    }
    with connect(os.environ.get("OJS_URL", "http://127.0.0.1:8000"), os.environ.get("OJS_TOKEN", "demo")) as http:
        for _ in range(2):
            found, outcome = enqueue(http, job)
            print(f"{outcome}: job {found['id']} is {found['state']}")


if __name__ == "__main__":
    main()
