"""What a job's row says about its uniqueness, in sentences."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ..exceptions import InvalidPolicy
from ..ojs.states import TERMINAL, JobState
from ..unique.fingerprint import canonical_key, fingerprint, unique_context
from ..unique.policy import OnConflict, OnRetry, UniquePolicy, Window
from .text import full, listed

CONFLICTS = {
    OnConflict.REJECT: "A duplicate is refused with DuplicateJob, which names this job.",
    OnConflict.IGNORE: "A duplicate is answered with this job, and nothing is stored.",
    OnConflict.REPLACE: (
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
    ),
    OnConflict.REPLACE_EXCEPT_SCHEDULE: (
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
        " While this one is scheduled, the new one takes over its time."
    ),
}
RETRIES = {
    OnRetry.RUN: "A retry of this job runs, whatever else counts as its duplicate by then.",
    OnRetry.DISCARD: "A retry of this job that is due while another one counts as its duplicate is discarded instead.",
}
_PASSED = "a newer job was admitted past it, or it was retried"


@dataclass(frozen=True, slots=True)
class Uniqueness:
    """What a job does about its duplicates.

    ``holds``: whether it holds its unique key now. ``counts``: whether an enqueue with its own policy or
    key would meet it as a duplicate. ``until``: when its window ends; None for no limit. ``sentences``: the same in
    words, the most important first. ``problem``: why the policy cannot be read.
    """

    holds: bool
    counts: bool
    sentences: tuple[str, ...]
    until: datetime | None = None
    policy: UniquePolicy | None = None
    problem: str = ""


def uniqueness(job: Any, now: datetime) -> Uniqueness:
    """Return what a row does about its duplicates now; no query is made."""
    if job.fingerprint is None:
        return Uniqueness(False, False, (_outside(job),), problem=read_policy(job)[1])
    if job.key is not None:
        holds = job.holds_unique_key
        return Uniqueness(holds, holds, tuple(_of_key(job, holds)))
    policy, problem = read_policy(job)
    if policy is None:
        return Uniqueness(job.holds_unique_key, job.holds_unique_key, tuple(_unreadable(job, problem)), problem=problem)
    until = end_of_window(job, policy)
    elapsed = until is not None and now >= until
    counts = job.state in policy.states and not elapsed
    sentences = tuple(_of_policy(job, policy, until, elapsed))
    if counts and policy.replaces and job.state in TERMINAL:
        sentences += ("A duplicate is admitted, and this job stays as it is.",)
    elif counts:
        sentences += (CONFLICTS[OnConflict(policy.on_conflict)],)
    if job.state not in TERMINAL:
        sentences += (RETRIES[OnRetry(policy.on_retry)],)
    return Uniqueness(job.holds_unique_key, counts, sentences, until, policy)


def read_policy(job: Any) -> tuple[UniquePolicy | None, str]:
    """Return the policy of a row, or None and what is wrong with it, if it was changed manually."""
    try:
        return job.unique_policy, ""
    except InvalidPolicy as error:
        return None, error.message


def end_of_window(job: Any, policy: UniquePolicy) -> datetime | None:
    """Return when a row's window ends, so that it no longer counts; None for no limit."""
    return policy.kept_until(job.created_at, job.scheduled_at or job.created_at)


def against(
    policy: UniquePolicy, equals: Callable[[str, str], str] = lambda dimension, member: "", *, meta: Any = None
) -> str:
    """Name what is compared, such as ``type + args.user_id``.

    ``equals`` returns what to write after a member of args or meta, or of the context that the job's ``meta`` carries.
    """
    parts = ["type", *(["queue"] if "queue" in policy.keys else [])]
    for name, members in (("args", policy.args_keys), ("meta", policy.meta_keys)):
        if name in policy.keys:
            parts += (
                [name] if members is None else [f"{name}{_member(member)}{equals(name, member)}" for member in members]
            )
    parts += [f"{name}{equals('context', name)}" for name in unique_context(meta) or ()]
    if policy.window is Window.FIXED:
        parts.append("its window")
    return " + ".join(parts)


def _member(name: str) -> str:
    return name if name.startswith("/") else f".{name}"


def _outside(job: Any) -> str:
    if job.key is not None:
        return (
            f"Taken out of uniqueness manually: it no longer holds the job key {job.key!r},"
            " and the next enqueue with it is admitted."
        )
    if job.unique is not None:
        return "Taken out of uniqueness manually: it holds no key, and counts as a duplicate for nobody."
    if job.started_at is not None:
        return "Not unique: it was enqueued without a policy, or lost its job key to a newer enqueue while it ran."
    return "Not unique: it was enqueued without a policy."


def _of_key(job: Any, holds: bool) -> Iterator[str]:
    held = f"the job key {job.key!r}{_scope(job)}"
    if not holds and job.state in (JobState.COMPLETED, JobState.CANCELLED):
        yield f"No longer holds {held}: it is {_finished(job)}."
    elif not holds:
        yield f"Has {held}, but does not hold it: {_PASSED}."
    else:
        yield f"Holds {held} since {full(job.created_at)}, until it is completed or cancelled."
        if job.state == JobState.ACTIVE:
            yield "While it runs, an enqueue with the key takes the key from it, with all further attempts."
        elif job.state == JobState.DISCARDED:
            yield "An enqueue with the key uses this row again, as if it were new."
        else:
            yield "An enqueue with the key rewrites this job."
    if job.revision:
        yield f"It was rewritten by its key {job.revision} time{'s' * (job.revision != 1)}."


def _scope(job: Any) -> str:
    for words, type in ((" (within its type)", job.type), (" (among all types)", None)):
        if job.fingerprint == fingerprint(canonical_key(job.key, type=type, meta=job.meta)):
            return words
    return ""


def _unreadable(job: Any, problem: str) -> Iterator[str]:
    if problem:
        yield f"Its policy cannot be read: {problem}"
    else:
        yield "It has a fingerprint, but neither a policy nor a job key."
    if job.holds_unique_key:
        yield f"It keeps others of its fingerprint out for as long as it is {_or(job.unique_states)}."
    else:
        yield "It keeps no other job out."
    yield "`manage.py jobs verify --fix` takes such a job out of uniqueness."


def _of_policy(job: Any, policy: UniquePolicy, until: datetime | None, elapsed: bool) -> Iterator[str]:
    """Say whether the row holds its key, judged by its unique states, its state and the clock."""
    finished, counted = job.state in TERMINAL, job.state in policy.states
    if finished and not counted:
        yield f"No longer holds its key: it is {_finished(job)}, and its policy does not count {job.state} jobs."
        if job.holds_unique_key:
            yield "Until the next enqueue is admitted, it holds its unique key for an unfinished job that it passed."
    elif finished and not elapsed:
        yield f"Counts as a duplicate for enqueues that look at {job.state} jobs, {_lasting(policy, until)}."
        if not job.holds_unique_key:
            yield f"It counts, but does not hold its unique key: {_PASSED}."
    elif finished:
        yield f"No longer holds its key: its window ended at {_end(until)}."
    elif elapsed and policy.window is Window.FIXED:
        yield (
            f"No longer in the way: its window ended at {_end(until)},"
            " and enqueues since then have another window in their key."
        )
    elif elapsed and job.holds_unique_key:
        yield (
            f"Holds its unique key since {full(job.created_at)}, but no longer counts: its period ended at"
            f" {_end(until)}."
            " The next enqueue under its policy is admitted, and takes the unique key from it."
        )
    elif not job.holds_unique_key:
        yield f"Is {job.state}, but does not hold its unique key: {_PASSED}."
        if counted and not elapsed:
            ends = _ending(policy, until)
            yield f"It still counts as a duplicate for enqueues that look at {job.state} jobs, {ends}."
    else:
        compared = against(policy, meta=job.meta)
        yield f"Holds its key since {full(job.created_at)}, against {compared}, {_ending(policy, until)}."
        if not counted:
            yield (
                f"Its policy does not count {job.state} jobs:"
                " the next enqueue under it is admitted, and takes the unique key from this job."
            )


def _finished(job: Any) -> str:
    since = f"{job.state} since {full(job.finished_at)}" if job.finished_at else str(job.state)
    return f"{since}, replaced by job {job.replaced_by_id}" if job.replaced_by_id else since


def _ending(policy: UniquePolicy, until: datetime | None) -> str:
    """Say when a live job stops holding its key: when its window ends, or in a state that its policy does not count."""
    ends = _or(TERMINAL - set(policy.states))
    if not ends:
        return _lasting(policy, until)
    if until is None:
        return f"until it is {ends}"
    return f"until {_end(until)} or until it is {ends}, whichever comes first"


def _lasting(policy: UniquePolicy, until: datetime | None) -> str:
    if until is not None:
        return f"until {_end(until)}"
    return "until it is pruned" if policy.window is Window.RETENTION else "for as long as its row exists"


def _end(until: datetime | None) -> str:
    return "-" if until is None else full(until)


def _or(states: Any) -> str:
    names = [str(state) for state in (*sorted(set(JobState) - TERMINAL), *_ENDS) if state in states]
    return listed(names, "or") if names else ""


_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED)
