"""What a job's row says about its uniqueness, in sentences, and the text behind its fingerprint."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from ..exceptions import InvalidPolicy, Message, OJSError
from ..handlers.redaction import redacted_canonical
from ..ojs.states import TERMINAL, JobState
from ..unique.conflict import has_expired
from ..unique.fingerprint import SCHEME, canonical_key, fingerprint, stored_texts, unique_context
from ..unique.policy import OnConflict, OnRetry, UniquePolicy, Window
from .text import full

CONFLICTS = {
    OnConflict.REJECT: Message("A duplicate is refused with DuplicateJob, which names this job."),
    OnConflict.IGNORE: Message("A duplicate is answered with this job, and nothing is stored."),
    OnConflict.REPLACE: Message(
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
    ),
    OnConflict.REPLACE_EXCEPT_SCHEDULE: Message(
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
        " While this one is scheduled, the new one takes over its time."
    ),
    OnConflict.REPLACE_IN_PLACE: Message(
        "A duplicate replaces this job: this one is cancelled, running or not, and the new one is stored."
        " The new one takes over the time and the place in line of this one."
    ),
}
RETRIES = {
    OnRetry.RUN: Message("A retry of this job runs, whatever else counts as its duplicate by then."),
    OnRetry.DISCARD: Message(
        "A retry of this job that is due while another one counts as its duplicate is discarded instead."
    ),
}


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
    counts = job.state in policy.states and not elapsed and not has_expired(job, now)
    sentences = tuple(_of_policy(job, policy, until, elapsed))
    if has_expired(job, now):
        sentences = (Message("It has expired and may not start any more: it is a duplicate of nothing."), *sentences)
    if counts and policy.replaces and job.state in TERMINAL:
        sentences += (Message("A duplicate is admitted, and this job stays as it is."),)
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
    parts = policy.compared(equals)
    parts += [f"{name}{equals('context', name)}" for name in unique_context(meta) or ()]
    if policy.window is Window.FIXED:
        return Message("{members} + its window", members=" + ".join(parts))
    return " + ".join(parts)


def _outside(job: Any) -> str:
    if job.key is not None:
        return Message(
            "Taken out of uniqueness manually: it no longer holds the job key {key}, and the next enqueue with it is"
            " admitted.",
            key=repr(job.key),
        )
    if job.unique is not None:
        return Message("Taken out of uniqueness manually: it holds no key, and counts as a duplicate for nobody.")
    if job.started_at is not None:
        return Message(
            "Not unique: it was enqueued without a policy, or lost its job key to a newer enqueue while it ran."
        )
    return Message("Not unique: it was enqueued without a policy.")


def _of_key(job: Any, holds: bool) -> Iterator[str]:
    say = partial(Message, held=_named(job), moment=full(job.created_at), since=_finished(job), count=job.revision)
    if not holds and job.state in (JobState.COMPLETED, JobState.CANCELLED):
        yield say("No longer holds {held}: it is {since}.")
    elif not holds:
        yield say("Has {held}, but does not hold it: a newer job was admitted past it, or it was retried.")
    else:
        yield say("Holds {held} since {moment}, until it is completed or cancelled.")
        if job.state == JobState.ACTIVE:
            yield say("While it runs, an enqueue with the key takes the key from it, with all further attempts.")
        elif job.state == JobState.DISCARDED:
            yield say("An enqueue with the key uses this row again, as if it were new.")
        else:
            yield say("An enqueue with the key rewrites this job.")
    if job.revision == 1:
        yield say("It was rewritten by its key {count} time.")
    elif job.revision:
        yield say("It was rewritten by its key {count} times.")


def _named(job: Any) -> Message:
    say = partial(Message, key=repr(job.key))
    by_type, by_all = (fingerprint(canonical_key(job.key, type=type, meta=job.meta)) for type in (job.type, None))
    if job.fingerprint == by_type:
        return say("the job key {key} (within its type)")
    return say("the job key {key} (among all types)") if job.fingerprint == by_all else say("the job key {key}")


def _unreadable(job: Any, problem: str) -> Iterator[str]:
    if problem:
        yield Message("Its policy cannot be read: {reason}", reason=problem)
    else:
        yield Message("It has a fingerprint, but neither a policy nor a job key.")
    if job.holds_unique_key:
        states = _or(job.unique_states)
        yield Message("It keeps others of its fingerprint out for as long as it is {states}.", states=states)
    else:
        yield Message("It keeps no other job out.")
    yield Message("`manage.py jobs verify --fix` takes such a job out of uniqueness.")


def _of_policy(job: Any, policy: UniquePolicy, until: datetime | None, elapsed: bool) -> Iterator[str]:
    """Say whether the row holds its key, judged by its unique states, its state and the clock."""
    finished, counted = job.state in TERMINAL, job.state in policy.states
    say = partial(
        Message,
        state=job.state,
        since=_finished(job),
        moment=full(job.created_at),
        end=_end(until),
        ending=_lasting(policy, until) if finished else _ending(policy, until),
        rest=against(policy, meta=job.meta),
    )
    if finished and not counted:
        yield say("No longer holds its key: it is {since}, and its policy does not count {state} jobs.")
        if job.holds_unique_key:
            yield say(
                "Until the next enqueue is admitted, it holds its unique key for an unfinished job that it passed."
            )
    elif finished and not elapsed:
        yield say("Counts as a duplicate for enqueues that look at {state} jobs, {ending}.")
        if not job.holds_unique_key:
            yield say(
                "It counts, but does not hold its unique key: a newer job was admitted past it, or it was retried."
            )
    elif finished:
        yield say("No longer holds its key: its window ended at {end}.")
    elif elapsed and policy.window is Window.FIXED:
        yield say(
            "No longer in the way: its window ended at {end}, and enqueues since then have another window in their key."
        )
    elif elapsed and job.holds_unique_key:
        yield say(
            "Holds its unique key since {moment}, but no longer counts: its period ended at {end}."
            " The next enqueue under its policy is admitted, and takes the unique key from it."
        )
    elif not job.holds_unique_key:
        yield say("Is {state}, but does not hold its unique key: a newer job was admitted past it, or it was retried.")
        if counted and not elapsed:
            yield say("It still counts as a duplicate for enqueues that look at {state} jobs, {ending}.")
    else:
        yield say("Holds its key since {moment}, against {rest}, {ending}.")
        if not counted:
            yield say(
                "Its policy does not count {state} jobs: the next enqueue under it is admitted, and takes the unique"
                " key from this job."
            )


def _finished(job: Any) -> Message:
    if not job.finished_at:
        return Message(job.state)
    say = partial(Message, state=job.state, moment=full(job.finished_at), id=job.replaced_by_id)
    return say("{state} since {moment}, replaced by job {id}") if job.replaced_by_id else say("{state} since {moment}")


def _ending(policy: UniquePolicy, until: datetime | None) -> str:
    """Say when a live job stops holding its key: when its window ends, or in a state that its policy does not count."""
    say = partial(Message, states=_or(TERMINAL - set(policy.states)), moment=_end(until))
    if set(policy.states) >= TERMINAL:
        return _lasting(policy, until)
    if until is None:
        return say("until it is {states}")
    return say("until {moment} or until it is {states}, whichever comes first")


def _lasting(policy: UniquePolicy, until: datetime | None) -> str:
    if until is not None:
        return Message("until {moment}", moment=_end(until))
    if policy.window is Window.RETENTION:
        return Message("until it is pruned")
    return Message("for as long as its row exists")


def _end(until: datetime | None) -> str:
    return "-" if until is None else full(until)


def _or(states: Any) -> str:
    names = [Message(state) for state in (*sorted(set(JobState) - TERMINAL), *_ENDS) if state in states]
    if len(names) < 2:
        return names[0] if names else ""
    return Message("{states} or {last}", states=Message.joined(", ", names[:-1]), last=names[-1])


_ENDS = (JobState.COMPLETED, JobState.CANCELLED, JobState.DISCARDED)


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The canonical text of a row and its fingerprint, both empty if there is none; ``note`` says what is wrong.

    Redacted members are masked in the text.
    """

    text: str = ""
    fingerprint: str = ""
    note: str = ""


def recompute(job: Any) -> Recomputed:
    """Compute the canonical text of a row as an enqueue would; no query is made."""
    policy, problem = read_policy(job)
    if job.key is None and policy is None:
        return Recomputed(note=problem and Message("There is no text, as the policy cannot be read."))
    if job.key is None and job.payload_pruned:
        return Recomputed(
            note=Message(
                "The text cannot be computed again: the args were pruned, and the row is kept only as it still counts"
                " as a duplicate."
            )
        )
    try:
        texts = list(stored_texts(job, policy))
    except OJSError as error:
        return Recomputed(note=Message("The text cannot be computed again: {reason}", reason=error.message))
    text = next((text for text in texts if fingerprint(text) == job.fingerprint), texts[0])
    return Recomputed(redacted_canonical(job.type, text), fingerprint(text), _note(job, text))


def _note(job: Any, text: str) -> str:
    if job.fingerprint is None or fingerprint(text) == job.fingerprint:
        return ""
    if job.fingerprint_scheme != SCHEME:
        return Message(
            "The stored fingerprint is of scheme {number}, and this version computes scheme {other}."
            " `manage.py jobs rekey` computes it anew.",
            number=job.fingerprint_scheme,
            other=SCHEME,
        )
    return Message(
        "The stored fingerprint is not the one of this text: the row was changed since it was enqueued."
        " `manage.py jobs verify --fix` computes it anew."
    )
