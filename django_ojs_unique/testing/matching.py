"""Find the jobs or suppressed enqueues that a test expects, and say how the others differ."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from difflib import SequenceMatcher
from typing import Any, TypedDict

from django.db import connections

from ..exceptions import did_you_mean, shorten
from ..handlers.handler import Handler
from ..handlers.registry import converter_of
from ..models import Job, SuppressedEnqueue
from ..ojs.canonical import plain
from ..ojs.durations import end_of, read_delay
from ..ojs.names import job_key
from ..ojs.words import counted
from ..reporting.uniqueness import against, read_policy

MOST_SHOWN = 10

TypeOrHandler = str | Handler[..., Any]
Criteria = dict[str, Any]


class _Expected(TypedDict, total=False):
    args: Any
    args__contains: Any
    meta: Mapping[str, Any]
    meta__contains: Mapping[str, Any]
    queue: str


class ExpectedSuppression(_Expected, total=False):
    """The attributes of a suppressed enqueue that a test can compare."""

    outcome: str


class ExpectedJob(_Expected, total=False):
    """The attributes of an enqueued job that a test can compare."""

    priority: int
    state: str
    key: str | None
    scheduled_at: datetime | tuple[datetime, datetime] | None
    delay: str | timedelta | float | None


def criteria(type_or_job: TypeOrHandler | Job | None, wanted: Mapping[str, Any], known: Any) -> Criteria:
    """Return the expected values by attribute. Raises TypeError for an unknown attribute."""
    for name in wanted:
        if name not in known.__annotations__:
            raise TypeError(f"{name!r} cannot be asked for. {did_you_mean(name, known.__annotations__)}")
    asked: Criteria = {}
    if isinstance(type_or_job, Job):
        asked["existing_job_id"] = type_or_job.pk
    elif type_or_job is not None:
        asked["type"] = type_or_job.definition.type if isinstance(type_or_job, Handler) else type_or_job
    for name, value in wanted.items():
        if name.startswith("args"):
            value = _converted(asked.get("type"), value)
        asked[name] = plain(value, name) if name.startswith(("args", "meta")) else value
    if asked.get("key") is not None:
        asked["key"] = job_key(asked["key"])
    return asked


def _converted(type: Any, args: Any) -> Any:
    """Return the expected args as their handler's enqueue would store them."""
    converter = converter_of(type)
    return args if converter is None or not isinstance(args, (dict, list, tuple)) else converter.to_json(args)


def require(
    found: Iterable[Any], asked: Criteria, count: int | None, verb: str, suppressed: Callable[[], Iterable[Any]] = tuple
) -> Any:
    """Return the first match. Raises AssertionError if there is none, or if there are not exactly ``count``.

    With ``count=0``, return None. ``suppressed`` returns the suppressed enqueues, which may be what is missing.
    """
    __tracebackhide__ = True
    judged = _judge(found, asked)
    matches = [one for one, differences in judged if not differences]
    if len(matches) == count or (matches and count is None):
        return matches[0] if matches else None
    wanted = "at least one" if count is None else str(count)
    missing = len(matches) < (1 if count is None else count)
    raise AssertionError(
        f"Wanted {wanted} {verb}: {_text_of(asked)}. Found {len(matches)}.\n{_listed(judged, asked, verb)}"
        f"{_duplicates(suppressed(), asked) if missing else ''}{_waiting()}"
    )


def refuse(found: Iterable[Any], asked: Criteria, verb: str) -> None:
    """Raise AssertionError if there is a match."""
    __tracebackhide__ = True
    matches = [judged for judged in _judge(found, asked) if not judged[1]]
    if matches:
        raise AssertionError(f"Wanted none {verb}: {_text_of(asked)}.\n{_listed(matches, asked, verb)}")


def describe(one: Any) -> str:
    """Describe a job or a suppressed enqueue in one line."""
    text = f"{one.type} {shorten(one.args)} in queue {one.queue}"
    if one.meta:
        text += f", meta {shorten(one.meta)}"
    if not isinstance(one, Job):
        return f"{text}, {one.outcome}: met job {one.existing_job_id}"
    when = f" at {one.scheduled_at}" if one.scheduled_at is not None else ""
    return f"{text}, {one.state}{when} ({one.pk})"


Judged = tuple[Any, list[str]]


def _judge(found: Iterable[Any], asked: Criteria) -> list[Judged]:
    return [(one, [text for name, value in asked.items() for text in _differences(one, name, value)]) for one in found]


def _differences(one: Any, name: str, wanted: Any) -> Iterator[str]:
    if name == "delay":
        yield from _otherwise_delayed(one, wanted)
        return
    attribute, _, contains = name.partition("__")
    value = getattr(one, attribute)
    if attribute in ("args", "meta"):
        yield from _unlike(attribute, value, wanted, in_part=bool(contains))
    elif isinstance(wanted, tuple):
        if value is None or not wanted[0] <= value <= wanted[1]:
            yield f"{name} is {value}, not between {wanted[0]} and {wanted[1]}"
    elif value != wanted:
        yield f"{name} is {_text(value)}, not {_text(wanted)}"


def _otherwise_delayed(job: Job, wanted: Any) -> Iterator[str]:
    due = job.scheduled_at or job.created_at
    if abs(due - end_of(job.created_at, read_delay(wanted or 0, "delay"))) >= timedelta(seconds=1):
        yield f"delay is {due - job.created_at}, not {shorten(wanted)}"


def _unlike(path: str, value: Any, wanted: Any, *, in_part: bool) -> Iterator[str]:
    """Yield each difference of a JSON value; with ``in_part``, it may have more members and items than wanted."""
    if isinstance(value, dict) and isinstance(wanted, dict):
        for name in wanted:
            if name in value:
                yield from _unlike(f"{path}.{name}", value[name], wanted[name], in_part=in_part)
            else:
                yield f"{path}.{name} is missing, not {shorten(wanted[name])}"
        if not in_part:
            for name in value:
                if name not in wanted:
                    yield f"{path}.{name} is {shorten(value[name])}, not missing"
    elif in_part and isinstance(value, list) and isinstance(wanted, list):
        for item in wanted:
            if not any(not list(_unlike(path, each, item, in_part=True)) for each in value):
                yield f"{path} does not contain {shorten(item)}"
    elif value != wanted or isinstance(value, bool) is not isinstance(wanted, bool):
        yield f"{path} is {shorten(value)}, not {shorten(wanted)}"


def _text_of(asked: Criteria) -> str:
    parts = [f"{name}={_text(value)}" for name, value in asked.items() if name != "type"]
    return ", ".join([str(asked.get("type", "any job")), *parts])


def _text(value: Any) -> str:
    return str(value) if isinstance(value, datetime) else shorten(value)


def _listed(judged: list[Judged], asked: Criteria, verb: str) -> str:
    if not judged:
        return f"None was {verb} at all."
    judged = sorted(judged, key=lambda each: _distance(each, asked))
    lines = [f"  {describe(one)}{''.join(f'{chr(10)}      {text}' for text in texts)}" for one, texts in judged]
    more = [f"  and {len(lines) - MOST_SHOWN:,} more"] if len(lines) > MOST_SHOWN else []
    return "\n".join([f"{len(lines):,} {verb}, the nearest first:", *lines[:MOST_SHOWN], *more])


def _distance(judged: Judged, asked: Criteria) -> tuple[float, int]:
    one, differences = judged
    alike = SequenceMatcher(None, one.type, asked.get("type", one.type)).ratio()
    return 1 - alike, len(differences)


def _duplicates(suppressed: Iterable[Any], asked: Criteria) -> str:
    """Say which of these enqueues would be matches, had they not met a duplicate that stays."""
    of_both = {name: value for name, value in asked.items() if name in ("type", *ExpectedSuppression.__annotations__)}
    met = [one for one, differences in _judge(suppressed, of_both) if not differences and one.outcome != "replaced"]
    if not met:
        return ""
    lines = [f"  {describe(one)}\n      {_why(one)}" for one in met[:MOST_SHOWN]]
    more = [f"  and {len(met) - MOST_SHOWN:,} more"] if len(met) > MOST_SHOWN else []
    return "\n".join(["", f"{len(met):,} met a duplicate, and stored no job:", *lines, *more])


def _why(one: Any) -> str:
    """Say what the existing job was, and what it has in common with the requested one."""
    if isinstance(one, SuppressedEnqueue):
        job = Job.objects.using(one._state.db).filter(pk=one.existing_job_id).first()  # None if it was deleted
    else:
        job = one.job  # the row of the existing one may have been rolled back
    policy = read_policy(job)[0] if job is not None else None
    if job is not None and job.key is not None:
        common = f"key {job.key!r}"
    else:
        common = "fingerprint" if policy is None else against(policy)
    return f"which was {one.existing_state} and has the same {common}"


def _waiting() -> str:
    """Say how many callbacks wait for a commit, such as those of `enqueue_on_commit`: a `TestCase` never commits."""
    count = sum(len(each.run_on_commit) for each in connections.all(initialized_only=True))
    hint = "in a TestCase, put the code into self.captureOnCommitCallbacks(execute=True)"
    return f"\nWaiting for the commit: {counted(count, 'callback')}; {hint}." if count else ""
