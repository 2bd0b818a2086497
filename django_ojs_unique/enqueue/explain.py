"""What an enqueue would do now, and why; nothing is written."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from django.db.models import QuerySet

from ..db.constraints import holding_unique_key
from ..exceptions import Message, as_json, did_you_mean, shorten
from ..handlers.carried import unique_names
from ..handlers.redaction import redacted, redacted_canonical, redacted_limits
from ..handlers.registry import registry
from ..ojs.limits import Limit, with_values
from ..unique.conflict import Action, duplicates, judge
from ..unique.fingerprint import unique_context
from ..unique.keys import JobKey, KeyAction
from ..unique.keys import judge as judge_key
from ..unique.policy import UniquePolicy, Window
from ..unique.row import JobRow
from .duplicates import by_id, may_replace_active, newest_finished, outside, stored_matches
from .new_job import NewJob
from .rewrite import merged_args

MOST_LIVE, MOST_FINISHED = 1000, 100


@dataclass(frozen=True, slots=True)
class Duplicate:
    """A stored job that counts as a duplicate; ``until`` is the end of its window, None for no limit."""

    job: JobRow
    until: datetime | None


@dataclass(frozen=True, slots=True)
class Explanation:
    """What an enqueue would do now.

    ``action`` is ``create``, ``replace``, ``reject`` or ``ignore``. ``duplicates`` come newest first: at most 1,000
    live ones, and 100 finished ones in each state. Their payloads are loaded on access. ``limits`` are those of the
    new job as it would store them (`Limit.of`), ``queue`` and ``priority`` are its own, and ``run_at`` is when it would
    become available, None for at once. ``in_turns``: whether its queue is fair. ``context``: what only jobs that carry
    the same match it, by the names of the classes in ``CONTEXT``; None stands for nothing carried.
    ``fingerprint`` and ``canonical_text`` are empty for a job with neither a policy nor a key, and so is ``context``.
    """

    action: str
    reason: str
    fingerprint: str
    canonical_text: str = field(repr=False)
    policy: UniquePolicy | None
    duplicates: tuple[Duplicate, ...] = ()
    limits: tuple[dict[str, Any], ...] = field(default=(), repr=False)
    queue: str = field(default="", compare=False)
    priority: int = field(default=0, compare=False)
    run_at: datetime | None = field(default=None, compare=False)
    in_turns: bool = field(default=False, compare=False)
    context: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def redacted(self, type: str, args: Any) -> Explanation:
        """Return it with what is redacted in jobs of a type masked."""
        text, limits = redacted_canonical(type, self.canonical_text), redacted_limits(type, args, list(self.limits))
        return replace(self, canonical_text=text, limits=tuple(limits), context=redacted(type, dict(self.context)))

    @property
    def matches_only(self) -> list[Message]:
        """Sentences that say which jobs match it only, as they carry the same context."""
        return [
            Message("Only jobs that carry no {name} match it.", name=name)
            if carried is None
            else Message("Only jobs that carry {name} {value} match it.", name=name, value=as_json(carried))
            for name, carried in self.context.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return it by the names that the CLI and the HTTP API have for it; None stands for what it has not."""
        policy = self.policy and {name: value for name, value in self.policy.to_dict().items() if value is not None}
        return {
            "action": self.action,
            "reason": self.reason,
            "unique_key": self.fingerprint or None,
            "canonical_text": self.canonical_text or None,
            "unique": policy,
            "context": self.context or None,
            "limits": list(map(with_values, self.limits)) or None,
            "duplicates": [
                {
                    "job_id": one.job.pk,
                    "state": str(one.job.state),
                    "created_at": one.job.created_at,
                    "until": one.until,
                }
                for one in self.duplicates
            ],
        }

    def __str__(self) -> str:
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield f"would {self.action}: {self.reason}"
        for limit in self.limits:
            yield f"limit:          {_limit_in_words(limit)}"
        if not self.fingerprint:
            return
        yield f"canonical text: {self.canonical_text}"
        yield f"fingerprint:    {self.fingerprint}"
        for sentence in self.matches_only:
            yield f"context:        {sentence}"
        for duplicate in self.duplicates:
            until = (
                f"until {duplicate.until:%Y-%m-%d %H:%M:%S %Z}" if duplicate.until else "for as long as it is listed"
            )
            yield f"duplicate:      {duplicate.job.pk}, {duplicate.job.state}, counts {until}"


def explain(jobs: QuerySet[Any], new_job: NewJob, now: datetime) -> Explanation:
    """Explain one valid request against the rows of ``jobs``."""
    explanation = _explain(jobs, new_job, now)
    job = new_job.job
    carried = (unique_context(job.meta) or {}) if explanation.fingerprint else None
    explanation = replace(
        explanation,
        limits=tuple(job.limits or ()),
        queue=job.queue,
        priority=job.priority,
        run_at=job.run_at,
        in_turns=job.fair_partition is not None,
        context={} if carried is None else {name: carried.get(name) for name in unique_names()},
    )
    is_stored = explanation.action == "create" or (explanation.action == "replace" and new_job.key is None)
    if new_job.has_id and is_stored and jobs.filter(pk=new_job.job.pk).exists():
        return replace(
            explanation, action="reject", reason=Message("a job with the id {id} already exists.", id=new_job.job.pk)
        )
    return explanation


def unhandled(type: str) -> Message:
    """Say that this process has no handler for a type."""
    if not list(registry):
        return Message("No handler is registered here for {type}.", type=repr(type))
    meant = did_you_mean(type, registry)
    return Message("No handler is registered here for {type}. {meant}", type=repr(type), meant=meant)


def _explain(jobs: QuerySet[Any], new_job: NewJob, now: datetime) -> Explanation:
    policy, job = new_job.policy, new_job.job
    if new_job.key is not None:
        return _explain_key(jobs, new_job, new_job.key, now)
    if policy is None:
        reason = Message("the job carries no unique policy.")
        if registry.find(job.type) is None:
            reason = Message.joined(" ", [reason, unhandled(job.type)])
        return Explanation("create", reason, "", "", None)
    stored = _newest(jobs, job.fingerprint, policy, now)
    counted = duplicates(stored, policy, now)
    spared = {row.pk for row in outside(new_job.replaceable, stored)}
    verdict = judge(stored, policy, now, replace_active=may_replace_active(jobs, stored), spared=spared)
    if verdict.action is not Action.ADMIT:
        assert verdict.existing is not None
        action = str(verdict.action)
        met, template = verdict.existing, Message("job {id} is {state}, and on_conflict is {value}.")
        reason = Message(template, id=met.pk, state=met.state, value=policy.on_conflict)
    elif verdict.cancel:
        action = "replace"
        one, several = _CANCELLED
        count = len(verdict.cancel)
        reason = Message(one if count == 1 else several, count=f"{count:,}", value=policy.on_conflict)
    elif counted:
        action, reason = "create", Message("the duplicates are finished, and a finished job stays as it is.")
    else:
        action, reason = "create", Message("no stored job is a duplicate now.")
    return Explanation(
        action,
        reason,
        job.fingerprint,
        new_job.canonical_text,
        policy,
        tuple(Duplicate(row, _until(row, policy, new_job.at)) for row in counted),
    )


def _until(row: JobRow, policy: UniquePolicy, at: datetime) -> datetime | None:
    return policy.kept_until(row.created_at, at if policy.window is Window.FIXED else policy.begins(row))


_CANCELLED = (
    Message("{count} duplicate would be cancelled, and on_conflict is {value}."),
    Message("{count} duplicates would be cancelled, and on_conflict is {value}."),
)


def _limit_in_words(stored: Mapping[str, Any]) -> str:
    """Say a limit, such as ``args.customer_id 42: running 1``."""
    limit, key = Limit.of_stored(stored), stored["key"]
    parts = [f"{part} {shorten(value)}" for part, value in key.items()]
    name = [] if key and limit.name == ",".join(key) else [limit.name]
    numbers = [f"{name} {value}" for name, value in limit.to_dict().items() if name not in ("key", "name")]
    return f"{', '.join([*name, *parts])}: {', '.join(numbers)}"


def _newest(jobs: QuerySet[Any], fingerprint: str, policy: UniquePolicy, now: datetime) -> list[JobRow]:
    """Return only the newest live and finished matches: a busy key can have a million of them."""
    light = jobs.defer("args", "meta", "steps", "result", "errors", "extra")
    matches = stored_matches(light, fingerprint, policy, now).order_by("-created_at", "-id")
    return [*by_id([matches[:MOST_LIVE], *newest_finished(light, fingerprint, policy, MOST_FINISHED)]).values()]


def _explain_key(jobs: QuerySet[Any], new_job: NewJob, key: JobKey, now: datetime) -> Explanation:
    holder = jobs.filter(holding_unique_key(), fingerprint=new_job.job.fingerprint).first()
    values = {} if holder is None else {"id": holder.pk, "state": holder.state, "value": key.mode}
    held = Message("job {id} holds the key and is {state}, and key_mode is {value}", **values)
    decided = judge_key(holder, key.mode, now)
    if holder is not None and decided in (KeyAction.REWRITE, KeyAction.REWRITE_BUT_TIME):
        merged_args(holder, new_job.job)
    action, reason = {
        KeyAction.CREATE: ("create", Message("no job holds the key.")),
        KeyAction.SUCCEED: ("create", Message("{held}: it would lose the key and its further attempts.", held=held)),
        KeyAction.KEEP: ("ignore", Message.joined("", [held, "."])),
        KeyAction.REWRITE: ("replace", Message("{held}: it would be rewritten.", held=held)),
        KeyAction.REWRITE_BUT_TIME: ("replace", Message("{held}: it would be rewritten, but for its time.", held=held)),
    }[decided]
    met = () if holder is None else (Duplicate(holder, None),)
    return Explanation(action, reason, new_job.job.fingerprint, new_job.canonical_text, None, met)
