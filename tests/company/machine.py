"""The package and the reference side by side: each call is made to both, and everything is compared."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

from django.db import connection

from django_ojs_unique import DuplicateJob
from django_ojs_unique.exceptions import InvalidTransition
from django_ojs_unique.execution import inline
from django_ojs_unique.execution.claim import claim
from django_ojs_unique.maintenance import prune, timers
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue, Workflow, WorkflowMember
from django_ojs_unique.testing import tick
from tests.support.workflows import advance

from .clock import travelling
from .reference import ATTEMPTS, LEASE, LIVE, MINUTE, RETENTION, RETRY, WAITING, Ended, Reference, Rejected

MIDNIGHT = datetime(2030, 1, 1, tzinfo=UTC)
SETTINGS = {"RETENTION": dict.fromkeys(["completed", "cancelled", "discarded"], timedelta(seconds=RETENTION))}
RETRIES = {"max_attempts": ATTEMPTS, "initial_interval": f"PT{RETRY}S", "jitter": False}
KEYS = {"keys": ["type", "args"]}
ONCE = {"on_conflict": "ignore", "period": "PT10M", "window": "fixed", "states": [*LIVE, "completed"]}
"""`presets.once_per_window`."""
HAS_A_CLOCK = connection.vendor != "sqlite"
"""Whether the database has a clock of its own."""


class Company:
    """What callers, workers, clocks and operators do to jobs and workflows that are alike."""

    def __init__(self) -> None:
        self.expected = Reference()
        self.runs: dict[str, Any] = {}
        self._start = MIDNIGHT + timedelta(seconds=self.expected.now) - datetime.now(UTC)
        self._moved = self._off = 0
        self._names: dict[UUID, str] = {}

    def close(self) -> None:
        """Empty the tables."""
        for model in (WorkflowMember, Workflow, Job, CronJob, SuppressedEnqueue):
            model.objects.all()._raw_delete("default")

    def knows(self, thing: str = "", run: str = "", **others: Any) -> bool:
        """Tell whether the job or the workflow, and the run, that a call is about are there."""
        is_there = thing in self.expected.jobs or thing in self.expected.workflows
        return (is_there or not thing) and (run in self.runs or not run)

    def do(self, number: int, call: str, arguments: dict[str, Any]) -> str:
        """Make a call; return in a word what it answered."""
        self.expected.call = number
        return str(getattr(self, call)(**arguments) or "")

    def enqueue(self, request: dict[str, Any]) -> str:
        """Enqueue one job."""
        return self._both(
            lambda: _answer_of(Job.objects.enqueue(**self._real(request))),
            lambda: self.expected.enqueue(self._timed(request)),
        )

    def enqueue_many(self, requests: list[dict[str, Any]]) -> str:
        """Enqueue some jobs together."""
        items = [self._real(request) for request in requests]
        return self._both(
            lambda: [_answer_of(result) for result in Job.objects.enqueue_many(items)],
            lambda: [self.expected.try_to_enqueue(self._timed(request)) for request in requests],
        )

    def workflow(self, kind: str, requests: list[dict[str, Any]], on_complete: dict[str, Any] | None = None) -> str:
        """Enqueue a chain, a group or a batch."""
        last = {} if on_complete is None else {"callbacks": {"on_complete": self._real(on_complete)}}
        members = {"steps" if kind == "chain" else "jobs": [self._real(request) for request in requests]}
        return self._both(
            lambda: ("created", Workflow.objects.enqueue({"type": kind, **members, **last}).pk),
            lambda: self.expected.workflow(
                kind, [*map(self._timed, requests)], [self._timed(on_complete)] if on_complete else []
            ),
        )

    def cancel(self, thing: str, active: bool = False) -> str:
        """Cancel a job or a workflow; ``active``: also the jobs that a workflow has running."""
        id = next(id for id, name in self._names.items() if name == thing)
        if thing in self.expected.jobs:
            return self._both(lambda: Job.objects.get(pk=id).cancel(), lambda: self.expected.cancel(thing))
        return self._both(
            lambda: Workflow.objects.get(pk=id).cancel(active=active),
            lambda: self.expected.cancel_workflow(thing, active=active),
        )

    def claim(self) -> str:
        """Let a worker start one job, whichever it takes of those that are due."""
        with self._time():
            options: dict[str, Any] = {"worker_id": "w", "lease": timedelta(seconds=LEASE), "now": self._now()}
            claimed = [*claim(Job.objects.all(), queues=["default"], types=["t"], limit=1, **options)]
        due = self.expected.due()
        names = [self._names[job.pk] for job in claimed]
        _require(bool(claimed) == bool(due) and {*names} <= {*due}, "claimed", names, "one of", due)
        for name, job in zip(names, claimed, strict=True):
            self.runs[f"r{self.expected.call}"] = job, name, self.expected.claim(name)
        return f"r{self.expected.call}: {names[0]}" if names else "nothing"

    def finish(self, run: str, fails: bool = False) -> str:
        """Let a worker execute the handler of a job that it has claimed, and store the outcome."""
        job, name, number = self.runs.pop(run)
        handler.fails, handler.received = fails, None
        received = self.expected.received(name)
        answer = self._both(
            lambda: str(inline.run(Job.objects.all(), job, lease=timedelta(seconds=LEASE)).outcome),
            lambda: self.expected.finish(name, number, fails=fails),
        )
        if answer != "refused":
            _require(self._results(handler.received) == received, "received", handler.received, "not", received)
        return answer

    def sweep(self) -> str:
        """Do what workers do beside running jobs."""
        return self._both(self._sweep, self.expected.sweep)

    def schedule(self, minute: int) -> None:
        """Define a cron that fires at this minute of each ten, once per ten minutes."""
        times = f"{minute}-59/10 * * * *"
        with self._time():
            CronJob.objects.define(
                "cron", times, "t", [1], overlap_policy="allow", unique={**KEYS, **ONCE}, retry=RETRIES
            )
        self.expected.schedule(minute, {"args": [1], "unique": ONCE})

    def tick(self) -> str:
        """Enqueue what is due of the cron."""

        def act() -> None:
            tick()

        return self._both(act, self.expected.tick)

    def wait(self, minutes: int) -> None:
        """Let time pass, and a second more: no two moments are a whole number of minutes apart."""
        self._moved += minutes * MINUTE + 1
        self.expected.now += minutes * MINUTE + 1

    def set_clock_off(self, seconds: int) -> None:
        """Set the clock of this process off, as seen from a database that has a clock of its own."""
        self._off = seconds if HAS_A_CLOCK else 0

    def _both(self, act: Callable[[], Any], expect: Callable[[], Any]) -> str:
        """Make a call to both, and compare the answers and all that is stored; return the answer."""
        before = {*self.expected.jobs, *self.expected.workflows}
        with self._time():
            found = _answer(act, lambda error: ("rejected", error.existing_job_id))
            expected = _answer(
                expect, lambda error: ("rejected", error.job if error.job in self.expected.jobs else None)
            )
            new = [name for name in (*self.expected.jobs, *self.expected.workflows) if name not in before]
            jobs = self._by_name(Job, [name for name in new if name.startswith("j")])
            workflows = self._by_name(Workflow, [name for name in new if name.startswith("w")])
        answer = self._named(found)
        if answer == ("rejected", None) and expected[1] not in self.expected.jobs:
            return "rejected"  # by a job of the same workflow, which is not stored
        _require(answer == expected, "answered", answer, "not", expected)
        self._compare(jobs, workflows)
        return str(answer or ", ".join(new))

    def _by_name(self, model: Any, new: list[str]) -> dict[str, Any]:
        """Return the stored rows; those that have no name yet get the new ones, in the order of their creation."""
        rows = model.objects.order_by("created_at", "pk").in_bulk()
        nameless = [id for id in rows if id not in self._names]
        _require(len(nameless) == len(new), f"stored {len(nameless)} new rows, not", new)
        self._names |= dict(zip(nameless, new, strict=True))
        return {self._names[id]: row for id, row in rows.items()}

    def _compare(self, jobs: dict[str, Any], workflows: dict[str, Any]) -> None:
        for name, job in self.expected.jobs.items():
            if job.state in WAITING and job.has_expired(self.expected.now) and jobs[name].state == "discarded":
                job.state, job.ended = "discarded", self.expected.now  # it gave way before a sweep
        found = {name: (row.state, [] if row.payload_pruned else row.args) for name, row in jobs.items()}
        found |= {name: row.state for name, row in workflows.items()}
        expected: dict[str, Any] = {name: (job.state, job.args) for name, job in self.expected.jobs.items()}
        expected |= {name: workflow.state for name, workflow in self.expected.workflows.items()}
        for name in sorted(found.keys() | expected.keys()):
            _require(found.get(name) == expected.get(name), name, "is", found.get(name), "not", expected.get(name))

    def _results(self, results: list[Any]) -> list[Any]:
        """Return the names of the jobs that returned these, as each returns its id; an error is ``failed``."""
        return ["failed" if isinstance(result, dict) else result and self._names[UUID(result)] for result in results]

    def _named(self, answer: Any) -> Any:
        if isinstance(answer, list):
            return [self._named(each) for each in answer]
        return (answer[0], self._names.get(answer[1])) if isinstance(answer, tuple) else answer

    def _sweep(self) -> None:
        jobs, now = Job.objects.all(), self._now()
        timers.rescue(jobs, now)
        timers.promote(jobs, now)
        timers.expire(jobs, now)
        advance()
        prune.prune(jobs, now)

    def _timed(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request with a time in the place of ``expires_in``."""
        timed = {**request}
        if "expires_in" in timed:
            timed["expires_at"] = self.expected.now + timed.pop("expires_in")
        return timed

    def _real(self, request: dict[str, Any]) -> dict[str, Any]:
        """Return a request as the package takes it."""
        real = {"type": "t", **self._timed(request), "retry": RETRIES}
        if "unique" in real:
            real["unique"] = {**KEYS, **real["unique"]}
        if "expires_at" in real:
            real["expires_at"] = MIDNIGHT + timedelta(seconds=real["expires_at"])
        return real

    def _now(self) -> datetime:
        return datetime.now(UTC) + self._start + timedelta(seconds=self._moved)

    @contextmanager
    def _time(self) -> Iterator[None]:
        with travelling(self._start + timedelta(seconds=self._moved), off=timedelta(seconds=self._off)):
            yield


class Handler:
    """The handler of all jobs: it returns the id of its job, and notes what it received from others."""

    fails = False
    received: Any = None

    def __call__(self, context: Any, *numbers: int) -> str:
        self.received = context.parent_results
        if self.fails:
            raise RuntimeError
        return str(context.job.pk)


handler = Handler()


def _answer(call: Callable[[], Any], rejected: Callable[[Any], Any]) -> Any:
    try:
        answer = call()
    except (DuplicateJob, Rejected) as error:
        return rejected(error)
    except (InvalidTransition, Ended):
        return "ended"
    return answer if isinstance(answer, (tuple, list, str)) else None


def _answer_of(result: Any) -> tuple[str, UUID]:
    if result.outcome == "rejected":
        return "rejected", result.error.existing_job_id
    return str(result.outcome), result.job.pk


def _require(condition: bool, *words: Any) -> None:
    if not condition:
        raise Differs(" ".join(map(str, words)))


class Differs(AssertionError):
    """The package does not do what the reference says."""
