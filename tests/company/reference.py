"""What each call must do: the meaning of "the same job" and the states, in plain Python, without a database.

It imports nothing of the package. Times are seconds, and jobs and workflows go by names. A request is a dict with the
arguments of an enqueue. Nobody but `sweep` promotes, expires, rescues or prunes jobs, or goes on with workflows.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

WAITING = ["scheduled", "available", "retryable", "pending"]
LIVE = [*WAITING, "active"]
MINUTE = 60
ATTEMPTS, RETRY, LEASE, RETENTION = 2, MINUTE, 10 * MINUTE, 20 * MINUTE
NEVER = 10**9


class Rejected(Exception):
    """A call changes nothing, because of a duplicate: the ``job``."""

    def __init__(self, job: str) -> None:
        self.job = job


class Ended(Exception):
    """What is to be cancelled has ended."""


@dataclass(eq=False)
class Job:
    """``at``: a time in its fixed window. ``asked_for``: whether somebody enqueued it who is no workflow. ``place``:
    the workflow whose results it receives, and how many of them.
    """

    request: dict[str, Any]
    created: int
    at: int
    asked_for: bool
    place: tuple[str, int] | None
    name: str = ""
    state: str = "available"
    due: int = 0
    has_key: bool = True
    may_run_again: bool = True
    attempt: int = 0
    run: int = 0
    lease_ends: int = 0
    ended: int = 0
    replaced_by: str | None = None
    is_pruned: bool = False

    @property
    def args(self) -> list[int]:
        return [] if self.is_pruned else self.request["args"]

    @property
    def unique_key(self) -> Any:
        """What two duplicates have in common."""
        if "key" in self.request:
            return self.request["key"] if self.has_key else None
        policy = self.request.get("unique")
        return policy and (self.request["args"], self.at // length_of(policy) if "window" in policy else None)

    @property
    def kept_until(self) -> int:
        """The end of the window that pruning must not reopen."""
        policy = self.request.get("unique")
        if policy is None or self.state not in states_of(policy):
            return 0
        length = length_of(policy)
        return self.at // length * length + length if "window" in policy else self.created + length

    def has_expired(self, now: int) -> bool:
        """Tell whether it never started and may not start any more, whether or not somebody has swept it."""
        return self.attempt == 0 and self.request.get("expires_at", NEVER) <= now and self.state != "cancelled"

    def counts(self, policy: dict[str, Any], now: int) -> bool:
        """Tell whether a new job with the same unique key and this policy meets it."""
        is_in_time = "window" in policy or now < self.created + length_of(policy)
        return self.state in states_of(policy) and is_in_time and not (self.state in WAITING and self.has_expired(now))


@dataclass(eq=False)
class Step:
    """A part of a workflow. ``receives``: how many results. ``job``: the one that it waits for."""

    request: dict[str, Any]
    receives: int
    state: str = "new"
    job: str = ""
    result: str = "failed"


@dataclass(eq=False)
class Workflow:
    """A chain, a group or a batch; ``last`` is the callback of a batch, for any end."""

    name: str
    kind: str
    steps: list[Step]
    last: list[Step]
    state: str = "running"

    def open(self) -> list[Step]:
        return [step for step in [*self.steps, *self.last] if step.state == "open"]


@dataclass
class Reference:
    """All that is stored. ``now`` is the database's time since midnight, and ``call`` the number of the call."""

    now: int = 2
    call: int = 0
    jobs: dict[str, Job] = field(default_factory=dict)
    workflows: dict[str, Workflow] = field(default_factory=dict)
    cron: dict[str, Any] = field(default_factory=dict)
    names: set[str] = field(default_factory=set)

    def enqueue(self, request: dict[str, Any], place: Any = None, at: int | None = None) -> tuple[str, str]:
        """Return the outcome, and the name of the job. ``at``: the time of the occurrence of a cron's job."""
        due = self.now + request.get("delay", 0)
        job = Job(request, self.now, due if at is None else at, place is None, place)
        self._wait(job, due)
        alike = [other for other in self.jobs.values() if other.unique_key == job.unique_key is not None]
        if "key" in request:
            return self._enqueue_by_key(job, [other for other in alike if other.state in [*LIVE, "discarded"]])
        policy = request.get("unique", {})
        met = [other for other in alike if other.counts(policy, self.now)]
        if met and policy["on_conflict"] == "reject":
            raise Rejected(met[-1].name)
        if met and policy["on_conflict"] == "ignore":
            met[-1].asked_for |= job.asked_for
            return "deduplicated", met[-1].name
        if met and policy["on_conflict"] != "replace" and met[-1].state == "scheduled":
            self._wait(job, met[-1].due)
        self._admit(job)
        replaced = [other for other in met if other.state in LIVE]
        for other in replaced:
            other.replaced_by, job.place, job.asked_for = (
                job.name,
                job.place or other.place,
                job.asked_for or other.asked_for,
            )
            self._end(other, "cancelled")
        return "replaced" if replaced else "created", job.name

    def try_to_enqueue(self, request: dict[str, Any], at: int | None = None) -> tuple[str, str]:
        """Do the same, but return a rejection."""
        try:
            return self.enqueue(request, at=at)
        except Rejected as error:
            return "rejected", error.job

    def workflow(self, kind: str, requests: list[dict[str, Any]], last: list[dict[str, Any]]) -> tuple[str, str]:
        """Store a workflow and its first jobs, or nothing."""
        with self._or_nothing():
            steps = [Step(request, index if kind == "chain" else 0) for index, request in enumerate(requests)]
            callbacks = [Step(request, len(requests)) for request in last]
            workflow = self.workflows[f"w{self.call}"] = Workflow(f"w{self.call}", kind, steps, callbacks)
            for step in steps[:1] if kind == "chain" else steps:
                self._start(workflow, step)
        return "created", workflow.name

    def cancel(self, name: str) -> None:
        """Cancel a job, whoever waits for it."""
        if self.jobs[name].state not in LIVE:
            raise Ended
        self._end(self.jobs[name], "cancelled")

    def cancel_workflow(self, name: str, *, active: bool) -> None:
        """Let a workflow let go of its jobs, and stop those that nobody else wants.

        A running one gets no further run, or is cancelled with ``active``.
        """
        workflow = self.workflows[name]
        with self._or_nothing():
            while self._advance(workflow):
                pass
            if workflow.state != "running":
                raise Ended
        workflow.state = "cancelled"
        wanted = {
            step.job for other in self.workflows.values() if other.state == "running" for step in self._open(other)
        }
        for job in [self.jobs[step.job] for step in self._open(workflow)]:
            if job.asked_for or job.name in wanted:
                continue
            job.may_run_again = False
            if job.state in WAITING or (job.state == "active" and active):
                self._end(job, "cancelled")

    def due(self) -> list[str]:
        """Return the jobs that a worker may start."""
        return [name for name, job in self.jobs.items() if job.state == "available" and not job.has_expired(self.now)]

    def claim(self, name: str) -> int:
        """Start a job; return the number of the run."""
        job = self.jobs[name]
        job.state, job.attempt, job.run, job.lease_ends = "active", job.attempt + 1, self.call, self.now + LEASE
        return job.run

    def finish(self, name: str, run: int, *, fails: bool) -> str:
        """End a run; return its outcome."""
        job = self.jobs.get(name)
        if job is None or job.state != "active" or job.run != run:
            return "refused"
        if fails:
            self._run_again(job, "retryable", self.now + RETRY)
            return "retried" if job.state == "retryable" else "discarded"
        self._end(job, "completed")
        return "completed"

    def received(self, name: str) -> list[str]:
        """Return the results that a job receives from the steps before it."""
        if name not in self.jobs or (place := self.jobs[name].place) is None:
            return []
        return [step.result for step in self.workflows[place[0]].steps[: place[1]]]

    def sweep(self) -> None:
        """Do what workers do beside running jobs."""
        for job in self.jobs.values():
            if job.state == "active" and job.lease_ends < self.now:
                self._run_again(job, "available", self.now)
            if job.state in ("scheduled", "retryable") and job.due <= self.now:
                job.state = "available"
            if job.state in WAITING and job.has_expired(self.now):
                self._end(job, "discarded")
        while any(self._advance(workflow) for workflow in self.workflows.values()):
            pass
        for job in [job for job in self.jobs.values() if job.state not in LIVE and job.ended + RETENTION <= self.now]:
            job.is_pruned = True
            if job.kept_until <= self.now:
                del self.jobs[job.name]

    def schedule(self, minute: int, request: dict[str, Any]) -> None:
        """Define a cron that fires at this minute of each ten."""
        self.cron = {"minute": minute, "request": request, "last": self._occurrence(minute)}

    def tick(self) -> None:
        """Enqueue the job of the latest occurrence, once, at the time of this occurrence."""
        if (occurrence := self._occurrence(self.cron["minute"])) > self.cron["last"]:
            self.cron["last"] = occurrence
            self.try_to_enqueue(self.cron["request"], occurrence)

    def _wait(self, job: Job, due: int) -> None:
        job.state, job.due = "scheduled" if due > self.now else "available", due

    def _end(self, job: Job, state: str) -> None:
        job.state, job.ended = state, self.now

    def _run_again(self, job: Job, state: str, due: int) -> None:
        job.state, job.due = state, due
        if not job.may_run_again or job.attempt == ATTEMPTS:
            self._end(job, "discarded")

    def _admit(self, job: Job) -> None:
        job.name = next(name for letter in "abcdefgh" if (name := f"j{self.call}{letter}") not in self.names)
        self.names.add(job.name)
        self.jobs[job.name] = job

    def _enqueue_by_key(self, job: Job, holders: list[Job]) -> tuple[str, str]:
        mode, is_new = job.request["key_mode"], not holders
        holder = job if is_new else holders[0]
        is_dead = holder.has_expired(self.now)
        if not is_new and mode == "unsafe_dedupe" and not is_dead:
            holder.asked_for |= job.asked_for
            return "deduplicated", holder.name
        if is_new or holder.state == "active":
            holder.has_key, holder.may_run_again = is_new, is_new
            self._admit(job)
            return "created", job.name
        if mode != "preserve_run_at" or holder.attempt or holder.state == "discarded" or is_dead:
            self._wait(holder, job.due)
        holder.request = {**job.request, "args": ([] if is_dead else holder.request["args"]) + job.request["args"]}
        holder.attempt, holder.asked_for, holder.place = 0, holder.asked_for or job.asked_for, job.place or holder.place
        return "replaced", holder.name

    def _start(self, workflow: Workflow, step: Step) -> None:
        step.state, step.job = "open", self.enqueue(step.request, (workflow.name, step.receives))[1]

    def _open(self, workflow: Workflow) -> list[Step]:
        """Return the steps that wait for a job; one that was replaced does not count any more."""
        for step in workflow.open():
            while (successor := self.jobs[step.job].replaced_by) is not None:
                step.job = successor
        return workflow.open()

    def _advance(self, workflow: Workflow) -> bool:
        """Count what has ended; return whether the workflow has gone on by that."""
        if workflow.state != "running":
            return False
        for step in self._open(workflow):
            state = self.jobs[step.job].state
            if state not in LIVE:
                step.state = "completed" if state == "completed" else "failed"
                step.result = step.job if state == "completed" else "failed"
        if workflow.open():
            return False
        left = [step for step in workflow.steps if step.state != "completed"]
        following = left[:1] if workflow.kind == "chain" else workflow.last
        if any(step.state == "new" for step in following):
            try:
                self._start(workflow, following[0])
            except Rejected:
                following[0].state = "failed"
            return True
        decisive = workflow.last or workflow.steps
        workflow.state = "failed" if any(step.state == "failed" for step in decisive) else "completed"
        return True

    def _occurrence(self, minute: int) -> int:
        return (self.now - minute * MINUTE) // (10 * MINUTE) * 10 * MINUTE + minute * MINUTE

    @contextmanager
    def _or_nothing(self) -> Iterator[None]:
        before = deepcopy(self.__dict__)
        try:
            yield
        except (Ended, Rejected):
            self.__dict__ = before
            raise


def states_of(policy: dict[str, Any]) -> list[str]:
    return policy.get("states", LIVE)  # type: ignore[no-any-return]


def length_of(policy: dict[str, Any]) -> int:
    """Return the period in seconds; it is written in minutes, as in ``PT5M``."""
    return int(policy["period"][2:-1]) * MINUTE if "period" in policy else NEVER
