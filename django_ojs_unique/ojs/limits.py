"""`Limit`: how many jobs of a partition may run at once, and how many may start in a time."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from itertools import islice
from typing import Any, Final

from ..exceptions import InvalidRequest, Message, did_you_mean
from .blocking import FAIR, ID, PARTITIONS
from .canonical import canonical, to_nfc
from .names import LONGEST_LIMIT, LONGEST_MEMBER, is_whole, limit_name
from .selection import member_of, object_of, select_members
from .suggesting import Suggesting

RATES: Final = {"per_second": 1, "per_minute": 60, "per_hour": 3600}
"""The rates of a limit, and the seconds in which each counts."""
LARGEST: Final = 1_000_000
MOST_LIMITS: Final = 10
MOST_PARTS: Final = 10
LONGEST_VALUE: Final = 10_000
"""How many characters the JSON of a key's value may have: of each limit it is hashed for each job."""
LONGEST_SHOWN: Final = 200
"""How long the JSON of a key's value may be to be stored whole with a job, in characters."""
_PARTS: Final = ("type", "queue", "args", "meta")


@dataclass(frozen=True, slots=True)
class Limit(Suggesting):
    """How many jobs with the same values may run side by side, over all workers, and how many may start in a time.

    ``key``: what the jobs have in common: ``type``, ``queue``, ``args``, ``meta``, a member such as
    ``args.customer_id``, or a JSON Pointer (RFC 6901) such as ``args/customer/id``. The jobs with the same
    values are a partition of the limit; an empty key makes one of all jobs of the limit's ``name``.
    ``running``: how many may run at once. ``per_second``, ``per_minute`` or ``per_hour``, at most one of them: how many
    may start in any such time. At least one of these numbers is needed.
    ``weight``: how many of them this job counts for. ``name``: jobs share a partition only under the same name; by
    default the key's parts, joined by commas. Operators change a limit by its name.

    Raises InvalidRequest, which names the field and says how to fix it.
    """

    key: Collection[str] = ()
    running: int | None = None
    per_second: int | None = None
    per_minute: int | None = None
    per_hour: int | None = None
    weight: int = 1
    name: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "key", key_parts(self.key))
        for name in ("running", *RATES):
            if getattr(self, name) is not None:
                _number(getattr(self, name), name)
        _number(self.weight, "weight")
        rates = [name for name in RATES if getattr(self, name) is not None]
        if len(rates) > 1:
            raise _wrong(
                rates[1], Message("cannot be combined with {name}", name=rates[0]), hint="Give the job two limits."
            )
        if self.running is None and not rates:
            raise _wrong("running", "is missing", hint=Message("Set it, or one of {names}.", names=", ".join(RATES)))
        for name in ("running", *rates):
            most = getattr(self, name)
            if most is not None and self.weight > most:
                raise _wrong(
                    "weight",
                    Message("is more than {name}, so the job could never run", name=name),
                    value=self.weight,
                    hint=Message("Write at most {number}.", number=most),
                )
        self._check_name()

    def _check_name(self) -> None:
        if self.name == "" and not self.key:
            raise _wrong("name", "is missing", hint="A limit without a key is one for all jobs of its name.")
        name = ",".join(self.key)[:LONGEST_LIMIT] if self.name == "" else self.name
        object.__setattr__(self, "name", limit_name(name, "limit.name"))

    @classmethod
    def parse(cls, value: Any) -> Limit:
        """Return a limit, or the one that a mapping with its members describes. Raises InvalidRequest."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise InvalidRequest.at(
                "limit", "must be a Limit or an object", value=value, hint="Write {'key': ['type'], 'running': 1}."
            )
        names = [field.name for field in fields(cls)]
        for name in value:
            if name not in names:
                raise _wrong(str(name), "is not a member of a limit", hint=did_you_mean(name, names))
        return cls(**value)

    @classmethod
    def of_stored(cls, stored: Mapping[str, Any]) -> Limit:
        """Return the limit of which a job has stored this: see `of`."""
        members = {name: stored[name] for name in ("key", "running", "weight", "name") if name in stored}
        rates = {
            name: stored["rate"] for name, seconds in RATES.items() if "rate" in stored and stored["seconds"] == seconds
        }
        return cls(**members, **rates)

    @property
    def seconds(self) -> int:
        """In how many seconds the rate counts; 0 without a rate."""
        return next((seconds for name, seconds in RATES.items() if getattr(self, name) is not None), 0)

    @property
    def rate(self) -> int | None:
        """How many jobs may start in any ``seconds``, or None."""
        return next((getattr(self, name) for name in RATES if getattr(self, name) is not None), None)

    def of(self, *, type: str, queue: str, args: Any, meta: Mapping[str, Any]) -> dict[str, Any]:
        """Return what a job stores of the limit: its numbers, the members of its key, and the id of its partition.

        All texts are in NFC. Raises InvalidRequest when ``args`` or ``meta`` has no such member, or a very large one.
        """
        whole = {"type": type, "queue": queue, "args": args, "meta": meta}
        members = {part: _value(part, whole, "limit.key") for part in self.key}
        shown = {part: _short(value) for part, value in members.items()}
        stored: dict[str, Any] = {"name": self.name, "key": shown, "id": partition_id(self.name, members)}
        if self.running is not None:
            stored["running"] = self.running
        if self.rate is not None:
            stored |= {"rate": self.rate, "seconds": self.seconds}
        if self.weight != 1:
            stored["weight"] = self.weight
        return stored

    def to_dict(self) -> dict[str, Any]:
        """Return the limit as JSON, without the members that have their defaults."""
        given: dict[str, Any] = {"key": list(self.key)}
        given |= {name: value for name in ("running", *RATES) if (value := getattr(self, name)) is not None}
        return given | ({} if self.weight == 1 else {"weight": self.weight}) | {"name": self.name}


def limits_of(value: Any) -> tuple[Limit, ...]:
    """Return the limits that a ``limit`` option names: none, one, or several. Raises InvalidRequest."""
    if value is None:
        return ()
    if not isinstance(value, Sequence) or isinstance(value, str):
        return (Limit.parse(value),)
    if len(value) > MOST_LIMITS:
        problem = Message("names more than {count} limits", count=MOST_LIMITS)
        raise InvalidRequest.at("limit", problem, value=len(value))
    limits: list[Limit] = []
    for index, one in enumerate(value):
        try:
            limit = Limit.parse(one)
            if any(other.name == limit.name for other in limits):
                raise _wrong("name", "is that of two limits of this job", value=limit.name, hint="Name each of them.")
        except InvalidRequest as error:
            raise _numbered(error, index) from None
        limits.append(limit)
    return tuple(limits)


def stored_limits(limits: Sequence[Limit], **whole: Any) -> list[dict[str, Any]]:
    """Return what a job stores of its limits. Raises as `Limit.of`."""
    stored, whole = [], to_nfc(whole)
    for index, limit in enumerate(limits):
        try:
            stored.append(limit.of(**whole))
        except InvalidRequest as error:
            raise (_numbered(error, index) if len(limits) > 1 else error) from None
    return stored


def with_values(stored: Mapping[str, Any]) -> dict[str, Any]:
    """Return a limit that a job has stored as `Limit.to_dict` does, but with the values of its key."""
    return {**Limit.of_stored(stored).to_dict(), "key": stored["key"]}


def are_readable(stored: Any) -> bool:
    """Tell whether a job's stored limits are what `Limit.of` returns, and nothing that was written manually."""
    return stored is None or (isinstance(stored, list) and all(map(_is_readable, stored)))


def _is_readable(limit: Any) -> bool:
    if not isinstance(limit, dict) or not isinstance(limit.get("id"), str) or len(limit["id"]) != ID:
        return False
    most = [limit[name] for name in ("running", "rate") if name in limit]
    return (
        isinstance(limit.get("name"), str)
        and 1 <= len(limit["name"]) <= LONGEST_LIMIT
        and limit["name"].isprintable()
        and isinstance(limit.get("key"), dict)
        and limit.get("seconds") in (RATES.values() if "rate" in limit else [None])
        and bool(most)
        and all(type(number) is int and 1 <= number <= LARGEST for number in (*most, limit.get("weight", 1)))
    )


def partition_id(name: str, members: Mapping[str, Any]) -> str:
    """Return the id of a limit's partition, the same for all jobs that share it."""
    return PARTITIONS + hashlib.sha256(canonical({"key": members, "limit": name}).encode()).hexdigest()[:32]


def fair_partition_of(parts: Collection[str], *, type: str, queue: str, args: Any, meta: Mapping[str, Any]) -> str:
    """Return the partition of a job in a fair queue. Jobs that lack a part of the key share a partition for that."""
    whole = to_nfc({"type": type, "queue": queue, "args": args, "meta": meta})
    members: dict[str, Any] = {}
    for part in parts:
        source, name = part_of(to_nfc(part))
        within = object_of(whole.get(source)) or {}
        try:
            members[part] = [whole[source] if not name else member_of(within, name)]
        except LookupError:
            members[part] = None
    return FAIR + hashlib.sha256(canonical(members).encode()).hexdigest()[:32]


def _value(part: str, whole: Mapping[str, Any], field: str) -> Any:
    """Return what a part of a key names in a job. Raises InvalidRequest about a ``field`` if the job has no such."""
    if part in _PARTS:
        return whole[part]
    source, name = part_of(part)
    members = object_of(whole.get(source))
    if members is None:
        raise InvalidRequest.at(
            field,
            Message("names {part}, but the args are no object, nor an array holding exactly one", part=part),
            hint="Send args as an object.",
        )
    return select_members(members, [name], source, InvalidRequest, field)[name]


def part_of(part: str) -> tuple[str, str]:
    """Return the member of a job in which a part of a key is, and the name or JSON Pointer there, or an empty one."""
    source = part.partition(".")[0].partition("/")[0]
    return source, part[len(source) :].removeprefix(".")


def key_parts(value: Any) -> tuple[str, ...]:
    """Return the parts of a key, checked and sorted. Raises InvalidRequest."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise _wrong("key", "must be a list of names", value=value, hint=Message("Write {text}.", text=[str(value)]))
    parts = tuple(to_nfc(part) for part in islice(value, MOST_PARTS + 1))
    if len(parts) > MOST_PARTS:
        raise _wrong("key", Message("names more than {count} parts", count=MOST_PARTS))
    for part in parts:
        if not isinstance(part, str) or not (part in _PARTS or any(_has_member(part, name) for name in _PARTS[2:])):
            hint = "Write type, queue, args, meta, a member such as args.customer_id, or a pointer such as args/a/b."
            raise _wrong("key", "has a part that names nothing of a job", value=part, hint=hint)
        if len(part) > LONGEST_MEMBER:
            problem = Message("is longer than {count} characters", count=LONGEST_MEMBER)
            raise _wrong("key", problem, value=part, hint="Shorten it.")
        if parts.count(part) > 1:
            raise _wrong("key", "names a part twice", value=part, hint="Write it once.")
        whole, _ = part_of(part)
        if whole != part and whole in parts:
            raise _wrong(
                "key", Message("has {whole} and a part of it", whole=whole), value=part, hint="Leave one of them out."
            )
    return tuple(sorted(parts))


def _short(value: Any) -> Any:
    """Return a value of a key, or the start of its JSON if that is long: it is only shown, and the id tells keys.

    Raises InvalidRequest for a very large one.
    """
    text = canonical(value)
    if len(text) > LONGEST_VALUE:
        problem = Message("names a value whose JSON is longer than {count} characters", count=f"{LONGEST_VALUE:,}")
        raise _wrong("key", problem, hint="Name a member that is short, such as an id.")
    return value if len(text) <= LONGEST_SHOWN else f"{text[:LONGEST_SHOWN]}…"


def _has_member(part: str, source: str) -> bool:
    """Tell whether a part of a key names a member, or a JSON Pointer, in args or meta."""
    rest = part[len(source) :]
    return part.startswith(source) and len(rest) > 1 and rest[0] in "./"


def _number(value: Any, field: str) -> None:
    if not is_whole(value, 1, LARGEST):
        hint = "To stop a queue, pause it." if field != "weight" else ""
        problem = Message("must be a whole number from {lowest} to {highest}", lowest=1, highest=f"{LARGEST:,}")
        raise _wrong(field, problem, value=value, hint=hint)


def _wrong(field: str, problem: str, *, value: Any = ..., hint: str = "") -> InvalidRequest:
    return InvalidRequest.at(f"limit.{field}", problem, value=value, hint=hint)


def _numbered(error: InvalidRequest, index: int) -> InvalidRequest:
    """Let an error about a limit name its place among several, such as ``limit[1].running``; return the error."""
    field = error.details["field"] = error.details["field"].replace("limit", f"limit[{index}]", 1)
    error.rephrase(field=field)
    return error
