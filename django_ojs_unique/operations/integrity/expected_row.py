"""Compute what the uniqueness fields of a row should be."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...conf import settings
from ...enqueue.new_job import FOREVER
from ...exceptions import OJSError
from ...ojs.states import ALL, INCOMPLETE, TERMINAL, WAITING, JobState
from ...unique.fingerprint import SCHEME, fingerprint, stored_moments, stored_texts
from ...unique.keys import HOLDING, JobKey
from ...unique.policy import UniquePolicy, Window
from ...unique.presets import resque_uniqueue
from .columns import RULES
from .problems import Kind

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
    "unique_states",
    "window_ends_at",
    "created_at",
    "expires_at",
    "started_at",
    "enqueued_at",
    "scheduled_at",
    "run_at",
    "finished_at",
    "lease_token",
    "lease_expires_at",
    "payload_pruned",
    "worker_id",
    "limits",
    "fair_partition",
    "blocked_by",
    "tags",
    "attempt",
    "max_attempts",
    "retry_options",
    "dead_letter",
)
"""The fields that `examine` and `declare` need."""

_OUTSIDE: dict[str, Any] = {
    "unique": None,
    "key": None,
    "fingerprint": None,
    "fingerprint_scheme": SCHEME,
    "unique_states": frozenset(),
    "window_ends_at": None,
}


@dataclass(slots=True, eq=False)
class ExpectedRow:
    """A row, and what should be different about it.

    ``kinds``: what is wrong. ``changes``: the fields to write. ``policy``: the policy after that. ``is_new``: the row
    had no fingerprint, so nobody looked for duplicates when it was enqueued. ``problem``: why the policy cannot be read
    or does not fit the job. ``duplicates``: the older job that it duplicates, and for which it is cancelled.
    ``lost_unique_key``: an older job of its fingerprint holds the unique key.
    """

    row: Any
    policy: UniquePolicy | None = None
    kinds: list[Kind] = field(default_factory=list)
    changes: dict[str, Any] = field(default_factory=dict)
    is_new: bool = False
    problem: str = ""
    duplicates: ExpectedRow | None = None
    lost_unique_key: bool = False

    def __getattr__(self, name: str) -> Any:
        return self.changes[name] if name in self.changes else getattr(self.row, name)

    @property
    def age(self) -> tuple[datetime, Any]:
        """The sort key that puts the oldest job first."""
        return self.row.created_at, self.row.pk

    @property
    def holds_unique_key(self) -> bool:
        """Whether the row will keep others of its fingerprint out."""
        return self.row.state in self.unique_states

    def leave(self) -> None:
        """Take the row out of uniqueness."""
        self.policy = None
        self.set(**_OUTSIDE)

    def forget(self) -> None:
        """Leave the row as it is."""
        self.kinds, self.changes, self.policy = [], {}, None

    def set(self, **fields: Any) -> None:
        """Plan to write these fields; values that the row already has are left out."""
        for name, value in fields.items():
            self.changes.pop(name, None)
            if getattr(self.row, name) != value:
                self.changes[name] = value


def examine(row: Any) -> ExpectedRow:
    """Compare a row with what its own policy or key gives; a waiting row without either, with its queue's rule."""
    expected = ExpectedRow(row)
    if row.state not in ALL:
        expected.kinds.append(Kind.STATE)
        return expected
    _require_columns(expected)
    kinds = list(expected.kinds)
    try:
        if row.key is not None:
            if row.fingerprint is not None:
                _compare(expected, _of_key(row), HOLDING)
        elif row.unique is not None:
            expected.policy = UniquePolicy.parse(row.unique)
            if row.fingerprint is not None:
                _compare(
                    expected,
                    [] if row.payload_pruned else _of_policy(row, expected.policy),
                    expected.policy.unique_states,
                )
                _require_window(expected)
        elif row.fingerprint is not None:
            expected.kinds.append(Kind.STRAY)
            expected.leave()
        elif row.state in WAITING and settings.is_unique(row.queue):
            _govern(expected, resque_uniqueue())
            expected.kinds.append(Kind.RULE)
    except OJSError as error:
        expected.kinds, expected.problem = [*kinds, Kind.POLICY], error.message
        expected.leave()
    return expected


def declare(row: Any, policy: UniquePolicy | None) -> ExpectedRow:
    """Give a live row the ``policy`` that its handler declares now.

    A job with a key keeps it. A job that was taken out of uniqueness manually stays out. If the args do not fit the
    policy, ``problem`` says why, and nothing is changed.
    """
    expected = ExpectedRow(row)
    if row.state not in INCOMPLETE:
        return expected
    if row.key is not None:
        if row.fingerprint is not None and row.fingerprint_scheme != SCHEME:
            expected.set(fingerprint=_of_key(row)[0], fingerprint_scheme=SCHEME)
        return expected
    if row.unique is not None and row.fingerprint is None:
        return expected
    if policy is None and settings.is_unique(row.queue):
        policy = resque_uniqueue()
    try:
        if policy is None:
            expected.leave()
        else:
            _govern(expected, policy)
    except OJSError as error:
        return ExpectedRow(row, problem=error.message)
    return expected


def _require_columns(expected: ExpectedRow) -> None:
    """Compare the columns that do not depend on a policy or a key."""
    for rule in RULES:
        if rule.breaks(expected.row):
            expected.kinds.append(rule.kind)
            expected.set(**rule.repair(expected.row))


def _govern(expected: ExpectedRow, policy: UniquePolicy) -> None:
    row = expected.row
    expected.policy, expected.is_new = policy, row.fingerprint is None
    fingerprints = _of_policy(row, policy)
    expected.set(
        unique=policy.to_dict(),
        fingerprint=row.fingerprint if row.fingerprint in fingerprints else fingerprints[0],
        fingerprint_scheme=SCHEME,
        unique_states=policy.unique_states,
        window_ends_at=_window_end(row, policy),
    )


def _compare(expected: ExpectedRow, fingerprints: list[str], states: frozenset[JobState]) -> None:
    row = expected.row
    if fingerprints and row.fingerprint not in fingerprints:
        expected.kinds.append(Kind.FINGERPRINT if row.fingerprint_scheme == SCHEME else Kind.SCHEME)
        expected.set(fingerprint=fingerprints[0])
    elif fingerprints and row.fingerprint_scheme != SCHEME:
        expected.kinds.append(Kind.SCHEME)
    if fingerprints:
        expected.set(fingerprint_scheme=SCHEME)
    if row.unique_states == ALL and row.key is None:
        return  # it holds the unique key for a live job; the next enqueue decides anew
    if row.unique_states and (row.unique_states != states or row.state not in states):
        expected.kinds.append(Kind.UNIQUE_STATES)
        expected.set(unique_states=states if row.state in states else frozenset())


def _require_window(expected: ExpectedRow) -> None:
    assert expected.policy is not None
    end = _window_end(expected.row, expected.policy)
    if end is not None and expected.row.window_ends_at is None:
        expected.kinds.append(Kind.WINDOW)
        expected.set(window_ends_at=end)


def _window_end(row: Any, policy: UniquePolicy) -> datetime | None:
    if TERMINAL.isdisjoint(policy.states) or policy.window is Window.RETENTION:
        return None
    return policy.kept_until(row.created_at, next(stored_moments(row, policy))) or FOREVER


def _of_key(row: Any) -> list[str]:
    JobKey(row.key)  # raises for an invalid key, written manually
    return [fingerprint(text) for text in stored_texts(row, None)]


def _of_policy(row: Any, policy: UniquePolicy) -> list[str]:
    return [fingerprint(text) for text in stored_texts(row, policy)]
