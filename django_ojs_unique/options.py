"""The options of a job, described once: type, check, default, place of storage, names in JSON.

The bounds are in `ojs.names` and `ojs.values`.

`@job` declares them, an enqueue overrides them, a periodic job and a workflow store them, HTTP reads them, and the
commands and the admin show them. A new option is a line here, an argument of `job` and of `Job.objects.enqueue`, and a
field of `Job`. It needs no Django.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, TypedDict, get_type_hints
from uuid import UUID

from .ojs import names
from .ojs.durations import format_duration, milliseconds, read_delay
from .ojs.limits import Limit, limits_of
from .ojs.names import HIGHEST_PRIORITY, LOWEST_PRIORITY, priority_number, queue_name
from .ojs.retry import RetryPolicy
from .ojs.values import aware_moment, flag, json_object, short_string, tag_list, uuid
from .unique.keys import KeyMode, KeyScope
from .unique.policy import UniquePolicy

LONGEST_SCHEMA: Final = 2048


class _Inherit:
    def __repr__(self) -> str:
        return "<the handler's>"

    def __reduce__(self) -> str:
        return "INHERIT"  # it is compared by identity, also in a copy


INHERIT: Final = _Inherit()
"""The default of options that None switches off: use what the handler declared."""


def _same(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """The values of an option.

    ``read`` checks a value, and returns it as the enqueue uses it; it raises InvalidRequest with the given field.
    ``dump`` returns what a row stores of it, and ``load`` does the reverse. ``choices``: all values, if they are few.
    ``schema``: what JSON has, in JSON Schema; empty if it has something else.
    """

    read: Callable[[Any, str], Any] = lambda value, field: value
    dump: Callable[[Any], Any] = _same
    load: Callable[[Any], Any] = _same
    choices: tuple[str, ...] = ()
    schema: Mapping[str, Any] = field(default_factory=dict, hash=False)
    is_text: bool = False


@dataclass(frozen=True, slots=True)
class Option:
    """An option, and where it counts.

    ``default`` of an enqueue: INHERIT where None switches it off; None means the handler's, else the ``fallback``.
    ``column``: the field of `Job` that stores it. ``wire``: its names in JSON; of several, the last one counts.
    ``repeats``: every occurrence of a periodic job can have it. ``copied``: it is read at once, because the caller
    could change its value. ``decides``: what becomes of an enqueue depends on it.
    """

    kind: Kind
    help: str
    _: KW_ONLY
    default: Any = None
    fallback: Any = None
    column: str = ""
    wire: tuple[str, ...] = ()
    repeats: bool = True
    copied: bool = False
    decides: bool = False

    @property
    def written(self) -> str:
        """Its name in JSON that we write: that of the column, if it is one of them."""
        return self.column if self.column in self.wire else self.wire[0]

    @property
    def plain_help(self) -> str:
        """The help without the marks of Markdown."""
        return self.help.replace("`", "")


def _choice(choices: type[StrEnum]) -> Kind:
    known = tuple(map(str, choices))  # `JobKey` reads them
    return Kind(choices=known, schema={"type": "string", "enum": list(known)})


def _text(longest: int) -> Kind:
    schema = {"type": "string", "maxLength": longest}
    return Kind(lambda value, field: short_string(value, field, longest), schema=schema, is_text=True)


def _to_dict(policy: Any) -> Any:
    return None if policy is None else policy.to_dict()


QUEUE = Kind(
    lambda value, field: queue_name(value),
    schema={"type": "string", "maxLength": names.LONGEST_QUEUE, "pattern": f"^(?:{names.QUEUE.pattern})$"},
)
PRIORITY = Kind(
    lambda value, field: priority_number(value),
    schema={"type": "integer", "minimum": LOWEST_PRIORITY, "maximum": HIGHEST_PRIORITY},
)
LENGTH = Kind(milliseconds, load=lambda stored: None if stored is None else timedelta(milliseconds=stored))
"""A fixed length of time, in milliseconds."""
DELAY = Kind(read_delay)
MOMENT = Kind(aware_moment)
UNIQUE = Kind(lambda value, field: UniquePolicy.parse(value), _to_dict)
RETRY = Kind(lambda value, field: RetryPolicy.parse(value), _to_dict)
LIMITS = Kind(lambda value, field: limits_of(value), load=lambda stored: [Limit.of_stored(one) for one in stored or ()])
"""Limits; what a row stores of them depends on its arguments, too: see `ojs.limits.stored_limits`."""
OBJECT = Kind(json_object)
TAGS = Kind(tag_list, schema={"type": "array", "items": {"type": "string"}})
FLAG = Kind(flag, schema={"type": "boolean"})
ID = Kind(uuid)
KEY = Kind(schema={"type": "string", "minLength": 1, "maxLength": names.LONGEST_KEY})
"""`JobKey` reads it."""


class CommonOptions(TypedDict, total=False):
    """What a handler and a task of Django can declare, and an enqueue change."""

    unique: Annotated[
        UniquePolicy | Mapping[str, Any] | None,
        Option(
            UNIQUE,
            "The policy: when two jobs are the same, and what to do then; by default the handler's, null means none.",
            default=INHERIT,
            column="unique",
            wire=("unique",),
            copied=True,
            decides=True,
        ),
    ]
    retry: Annotated[
        RetryPolicy | Mapping[str, Any] | None,
        Option(
            RETRY,
            "The policy by which a failed job runs again; by default 3 attempts.",
            default=INHERIT,
            column="retry_options",
            wire=("retry", "retry_policy"),
            copied=True,
        ),
    ]
    timeout: Annotated[
        str | timedelta | float | None,
        Option(
            LENGTH,
            "How long one attempt may take.",
            default=INHERIT,
            column="timeout_ms",
            wire=("timeout_ms", "timeout"),
        ),
    ]
    limit: Annotated[
        Limit | Mapping[str, Any] | Sequence[Limit | Mapping[str, Any]] | None,
        Option(
            LIMITS,
            "Limits: how many jobs of a partition run at once, or start in a time.",
            default=INHERIT,
            fallback=(),
            column="limits",
            wire=("limits",),
            copied=True,
        ),
    ]


class SharedOptions(CommonOptions, total=False):
    """What a handler can declare, and an enqueue change."""

    queue: Annotated[
        str | None,
        Option(
            QUEUE,
            "Where the job waits; by default the handler's queue, else `DEFAULT_QUEUE`.",
            column="queue",
            wire=("queue",),
            decides=True,
        ),
    ]
    priority: Annotated[
        int | None,
        Option(
            PRIORITY,
            f"From {LOWEST_PRIORITY} to {HIGHEST_PRIORITY}, by default 0; a higher one goes first.",
            fallback=0,
            column="priority",
            wire=("priority",),
        ),
    ]


class DeclaredOptions(SharedOptions, total=False):
    """What a handler can declare about its jobs."""

    lease: Annotated[
        str | timedelta | float | None,
        Option(
            LENGTH,
            "The lease: how long its worker may be silent before another one gets the job.",
            default=INHERIT,
            column="visibility_timeout_ms",
            wire=("visibility_timeout_ms", "visibility_timeout"),
        ),
    ]


class EnqueueOptions(SharedOptions, total=False):
    """The arguments of `Job.objects.enqueue` besides type and args."""

    meta: Annotated[
        Mapping[str, Any] | None, Option(OBJECT, "An object that is stored with the job.", column="meta", decides=True)
    ]
    scheduled_at: Annotated[
        datetime | None,
        Option(
            MOMENT,
            "The job does not start before this time, as in 2026-01-31T14:00.",
            column="scheduled_at",
            wire=("delay", "delay_until", "scheduled_at"),
            repeats=False,
            decides=True,
        ),
    ]
    delay: Annotated[
        str | timedelta | float | None,
        Option(
            DELAY, "How long to wait from now, instead of `scheduled_at`, as in PT10M.", repeats=False, decides=True
        ),
    ]
    expires_at: Annotated[
        datetime | None,
        Option(
            MOMENT, "The job does not start after this time.", column="expires_at", wire=("expires_at",), repeats=False
        ),
    ]
    tags: Annotated[
        Collection[str], Option(TAGS, "A list of strings.", default=(), column="tags", wire=("tags",), copied=True)
    ]
    key: Annotated[
        str | None,
        Option(KEY, "Your name for the job, instead of a policy.", column="key", wire=("key",), decides=True),
    ]
    key_mode: Annotated[
        KeyMode | str,
        Option(
            _choice(KeyMode),
            "What to do while another job holds the key.",
            default=KeyMode.REPLACE,
            wire=("key_mode",),
            decides=True,
        ),
    ]
    key_scope: Annotated[
        KeyScope | str,
        Option(
            _choice(KeyScope),
            "Among which jobs the key is unique.",
            default=KeyScope.TYPE,
            wire=("key_scope",),
            decides=True,
        ),
    ]
    id: Annotated[UUID | str | None, Option(ID, "A UUID; by default a new UUIDv7.", column="id", repeats=False)]


class RequestOptions(DeclaredOptions, EnqueueOptions, total=False):
    """The members of a `Request`: also what only stored requests and HTTP clients have."""

    schema: Annotated[
        str,
        Option(
            _text(LONGEST_SCHEMA),
            "The name of the schema of the args; it is stored only.",
            default="",
            column="schema",
            copied=True,
        ),
    ]
    extra: Annotated[
        Mapping[str, Any],
        Option(OBJECT, "Members that OJS does not define.", column="extra", copied=True),
    ]
    pending: Annotated[
        bool,
        Option(FLAG, "The job waits until somebody activates it.", default=False, wire=("pending",), repeats=False),
    ]
    expires_in: Annotated[
        str | None, Option(DELAY, "The same as `expires_at`, counted from the enqueue.", repeats=False)
    ]


def _options_of(described: type[Any]) -> dict[str, Option]:
    hints = get_type_hints(described, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items()}


COMMON: Final = _options_of(CommonOptions)
"""Those that a handler and a task of Django can declare."""
OPTIONS: Final = _options_of(RequestOptions)
"""Each option of a request by its name."""
DECLARED: Final = _options_of(DeclaredOptions)
"""Those that a handler can declare."""
ENQUEUE: Final = _options_of(EnqueueOptions)
"""Those that `Job.objects.enqueue` takes."""
TEXTS: Final = {name: option for name, option in OPTIONS.items() if option.kind.is_text}
"""Those that are plain texts, which pages show as they are."""
REPEATED: Final = tuple(name for name, option in OPTIONS.items() if option.repeats)
"""The names of those that every occurrence of a periodic job can have."""


def declared(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a handler declares, with the fallbacks of what it does not declare.

    Raises InvalidRequest, InvalidPolicy or InvalidRetryPolicy.
    """
    return {
        name: option.fallback if given.get(name) is None else option.kind.read(given[name], name)
        for name, option in DECLARED.items()
    }


def as_stored(value: Any) -> Any:
    """Return an option's value as a request takes it, too, and without objects of ours; moments stay."""
    if isinstance(value, (UniquePolicy, RetryPolicy, Limit)):
        return value.to_dict()
    if isinstance(value, timedelta):
        return format_duration(value)
    if isinstance(value, (list, tuple)):
        return [one.to_dict() if isinstance(one, Limit) else one for one in value]
    return value
