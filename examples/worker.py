"""A worker outside of Django: it fetches jobs over HTTP, runs them, and reports the results.

It sends heartbeats while it works, and follows an operator's directives "quiet" and "terminate". On SIGTERM it ends
after its present job. A job that it does not finish becomes available again when its lease expires. Needs httpx, and a
server: ``make serve`` has one.

    OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=demo python examples/worker.py letters
"""

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import httpx

HANDLERS: dict[str, Callable[[dict[str, Any]], Any]] = {
    "letter.count": lambda job: {"letters": len(job["args"][0]["text"])},
}


class Worker:
    """Runs the jobs of some queues, one at a time; start as many processes as you like."""

    def __init__(
        self, http: httpx.Client, queues: Sequence[str], handlers: Mapping[str, Callable[[Any], Any]], lease: float = 30
    ) -> None:
        self.http, self.queues, self.handlers, self.lease = http, list(queues), handlers, lease
        self.id = f"{socket.gethostname()}:{os.getpid()}:http"
        self.state = "running"
        self.job: dict[str, Any] | None = None
        self.pause = 0.0
        self.stopping, self.stopped = threading.Event(), threading.Event()

    def run(self) -> None:
        """Work until SIGTERM, or until the server says "terminate"."""
        self._beat()
        threading.Thread(target=self._live, daemon=True).start()
        try:
            while not self.stopping.is_set():
                if self.state != "running":
                    self.stopping.wait(1)
                    continue
                # The server holds the request until there is a job, at most for ``wait`` seconds.
                for job in self._call("fetch", queues=self.queues, types=[*self.handlers], wait=5)["jobs"]:
                    self._work(job)
                self.stopping.wait(self.pause)
        finally:
            self.stopped.set()

    def _work(self, job: dict[str, Any]) -> None:
        self.job = job
        ours = {"job_id": job["id"], "lease_token": job["lease_token"]}  # invalid once another worker has the job
        try:
            result = self.handlers[job["type"]](job)
        except Exception as error:
            failure = {"type": type(error).__name__, "code": "handler_error", "message": str(error)}
            answer = self._call("nack", **ours, error=failure)
        else:
            answer = self._call("ack", **ours, result=result)
        self.job = None
        print(f"{job['type']} {job['id']}: {answer.get('state', 'not ours any more')}", flush=True)

    def _live(self) -> None:
        while not self.stopped.wait(self.lease / 4):  # until the last job has ended, too
            self._beat()

    def _beat(self) -> None:
        """Extend the lease of the job, and get the server's directive: running, quiet or terminate."""
        jobs = [self.job] if self.job else []
        ids, tokens = [job["id"] for job in jobs], [job["lease_token"] for job in jobs]
        self.state = self._call("heartbeat", active_jobs=ids, lease_tokens=tokens)["state"]
        if self.state == "terminate":
            self.stopping.set()

    def _call(self, action: str, **body: Any) -> dict[str, Any]:
        """Send a request until the server answers. A 409, because the job is not ours any more, is an answer, too."""
        body |= {"worker_id": self.id}
        if action in ("fetch", "heartbeat"):
            body["visibility_timeout_ms"] = int(self.lease * 1000)
        while True:
            try:
                answer = self.http.post(f"/ojs/v1/workers/{action}", json=body)
            except httpx.TransportError as error:
                print(f"{action}: {error!r}", file=sys.stderr)
            else:
                if answer.status_code < 500 and answer.status_code != 429:
                    break
            time.sleep(1)
            if self.stopping.is_set() and action in ("fetch", "heartbeat"):
                return {"jobs": [], "state": self.state}
        if answer.status_code != 409:
            if answer.is_error:
                print(f"{action}: {answer.text}", file=sys.stderr)
            answer.raise_for_status()
        if action == "fetch":  # if too many fetches wait, the server says when to fetch again
            self.pause = float(answer.headers.get("Retry-After", 0))
        content: dict[str, Any] = answer.json()
        return content


def main() -> None:
    url, token = os.environ.get("OJS_URL", "http://127.0.0.1:8000"), os.environ.get("OJS_TOKEN", "demo")
    with httpx.Client(base_url=url, headers={"Authorization": f"Token {token}"}, timeout=30) as http:
        worker = Worker(http, sys.argv[1:] or ["default"], HANDLERS)
        signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
        signal.signal(signal.SIGINT, lambda *_: worker.stopping.set())
        print(f"{worker.id} works. Ctrl-C stops it.", flush=True)
        worker.run()


if __name__ == "__main__":
    main()
