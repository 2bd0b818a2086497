"""The examples in JavaScript are executed as their readers would, against a real server."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from django_ojs_unique.models import Job, WorkerProcess
from tests.support.processes import PATIENCE, until

from .examples import EXAMPLES

NODE = shutil.which("node")
pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(NODE is None, reason="there is no node to run the examples in JavaScript"),
    pytest.mark.slow,
]

CLIENT = """
import { connect, enqueue, PAUSES } from "%(client)s";
PAUSES.splice(0, PAUSES.length, 0, 0);
let [lost, busy] = [%(lost)d, %(busy)d];
async function send(url, request) {
  if (busy-- > 0) return new Response("{}", { status: 503, headers: { "Retry-After": "0" } });
  const answer = await fetch(url, request);
  if (lost-- > 0) throw new TypeError("fetch failed");
  return answer;
}
const [found, outcome] = await enqueue(connect(process.env.OJS_URL, process.env.OJS_TOKEN, send), %(job)s);
console.log(JSON.stringify([found.id, outcome]));
"""
WORKER = """
import { once } from "node:events";
import { Worker } from "%(worker)s";
const handlers = { fails: async () => { throw new RangeError("text"); }, slow: async () => {
  console.log("begun");
  await once(process.stdin, "data");
} };
const worker = new Worker(process.env.OJS_URL, process.env.OJS_TOKEN, ["letters"], handlers, %(lease)s);
process.on("SIGTERM", () => worker.stop());
await worker.beat();
console.log(worker.id);
if (%(waits)s) await once(process.stdin, "data");
await worker.run();
process.stdin.destroy();
"""


def node(*arguments: str) -> subprocess.Popen[str]:
    assert NODE is not None
    pipe = subprocess.PIPE
    return subprocess.Popen([NODE, *arguments], stdin=pipe, stdout=pipe, stderr=subprocess.STDOUT, text=True)


def module(code: str, **values: Any) -> subprocess.Popen[str]:
    """Start a module that imports the examples."""
    paths = {name: (EXAMPLES / f"{name}.mjs").as_uri() for name in ("client", "worker")}
    return node("--input-type=module", "--eval", code % {**paths, **values})


def enqueue(job: dict[str, Any], lost: int = 0, busy: int = 0) -> tuple[str, str]:
    """Enqueue with the client, whose first answers are lost or say that the server is busy; return id and outcome."""
    process = module(CLIENT, job=json.dumps(job), lost=lost, busy=busy)
    said = process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 0, said
    found, outcome = json.loads(said)
    return found, outcome


@contextmanager
def working(lease: float = 30, *, waits: bool = False) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Start a worker; yield it with its id. If it ``waits``, it works once a line is written to it."""
    with module(WORKER, lease=lease, waits=json.dumps(waits)) as process:
        try:
            yield process, line(process)
            assert process.wait(PATIENCE) == 0
        finally:
            process.kill()


def line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def write(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_the_client_enqueues_and_the_worker_works(server):
    said = node(str(EXAMPLES / "client.mjs")).communicate(timeout=PATIENCE)[0]
    assert re.fullmatch(r"created: job (\S+) is available\ndeduplicated: job \1 is available\n", said), said
    with node(str(EXAMPLES / "worker.mjs"), "letters") as process:
        assert "works. Ctrl-C stops it." in line(process)
        assert line(process) == f"letter.count {Job.objects.get().pk}: completed"
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 0
    job = Job.objects.get()
    assert (job.state, job.result, job.attempt) == ("completed", {"letters": 11}, 1)


@pytest.mark.parametrize("unique", [None, "reject", "ignore", "replace"])
def test_a_lost_answer_does_not_queue_twice(server, unique):
    options = {} if unique is None else {"options": {"unique": {"on_conflict": unique}}}
    found, outcome = enqueue({"type": "letter.count", "args": [], **options}, lost=2)
    assert outcome == "created"
    job = Job.objects.get()
    assert (str(job.pk), job.state) == (found, "available")


def test_a_rejected_duplicate_is_told_from_an_own_one(server):
    first = Job.objects.enqueue("letter.count", [], unique={}).job
    job: dict[str, Any] = {"type": "letter.count", "args": [], "options": {"unique": {}}}
    assert enqueue(job) == (str(first.pk), "rejected")
    job["options"]["unique"]["on_conflict"] = "ignore"
    assert enqueue(job) == (str(first.pk), "deduplicated")
    process = module(CLIENT, job=json.dumps({"type": "No Type", "args": []}), lost=0, busy=0)
    assert "Error: type: " in process.communicate(timeout=PATIENCE)[0]
    assert process.returncode == 1


def test_the_client_waits_for_a_server_that_is_busy(server):
    assert enqueue({"type": "letter.count", "args": []}, busy=2)[1] == "created"
    process = module(CLIENT, job=json.dumps({"type": "letter.count", "args": []}), lost=3, busy=0)
    assert "fetch failed" in process.communicate(timeout=PATIENCE)[0]


def test_the_ids_of_the_client_are_what_the_server_wants():
    code = 'import { uuid7 } from "%(client)s"; for (let n = 0; n < 1000; n++) console.log(uuid7());'
    ids = module(code).communicate(timeout=PATIENCE)[0].split()
    pattern = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}")
    assert all(pattern.fullmatch(id) for id in ids)
    assert len(set(ids)) == 1000


def test_a_failing_job_is_reported_by_the_worker(server):
    Job.objects.enqueue("fails", [], queue="letters", retry={"max_attempts": 1})
    with working() as (process, _):
        assert line(process).endswith(": discarded")
        process.send_signal(signal.SIGTERM)
    job = Job.objects.get()
    assert (job.state, job.errors[-1]["type"], job.errors[-1]["message"]) == ("discarded", "RangeError", "text")


def test_the_worker_does_what_an_operator_wants(server):
    with working(0.2, waits=True) as (process, id):
        rows = WorkerProcess.objects.filter(pk=id)
        assert rows.update(directive="quiet") == 1
        since = rows.get().heartbeat_at
        Job.objects.enqueue("slow", [], queue="letters")
        write(process)
        until(lambda: rows.get().heartbeat_at > since, "the worker is heard of")
        since = rows.get().heartbeat_at
        until(lambda: rows.get().heartbeat_at > since, "the worker is heard of")
        rows.update(directive="terminate")
    assert Job.objects.get().state == "available"


def test_the_worker_keeps_its_job_while_it_stops(server):
    Job.objects.enqueue("slow", [], queue="letters")
    with working(6) as (process, _):
        assert line(process) == "begun"
        process.send_signal(signal.SIGTERM)
        ends = Job.objects.get().lease_expires_at
        until(lambda: Job.objects.get().lease_expires_at > ends, "the lease is extended")
        write(process)
    assert Job.objects.get().state == "completed"


def test_a_worker_that_may_not_work_says_so_and_ends(server, monkeypatch):
    monkeypatch.setenv("OJS_TOKEN", "nobody")
    with node(str(EXAMPLES / "worker.mjs")) as process:
        said = process.communicate(timeout=PATIENCE)[0]
    assert "heartbeat: Invalid token." in said
    assert process.returncode == 1
