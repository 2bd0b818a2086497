"""The limits by name, and their keys: which numbers are in force, what runs, and what waits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any
from uuid import UUID

from django.db import connections

from ..db.dialects import kind_of
from ..handlers.redaction import redacted_member
from ..handlers.registry import registry
from ..models import Job, LimitKey, LimitOverride
from ..models.limit import in_force
from ..ojs.gates import AFTER_KEYS, ID, KEYS
from ..ojs.states import JobState
from .limit_waits import TIMES, key_text
from .queues import MOST_QUEUES, live, walk
from .text import MOST_COUNTED

MOST_NAMES = 200
"""How many names of limits are looked at."""
MOST_KEYS = 1_000
"""How many of the keys for which jobs wait are looked at."""


@dataclass(frozen=True, slots=True)
class Numbers:
    """How many jobs of a key may run at once, and how many may start in so many ``seconds``; None: any number."""

    running: int | None = None
    rate: int | None = None
    seconds: int = 0

    @classmethod
    def of(cls, limit: Mapping[str, Any]) -> Numbers:
        """Return the numbers of a limit as a job stores it."""
        return cls(limit.get("running"), limit.get("rate"), limit.get("seconds", 0))

    def under(self, override: LimitOverride) -> Numbers:
        """Return these numbers as an operator has changed them."""
        limit = {"running": self.running, "rate": self.rate} | ({"seconds": self.seconds} if self.seconds else {})
        return Numbers(*in_force(limit, override), self.seconds)

    def __str__(self) -> str:
        parts = [] if self.running is None else [f"{self.running:,} at once"]
        if self.rate is not None:
            parts.append(f"{self.rate:,} per {TIMES.get(self.seconds, 'time of the limit')}")
        return ", ".join(parts)


@dataclass(frozen=True, slots=True)
class LimitReport:
    """A limit now. Counts stop at `MOST_COUNTED` + 1, which means: that many or more.

    ``given``: the numbers that jobs and handlers say; ``override``: those that an operator has set. ``keys``: how many
    keys were used in the last day. ``running`` and ``waiting`` count jobs, ``full`` the keys for which jobs wait.
    """

    name: str
    given: Sequence[Numbers] = ()
    override: LimitOverride | None = None
    keys: int = 0
    running: int = 0
    waiting: int = 0
    full: int = 0

    @property
    def numbers(self) -> list[Numbers]:
        """The numbers in force; several, if jobs say different ones."""
        if self.override is None:
            return list(self.given)
        if not self.given:
            return [Numbers(self.override.running, self.override.rate)]
        return list(dict.fromkeys(one.under(self.override) for one in self.given))


@dataclass(frozen=True, slots=True)
class KeyReport:
    """A key of a limit now: how many jobs run under it and wait for it, ``since`` when, and the ``first`` of these.

    ``text``: the key in words, without redacted values.
    """

    id: str
    name: str
    text: str
    running: int = 0
    waiting: int = 0
    since: datetime | None = None
    first: UUID | None = None


@dataclass(slots=True)
class _Key:
    """What was found out about a key. ``numbers``: those of a job under it; ``job``: the id of one."""

    name: str = ""
    running: int = 0
    waiting: int = 0
    first: UUID | None = None
    job: UUID | None = None
    numbers: Numbers | None = None


def limits(using: str) -> list[LimitReport]:
    """Return the limits that are in use, declared or set by operators, sorted by name.

    At most seven statements; three while no job has a limit.
    """
    used = _used(using)
    keys = _keys(using, with_running=bool(used))
    overrides = {row.name: row for row in LimitOverride.objects.using(using).order_by("name")[:MOST_NAMES]}
    by_name: dict[str, list[_Key]] = defaultdict(list)
    given: dict[str, list[Numbers]] = defaultdict(list)
    for key in keys.values():
        by_name[key.name].append(key)
        given[key.name] += [key.numbers] if key.numbers else []
    examples = [some[0].job for name, some in by_name.items() if not given[name]]
    for job in _jobs(using, examples):
        for limit in job.limits or ():
            given[limit["name"]].append(Numbers.of(limit))
    for name, numbers in _declared():
        given[name].append(numbers)
    return [
        LimitReport(
            name=name,
            given=tuple(dict.fromkeys(given[name])),
            override=overrides.get(name),
            keys=used.get(name, 0),
            running=sum(key.running for key in by_name[name]),
            waiting=min(sum(key.waiting for key in by_name[name]), MOST_COUNTED + 1),
            full=sum(key.waiting > 0 for key in by_name[name]),
        )
        for name in sorted({*used, *by_name, *overrides, *given})
    ]


def keys_of(using: str, name: str, most: int) -> list[KeyReport]:
    """Return up to ``most`` keys of a limit under which jobs wait or run, those for which most wait first.

    At most six statements.
    """
    keys = {id: key for id, key in _keys(using).items() if key.name == name}
    return _shown(using, keys, most)


def full_keys(using: str, most: int) -> list[KeyReport]:
    """Return up to ``most`` keys for which jobs wait, those for which most wait first.

    At most five statements; one while no job waits for a slot.
    """
    return _shown(using, _keys(using, with_running=False), most)


def _shown(using: str, keys: Mapping[str, _Key], most: int) -> list[KeyReport]:
    if not keys:
        return []
    ids = sorted(keys, key=lambda id: (-keys[id].waiting, -keys[id].running, id))[:most]
    since = dict(LimitKey.objects.using(using).filter(pk__in=ids).values_list("pk", "full_since"))
    texts: dict[str, str] = {}
    for job in _jobs(using, (keys[id].job for id in ids), "type", "args"):
        texts |= {limit["id"]: key_text(limit) for limit in redacted_member(job, "limits") or ()}
    return [
        KeyReport(
            id=id,
            name=key.name,
            text=texts[id],
            running=key.running,
            waiting=key.waiting,
            since=since.get(id) if key.waiting else None,
            first=key.first,
        )
        for id in ids
        for key in [keys[id]]
        if id in texts  # else its job has ended meanwhile
    ]


def _keys(using: str, *, with_running: bool = True) -> dict[str, _Key]:
    """Return the keys under which jobs wait, and run, by their ids. At most four statements."""
    keys: dict[str, _Key] = defaultdict(_Key)
    for id, count, first in _waiting(using):
        key = keys[id]
        key.waiting, key.first = min(key.waiting + count, MOST_COUNTED + 1), key.first or first
        key.job = key.first
    if with_running:
        active = Job.objects.using(using).filter(state=JobState.ACTIVE, finished_at=None, limits__isnull=False)
        for job in active.only("limits").order_by()[:MOST_COUNTED]:
            for limit in job.limits or ():
                key = keys[limit["id"]]
                key.name, key.numbers, key.job = limit["name"], Numbers.of(limit), job.pk
                key.running += 1
    unnamed = [id for id, key in keys.items() if not key.name]
    if unnamed:
        for id, name in LimitKey.objects.using(using).filter(pk__in=unnamed).values_list("pk", "name"):
            keys[id].name = name
    # A key that has been full for more than a day may have no row.
    for job in _jobs(using, (key.job for key in keys.values() if not key.name)):
        for limit in job.limits or ():
            if limit["id"] in keys:
                keys[limit["id"]].name = limit["name"]
    return {id: key for id, key in keys.items() if key.name}


def _jobs(using: str, ids: Iterable[UUID | None], *fields: str) -> list[Job]:
    """Read the limits of some jobs, and more fields. One statement, or none."""
    wanted = {id for id in ids if id is not None}
    return list(Job.objects.using(using).filter(pk__in=wanted).only("limits", *fields)) if wanted else []


def _declared() -> Iterator[tuple[str, Numbers]]:
    for definition in registry.definitions():
        for limit in definition.limits:
            yield limit.name, Numbers(limit.running, limit.rate, limit.seconds)


def _used(using: str) -> dict[str, int]:
    """Return the names of limits that have keys, and how many. One statement, with one index search for each name."""
    table = connections[using].ops.quote_name(LimitKey._meta.db_table)
    more = f"(SELECT 1 FROM {table} WHERE name = used.name LIMIT 1 OFFSET {MOST_COUNTED}) IS NOT NULL"
    sql = (
        f"WITH RECURSIVE used (name, number) AS (SELECT (SELECT name FROM {table} ORDER BY name LIMIT 1), 1 UNION ALL"
        f" SELECT (SELECT name FROM {table} WHERE name > used.name ORDER BY name LIMIT 1), number + 1 FROM used"
        f" WHERE name IS NOT NULL AND number < {MOST_NAMES}) SELECT name, CASE WHEN {more} THEN {MOST_COUNTED + 1}"
        f" ELSE (SELECT COUNT(*) FROM {table} WHERE name = used.name) END FROM used WHERE name IS NOT NULL"
    )
    with connections[using].cursor() as cursor:
        cursor.execute(sql)
        return dict(cursor.fetchall())


def _waiting(using: str) -> list[tuple[str, int, UUID]]:
    """Return the keys for which jobs wait, by queue and lane: the id, how many wait, and the first of them.

    One statement, which goes through the index from key to key; on MariaDB, through the waiting jobs.
    """
    connection = connections[using]
    with connection.cursor() as cursor:
        cursor.execute((_WALKED if kind_of(connection).walks_indexes else _LISTED) + _COUNTED)
        rows = cursor.fetchall()
    return [(gate[:ID], count, UUID(str(first))) for gate, count, first in rows if first is not None]


_AVAILABLE = live(JobState.AVAILABLE)
_GATE = f"SELECT gate FROM {_AVAILABLE} AND gate < '{AFTER_KEYS}' AND queue ="
_WALKED = (
    f"WITH RECURSIVE {walk(JobState.AVAILABLE, MOST_QUEUES)}, keyed (queue, gate, number) AS ("
    f"SELECT queue, ({_GATE} named.queue AND gate > '{KEYS}' ORDER BY gate LIMIT 1), 1"
    f" FROM {JobState.AVAILABLE}_queues named WHERE queue IS NOT NULL UNION ALL"
    f" SELECT queue, ({_GATE} walked.queue AND gate > walked.gate ORDER BY gate LIMIT 1), number + 1"
    f" FROM keyed walked WHERE gate IS NOT NULL AND number < {MOST_KEYS})"
)
"""SQL that lists the keys for which jobs wait by one index search for each."""

# Without finished_at, which an available job has not, only the index is read.
_LISTED = (
    f"WITH keyed AS (SELECT DISTINCT queue, gate FROM {Job._meta.db_table} WHERE state = '{JobState.AVAILABLE}'"
    f" AND gate > '{KEYS}' AND gate < '{AFTER_KEYS}' LIMIT {MOST_KEYS})"
)
"""SQL that lists them for a database that walks no index."""

_AT_GATE = f"FROM {_AVAILABLE} AND queue = keyed.queue AND gate = keyed.gate"
_COUNTED = (
    f" SELECT gate, CASE WHEN (SELECT 1 {_AT_GATE} LIMIT 1 OFFSET {MOST_COUNTED}) IS NOT NULL THEN {MOST_COUNTED + 1}"
    f" ELSE (SELECT COUNT(*) {_AT_GATE}) END,"
    f" (SELECT id {_AT_GATE} ORDER BY priority DESC, enqueued_at, id LIMIT 1)"
    f" FROM keyed WHERE gate IS NOT NULL LIMIT {MOST_KEYS}"
)
