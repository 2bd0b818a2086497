"""Checks of the policies that handlers declare."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from django.core.checks import CheckMessage, Error, Warning
from django.db import connections
from django.utils import timezone

from .. import conf
from ..exceptions import HandlerError, did_you_mean
from ..handlers.registry import Definition, parameters_of, registry
from ..maintenance.cron import owner_of
from ..ojs.cron import Cron
from ..ojs.durations import end_of, format_duration
from ..ojs.retry import RetryPolicy
from ..ojs.states import TERMINAL, JobState
from ..unique.policy import OnRetry, UniquePolicy, Window
from ..unique.presets import UNTIL_START, WAITING
from .database import with_jobs
from .setting_problems import problems

BY_ITSELF = {
    JobState.SCHEDULED: {JobState.AVAILABLE},
    JobState.AVAILABLE: {JobState.ACTIVE, JobState.DISCARDED},
    JobState.ACTIVE: {JobState.AVAILABLE, JobState.RETRYABLE, JobState.COMPLETED, JobState.DISCARDED},
    JobState.RETRYABLE: {JobState.AVAILABLE},
}
"""The moves that happen by themselves. A job becomes pending only by request, and is cancelled and retried manually."""

MEANT = [states - {JobState.PENDING} for states in (WAITING, UNTIL_START)]
"""Sets of states with a hole that is intended: they leave out `active`, so the next job may wait while one runs."""

MOST_NAMED = 10
OCCURRENCES = 10
"""How many of the next occurrences of a periodic job are compared."""


def check_policies(**kwargs: Any) -> list[CheckMessage]:
    """W006: a policy's states have a hole. W011: a periodic job meets its own last occurrence, which has finished.

    W021: a policy says no keys, and its handler has arguments.
    """
    definitions = registry.definitions()
    messages = [_hole(each, left_out) for each in definitions if (left_out := holes(each))]
    messages += (_without_keys(each) for each in definitions if _leaves_args_out(each))
    if not any(problems()):
        messages += (_periodic(each) for each in definitions if _meets_itself(each))
    return messages


def check_conversions(**kwargs: Any) -> list[CheckMessage]:
    """E004: a handler converts its args, and the type hint of one cannot be read or converted."""
    messages: list[CheckMessage] = []
    for definition in registry.definitions():
        try:
            if definition.converter is not None:
                definition.converter.check()
        except HandlerError as error:
            problem, _, hint = error.message.partition(". ")
            messages.append(Error(f"{problem}.", hint=hint, id="django_ojs_unique.E004"))
    return messages


def check_owners(**kwargs: Any) -> list[CheckMessage]:
    """E005: a periodic job belongs to an unknown database."""
    declared = [(each, each.cron) for each in registry.definitions() if each.cron is not None]
    return [
        Error(
            f"The periodic job {each.type!r} ({each.place}) has using={cron.using!r}, which is no alias in DATABASES.",
            hint=f"{did_you_mean(cron.using, connections)} Workers of that database enqueue it.",
            id="django_ojs_unique.E005",
        )
        for each, cron in declared
        if cron.using is not None and cron.using not in connections
    ]


def check_other_databases(databases: Iterable[str] | None = None, **kwargs: Any) -> list[CheckMessage]:
    """W017: a database has jobs, and its workers leave out periodic jobs that say no database."""
    definitions = registry.definitions()
    undecided = [each.type for each in definitions if each.cron is not None and each.cron.using is None]
    messages: list[CheckMessage] = []
    for alias in with_jobs(databases) if undecided else ():
        if (owner := owner_of()) != alias:
            messages.append(
                Warning(
                    f"Database {alias!r} has jobs, but the periodic jobs of the code are enqueued in {owner!r} only:"
                    f" {named(undecided)}.",
                    hint=f"Say where each belongs: cron=Cron(..., using={owner!r}), or using={alias!r}. For a job in"
                    " each database, define the others with CronJob.objects.using(...).define(...).",
                    id="django_ojs_unique.W017",
                )
            )
    return messages


def check_retention(**kwargs: Any) -> list[CheckMessage]:
    """W007: finished jobs are kept for longer than ``RETENTION`` says, because their policy counts them."""
    if any(problems()):
        return []
    return [
        Warning(
            f"OJS_UNIQUE['RETENTION'] keeps {kind} jobs for {format_duration(kept)}, but the rows of"
            f" {definition.type!r} ({definition.place}) stay {f'for {period}' if period else 'for ever'}: their unique"
            " policy counts them so long.",
            hint="When RETENTION has passed, they lose args and errors only. Give the policy a"
            f" {'shorter ' if period else ''}period, or window='retention' and no period, with which a job counts until"
            " it is pruned. If it is meant so, silence this check.",
            id="django_ojs_unique.W007",
        )
        for definition in registry.definitions()
        for kind, period, kept in _outlasting(definition)
    ]


def check_retries(**kwargs: Any) -> list[CheckMessage]:
    """W022: handlers without a retry policy give up after seconds, and the project has no other default."""
    if any(problems()) or conf.settings.retry is not None:
        return []
    given_up = [each.type for each in registry.definitions() if each.retry is None]
    if not given_up:
        return []
    seconds = f"{RetryPolicy().lasts.total_seconds():g}"
    return [
        Warning(
            f"Jobs of {named(given_up)} are discarded after about {seconds} seconds of failures: these handlers have no"
            " retry policy, and neither has the project.",
            hint="Write OJS_UNIQUE['RETRY'] = {'max_attempts': 17} for outages of twenty minutes, or {'max_attempts':"
            " 3} if it is meant so. RetryPolicy(...).lasts says how long a policy tries.",
            id="django_ojs_unique.W022",
        )
    ]


def named(types: Sequence[str]) -> str:
    """Return these names, at most ten of them."""
    return f"{', '.join(types[:MOST_NAMED])}{' and others' if len(types) > MOST_NAMED else ''}"


def holes(definition: Definition) -> list[JobState]:
    """Return the states that the policy does not count, but from which a job moves by itself to one that it counts."""
    policy = definition.unique
    if policy is None or set(policy.states) - {JobState.PENDING} in MEANT:
        return []
    moves = dict(BY_ITSELF)
    if definition.retry is not None and definition.retry.max_attempts <= 1:
        del moves[JobState.RETRYABLE]
    left_out = [state for state in moves if state not in policy.states and _goes_on_to(state, moves, policy)]
    if policy.on_retry is OnRetry.DISCARD and JobState.RETRYABLE in left_out:
        left_out.remove(JobState.RETRYABLE)
    return left_out


def _goes_on_to(state: JobState, moves: dict[JobState, set[JobState]], policy: UniquePolicy) -> bool:
    reached: set[JobState] = set()
    ahead = [state]
    while ahead:
        for following in moves.get(ahead.pop(), set()) - reached:
            reached.add(following)
            ahead.append(following)
    return not reached.isdisjoint(policy.states)


def _hole(definition: Definition, left_out: list[JobState]) -> CheckMessage:
    assert definition.unique is not None
    names = ", ".join(left_out)
    discard = ", or set on_retry='discard'" if left_out == [JobState.RETRYABLE] else ""
    return Warning(
        f"The states of the unique policy of {definition.type!r} ({definition.place}) have a hole: they list"
        f" {', '.join(definition.unique.states)}, but not {names}. While a job is {' or '.join(left_out)}, another one"
        " is admitted, and later both count.",
        hint=f"Add {names} to states{discard}; or take presets.INCOMPLETE, until a job has finished, or"
        f" presets.WAITING, until it starts. If it is meant so, silence this check.",
        id="django_ojs_unique.W006",
    )


def _leaves_args_out(definition: Definition) -> bool:
    policy = definition.unique
    return policy is not None and not policy.says_keys and bool(parameters_of(definition).parameters)


def _without_keys(definition: Definition) -> CheckMessage:
    assert definition.unique is not None
    arguments = ", ".join(parameters_of(definition).parameters)
    return Warning(
        f"The unique policy of {definition.type!r} ({definition.place}) says no keys, so its arguments ({arguments}) do"
        " not count: while one job waits or runs, jobs with other arguments are its duplicates too.",
        hint="Add keys=['type', 'args'] to the policy, and args_keys=[...] for some of the arguments; or keys=['type']"
        " if it is meant so.",
        id="django_ojs_unique.W021",
    )


def _outlasting(definition: Definition) -> Iterator[tuple[str, object, timedelta]]:
    """Yield each kind of finished jobs that the policy counts for longer than ``RETENTION``, and both lengths."""
    policy = definition.unique
    if policy is None or policy.window is Window.RETENTION:
        return
    now = timezone.now()
    dead_letter = definition.retry is not None and definition.retry.on_exhaustion == "dead_letter"
    for state in sorted(TERMINAL.intersection(policy.states)):
        kind = "dead_letter" if dead_letter and state == JobState.DISCARDED else str(state)
        kept = conf.settings.retention[kind]
        if kept is not None and (policy.duration is None or end_of(now, policy.duration) > now + kept):
            yield kind, policy.period, kept


def _meets_itself(definition: Definition) -> bool:
    """Whether an occurrence meets the finished job of the one before as a duplicate, and so is not enqueued."""
    policy, cron = definition.unique, definition.cron
    if policy is None or cron is None or policy.replaces or TERMINAL.isdisjoint(policy.states):
        return False
    if "cron_triggered_at" in (policy.meta_keys or ()):  # its value differs each time
        return False
    return any(_counts_still(policy, *two) for two in pairwise(_occurrences(cron)))


def _occurrences(cron: Cron) -> Iterator[datetime]:
    moment = cron.next_after(timezone.now())
    for _ in range(OCCURRENCES):
        if moment is None:
            return
        yield moment
        moment = cron.next_after(moment)


def _counts_still(policy: UniquePolicy, before: datetime, now: datetime) -> bool:
    if policy.window is Window.FIXED:
        return policy.window_of(before) == policy.window_of(now)
    if policy.window is Window.RETENTION:
        kept = [conf.settings.retention[kind] for kind in TERMINAL.intersection(policy.states)]
        return any(length is None or before + length >= now for length in kept)
    end = policy.window_end(before)
    return end is None or end >= now  # also if equal: the next occurrence meets one that was enqueued late


def _periodic(definition: Definition) -> CheckMessage:
    assert definition.cron is not None
    return Warning(
        f"The periodic job {definition.type!r} ({definition.place}) is due again while its unique policy still counts"
        " the last one, even if that has finished: then no job is enqueued.",
        hint="Leave the finished states out of the policy; that the last job has finished is what the overlap policy"
        f" sees to. Or give the policy a period shorter than the time between two of {definition.cron.expression!r}.",
        id="django_ojs_unique.W011",
    )
