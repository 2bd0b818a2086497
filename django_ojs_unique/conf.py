"""The settings: one dict, ``OJS_UNIQUE``, with one property for each setting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from datetime import timedelta
from typing import Any, Generic, TypeVar

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from .ojs.durations import LONGEST_YEARS, parse_duration
from .ojs.names import are_names
from .ojs.retry import RetryPolicy

T = TypeVar("T")

DEFAULTS: dict[str, Any] = {
    "API": {},
    "AUTODISCOVER_MODULES": ["jobs"],
    "CONTEXT": (),
    "DEFAULT_QUEUE": "default",
    "EAGER": False,
    "EVENTS": False,
    "EVENT_RETENTION": "P7D",
    "FAIR_QUEUES": {},
    "LISTEN_DATABASES": {},
    "MAX_ARGS_BYTES": 1_048_576,
    "MAX_META_BYTES": 65_536,
    "MAX_RESULT_BYTES": 1_048_576,
    "MAX_WORKFLOW_DEPTH": 5,
    "MAX_WORKFLOW_JOBS": 10_000,
    "NOTIFY": True,
    "RECORD_SUPPRESSED": True,
    "REDACT": (),
    "REPLACE_ACTIVE": True,
    "REPLACE_MIXED_ARGS": True,
    "REQUIRE_HANDLER": False,
    "RETENTION": {"completed": "P7D", "cancelled": "P7D", "discarded": "P30D", "dead_letter": "P180D"},
    "RETRY": {},
    "SUPPRESSED_RETENTION": "P30D",
    "UNIQUE_QUEUES": False,
    "WORKFLOW_RETENTION": "P30D",
}

API_DEFAULTS: dict[str, Any] = {
    "ARRAYS_ONLY": False,
    "AUTHENTICATION": None,
    "AUTHORIZE": None,
    "COMPATIBLE_CLIENTS": True,
    "LEASE": "PT30M",
    "MAX_BATCH": 1000,
    "MAX_BODY_BYTES": 4_194_304,
    "MAX_RESPONSE_BYTES": 4_194_304,
    "MAX_WAIT": 20.0,
    "MAX_WAITING": 4,
    "PERMISSIONS": {
        "status": ["rest_framework.permissions.IsAdminUser"],
        "producers": ["rest_framework.permissions.IsAdminUser"],
        "workers": ["rest_framework.permissions.IsAdminUser"],
        "operators": ["rest_framework.permissions.IsAdminUser"],
    },
    "REQUIRE_LEASE_TOKEN": False,
    "THROTTLES": [],
}
"""The members of ``OJS_UNIQUE["API"]``. A group that is missing in ``PERMISSIONS`` keeps its default."""


def retention_period(value: Any) -> timedelta:
    """Read an ISO 8601 duration or a timedelta.

    Raises ValueError unless it is positive, without years and months, and at most 1,000 years long.
    """
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, timedelta) or duration <= timedelta():
        raise ValueError("must be a positive duration without years or months")
    if duration > timedelta(days=365 * LONGEST_YEARS):
        raise ValueError(f"is longer than {LONGEST_YEARS} years")
    return duration


class _Setting(Generic[T]):
    """A setting: what the project has given, else the default; ``read`` makes a value of it."""

    def __init__(self, read: Callable[[Any], T] | None = None) -> None:
        self._read = read

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name.upper()

    def __get__(self, settings: Settings, owner: type) -> T:
        given = settings.given.get(self._name, DEFAULTS[self._name])
        return given if self._read is None else self._read(given)


class Settings:
    """`OJS_UNIQUE` with its defaults, read at each access so that `override_settings` takes effect at once."""

    @property
    def given(self) -> dict[str, Any]:
        """What the project has set."""
        given = getattr(django_settings, "OJS_UNIQUE", None)
        # The check E001 reports a value that is not a dict; until then, the value must not stop the project's start.
        return given if isinstance(given, dict) else {}

    def _read(self, name: str) -> Any:
        return self.given.get(name, DEFAULTS[name])

    @property
    def api(self) -> Mapping[str, Any]:
        """The settings of the HTTP API, completed with their defaults."""
        return {**API_DEFAULTS, **self._read("API")}

    @property
    def autodiscover_modules(self) -> list[str]:
        """The names of the modules of each app that are imported at the start, for their handlers."""
        given = self._read("AUTODISCOVER_MODULES")
        return list(given) if are_names(given) else []  # the check E001 reports it

    context = _Setting[Any]()
    """The classes of what each job carries, or their dotted names: one, or several."""
    eager = _Setting[bool | str]()
    """Whether a job that is due runs in this process when its enqueue commits; ``propagate``: with its errors."""
    events = _Setting[bool]()
    """Whether what happens to jobs is recorded as events, for clients that poll them."""
    event_retention = _Setting[timedelta](retention_period)
    """How long an `Event` is kept."""
    default_queue = _Setting[str]()
    """The queue of a job when neither its caller nor its handler names one."""
    fair_queues = _Setting[dict[str, Any]]()
    """For each fair queue: the parts of a job, as in a limit's key, by which its jobs are in partitions."""
    listen_databases = _Setting[dict[str, str]]()
    """For each alias that goes through a pooler: the alias of a direct connection, which can listen."""
    max_args_bytes = _Setting[int]()
    """The largest `args`, in bytes of JSON in UTF-8."""
    max_meta_bytes = _Setting[int]()
    """The largest `meta`, in bytes of JSON in UTF-8."""
    max_result_bytes = _Setting[int]()
    """The largest result of a handler, in bytes of JSON in UTF-8."""
    max_workflow_depth = _Setting[int]()
    """How many levels of workflows may be nested, the outermost included."""
    max_workflow_jobs = _Setting[int]()
    """How many jobs a workflow may have, with its callbacks and all nested ones."""
    notify = _Setting[bool]()
    """Whether an enqueue on PostgreSQL wakes the idle workers of its queue when it commits."""
    record_suppressed = _Setting[bool]()
    """Whether each rejected, deduplicated or replacing enqueue stores a `SuppressedEnqueue`."""
    replace_active = _Setting[bool]()
    """Whether the replacing strategies may cancel a running job; if not, they reject."""
    replace_mixed_args = _Setting[bool]()
    """Whether an enqueue by key may replace array `args` by an object or the reverse; if not, it is refused."""
    require_handler = _Setting[bool]()
    """Whether an enqueue of a type without a handler here is refused; if not, the job waits for another worker."""
    retry = _Setting[RetryPolicy | None](lambda given: RetryPolicy.parse(given) if given else None)
    """The retry policy of a job when neither its caller nor its handler gives one; None: the default one."""
    suppressed_retention = _Setting[timedelta](retention_period)
    """How long a `SuppressedEnqueue` is kept."""
    unique_queues = _Setting[bool | Collection[str]]()
    """The queues on which a job with neither a policy nor a key gets `presets.resque_uniqueue()`; True: all."""
    workflow_retention = _Setting[timedelta](retention_period)
    """How long a workflow is kept after its end."""

    @property
    def joins_signals(self) -> bool:
        """Whether each change is one transaction with its signals, as `events` and `eager` need it."""
        given = self.given
        return bool(given.get("EVENTS") or given.get("EAGER"))

    @property
    def redact(self) -> Collection[Any]:
        """The names of members of args, meta and results that nobody is shown, in the jobs of all types."""
        given = self._read("REDACT")
        return given if isinstance(given, (list, tuple, set, frozenset)) else (given,)

    @property
    def retention(self) -> dict[str, timedelta | None]:
        """How long a finished job is kept, by outcome (the keys of the setting); None: for ever."""
        given = self._read("RETENTION")
        chosen = {kind: given.get(kind, default) for kind, default in DEFAULTS["RETENTION"].items()}
        return {kind: None if value is None else retention_period(value) for kind, value in chosen.items()}

    def is_unique(self, queue: str) -> bool:
        """Whether `unique_queues` includes a queue."""
        rule = self.unique_queues
        return rule if isinstance(rule, bool) else queue in rule


settings = Settings()


def imported(named: Any) -> Any:
    """Import an object by its dotted path; return any other value as it is. Raises ImportError."""
    return import_string(named) if isinstance(named, str) else named
