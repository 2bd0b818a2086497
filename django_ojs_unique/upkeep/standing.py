"""What a row should say about its uniqueness."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ..conf import settings
from ..exceptions import OJSError
from ..ojs.fingerprint import SCHEME, fingerprint, stored_moments, stored_texts
from ..ojs.keys import HOLDING, JobKey
from ..ojs.policy import UniquePolicy, Window
from ..ojs.presets import resque_uniqueue
from ..ojs.states import INCOMPLETE, TERMINAL, WAITING, JobState
from ..request import FOREVER
from .kinds import Kind

READ = (
    "type",
    "queue",
    "args",
    "meta",
    "state",
    "unique",
    "key",
    "fingerprint",
    "fingerprint_scheme",
    "guarded_states",
    "window_ends_at",
    "created_at",
    "enqueued_at",
    "scheduled_at",
    "slimmed",
    "worker_id",
)
"""The fields that decide."""

_OUTSIDE: dict[str, Any] = {
    "unique": None,
    "key": None,
    "fingerprint": None,
    "fingerprint_scheme": SCHEME,
    "guarded_states": frozenset(),
    "window_ends_at": None,
}


@dataclass(slots=True, eq=False)
class Standing:
    """A row, and what should be different about it.

    ``kinds`` says what is wrong, ``changes`` are the fields to write, ``policy`` is the one that holds then.
    ``is_new`` tells that no policy held before, so that nobody looked for duplicates when it was enqueued. ``problem``
    says why the policy cannot be read or does not fit. Among the jobs of the same fingerprint: ``duplicates`` is the
    older job for which it is cancelled, ``lost_guard`` tells that an older one has the guard.
    """

    row: Any
    policy: UniquePolicy | None = None
    kinds: list[Kind] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    is_new: bool = False
    problem: str = ""
    duplicates: Standing | None = None
    lost_guard: bool = False

    def __getattr__(self, name: str) -> Any:
        return self.changes[name] if name in self.changes else getattr(self.row, name)

    @property
    def age(self) -> tuple[datetime, Any]:
        """The order of jobs: the oldest first."""
        return self.row.created_at, self.row.pk

    @property
    def is_guarding(self) -> bool:
        """Whether the row will keep others of its fingerprint out."""
        return self.row.state in self.guarded_states

    def leave(self) -> None:
        """Take no more part in uniqueness."""
        self.policy = None
        self.set(**_OUTSIDE)

    def forget(self) -> None:
        """Leave the row as it is."""
        self.kinds, self.changes, self.policy = [], {}, None

    def set(self, **fields: Any) -> None:
        """Let these fields have these values; keep only what differs."""
        for name, value in fields.items():
            self.changes.pop(name, None)
            if getattr(self.row, name) != value:
                self.changes[name] = value


def examine(row: Any) -> Standing:
    """Compare a row with what its own policy or key gives."""
    standing = Standing(row)
    try:
        if row.key is not None:
            if row.fingerprint is not None:
                _compare(standing, _of_key(row), HOLDING)
        elif row.unique is not None:
            standing.policy = UniquePolicy.parse(row.unique)
            if row.fingerprint is not None:
                _compare(standing, [] if row.slimmed else _of_policy(row, standing.policy), _guard(standing.policy))
                _require_window(standing)
        elif row.fingerprint is not None:
            standing.kinds.append(Kind.STRAY)
            standing.leave()
        elif row.state in WAITING and settings.is_unique(row.queue):
            _govern(standing, resque_uniqueue())
            standing.kinds.append(Kind.RULE)
    except OJSError as error:
        standing.kinds, standing.problem = [Kind.POLICY], error.message
        standing.leave()
    return standing


def declare(row: Any, policy: UniquePolicy | None) -> Standing:
    """Give a live row the policy that its handler declares now; a key stays, and so does what left uniqueness by hand.

    ``problem`` says why its args do not fit the policy; nothing is different about the row then.
    """
    standing = Standing(row)
    if row.state not in INCOMPLETE:
        return standing
    if row.key is not None:
        if row.fingerprint is not None and row.fingerprint_scheme != SCHEME:
            standing.set(fingerprint=_of_key(row)[0], fingerprint_scheme=SCHEME)
        return standing
    if row.unique is not None and row.fingerprint is None:
        return standing
    if policy is None and settings.is_unique(row.queue):
        policy = resque_uniqueue()
    try:
        if policy is None:
            standing.leave()
        else:
            _govern(standing, policy)
    except OJSError as error:
        return Standing(row, problem=error.message)
    return standing


def _govern(standing: Standing, policy: UniquePolicy) -> None:
    row = standing.row
    standing.policy, standing.is_new = policy, row.fingerprint is None
    expected = _of_policy(row, policy)
    standing.set(
        unique=policy.to_dict(),
        fingerprint=row.fingerprint if row.fingerprint in expected else expected[0],
        fingerprint_scheme=SCHEME,
        guarded_states=_guard(policy),
        window_ends_at=_window_end(row, policy),
    )


def _compare(standing: Standing, expected: list[str], guard: frozenset[JobState]) -> None:
    row = standing.row
    if expected and row.fingerprint not in expected:
        standing.kinds.append(Kind.FINGERPRINT if row.fingerprint_scheme == SCHEME else Kind.SCHEME)
        standing.set(fingerprint=expected[0])
    elif expected and row.fingerprint_scheme != SCHEME:
        standing.kinds.append(Kind.SCHEME)
    if expected:
        standing.set(fingerprint_scheme=SCHEME)
    if row.guarded_states and (row.guarded_states != guard or row.state not in guard):
        standing.kinds.append(Kind.GUARD)
        standing.set(guarded_states=guard if row.state in guard else frozenset())


def _require_window(standing: Standing) -> None:
    assert standing.policy is not None
    end = _window_end(standing.row, standing.policy)
    if end is not None and standing.row.window_ends_at is None:
        standing.kinds.append(Kind.WINDOW)
        standing.set(window_ends_at=end)


def _guard(policy: UniquePolicy) -> frozenset[JobState]:
    return INCOMPLETE.union(map(JobState, policy.states))


def _window_end(row: Any, policy: UniquePolicy) -> datetime | None:
    if TERMINAL.isdisjoint(policy.states) or policy.window is Window.RETENTION:
        return None
    return policy.kept_until(row.created_at, next(stored_moments(row, policy))) or FOREVER


def _of_key(row: Any) -> list[str]:
    JobKey(row.key)  # refuses what was written by hand and is none
    return [fingerprint(text) for text in stored_texts(row, None)]


def _of_policy(row: Any, policy: UniquePolicy) -> list[str]:
    return [fingerprint(text) for text in stored_texts(row, policy)]
