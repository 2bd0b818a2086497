"""The settings: one dict, ``OJS_UNIQUE``, with one property for each setting."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from .ojs.durations import LONGEST_YEARS, parse_duration

DEFAULTS: dict[str, Any] = {
    "API": {},
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
    "SUPPRESSED_RETENTION": "P30D",
    "UNIQUE_QUEUES": False,
    "WORKFLOW_RETENTION": "P30D",
}

API_DEFAULTS: dict[str, Any] = {
    "ARRAYS_ONLY": False,
    "AUTHENTICATION": None,
    "AUTHORIZE": None,
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
    "THROTTLES": [],
}
"""The members of ``OJS_UNIQUE["API"]``. A group that is missing in ``PERMISSIONS`` keeps its default."""


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
    def api(self) -> dict[str, Any]:
        """The settings of the HTTP API, completed with their defaults."""
        return {**API_DEFAULTS, **self._read("API")}

    @property
    def context(self) -> Any:
        """The classes of what each job carries, or their dotted names: one, or several."""
        return self._read("CONTEXT")

    @property
    def eager(self) -> bool | str:
        """Whether a job that is due runs in this process when its enqueue commits; ``propagate``: with its errors."""
        return self._read("EAGER")  # type: ignore[no-any-return]

    @property
    def events(self) -> bool:
        """Whether what happens to jobs is recorded as events, for clients that poll them."""
        return self._read("EVENTS")  # type: ignore[no-any-return]

    @property
    def joins_signals(self) -> bool:
        """Whether each change is one transaction with its signals, as `events` and `eager` need it."""
        given = self.given
        return bool(given.get("EVENTS") or given.get("EAGER"))

    @property
    def event_retention(self) -> timedelta:
        """How long an `Event` is kept."""
        return retention_period(self._read("EVENT_RETENTION"))

    @property
    def default_queue(self) -> str:
        """The queue of a job when neither its caller nor its handler names one."""
        return self._read("DEFAULT_QUEUE")  # type: ignore[no-any-return]

    @property
    def fair_queues(self) -> dict[str, Any]:
        """For each fair queue: the parts of a job, as in a limit's key, by which its jobs are in partitions."""
        return self._read("FAIR_QUEUES")  # type: ignore[no-any-return]

    @property
    def listen_databases(self) -> dict[str, str]:
        """For each alias that goes through a pooler: the alias of a direct connection, which can listen."""
        return self._read("LISTEN_DATABASES")  # type: ignore[no-any-return]

    @property
    def max_args_bytes(self) -> int:
        """The largest `args`, in bytes of JSON in UTF-8."""
        return self._read("MAX_ARGS_BYTES")  # type: ignore[no-any-return]

    @property
    def max_meta_bytes(self) -> int:
        """The largest `meta`, in bytes of JSON in UTF-8."""
        return self._read("MAX_META_BYTES")  # type: ignore[no-any-return]

    @property
    def max_result_bytes(self) -> int:
        """The largest result of a handler, in bytes of JSON in UTF-8."""
        return self._read("MAX_RESULT_BYTES")  # type: ignore[no-any-return]

    @property
    def max_workflow_depth(self) -> int:
        """How many levels of workflows may be nested, the outermost included."""
        return self._read("MAX_WORKFLOW_DEPTH")  # type: ignore[no-any-return]

    @property
    def max_workflow_jobs(self) -> int:
        """How many jobs a workflow may have, with its callbacks and all nested ones."""
        return self._read("MAX_WORKFLOW_JOBS")  # type: ignore[no-any-return]

    @property
    def notify(self) -> bool:
        """Whether an enqueue on PostgreSQL wakes the idle workers of its queue when it commits."""
        return self._read("NOTIFY")  # type: ignore[no-any-return]

    @property
    def record_suppressed(self) -> bool:
        """Whether each rejected, deduplicated or replacing enqueue stores a `SuppressedEnqueue`."""
        return self._read("RECORD_SUPPRESSED")  # type: ignore[no-any-return]

    @property
    def redact(self) -> Collection[Any]:
        """The names of members of args, meta and results that nobody is shown, in the jobs of all types."""
        given = self._read("REDACT")
        return given if isinstance(given, (list, tuple, set, frozenset)) else (given,)

    @property
    def replace_active(self) -> bool:
        """Whether the replacing strategies may cancel a running job; if not, they reject."""
        return self._read("REPLACE_ACTIVE")  # type: ignore[no-any-return]

    @property
    def replace_mixed_args(self) -> bool:
        """Whether an enqueue by key may replace array `args` by an object or the reverse; if not, it is refused."""
        return self._read("REPLACE_MIXED_ARGS")  # type: ignore[no-any-return]

    @property
    def require_handler(self) -> bool:
        """Whether an enqueue of a type without a handler here is refused; if not, the job waits for another worker."""
        return self._read("REQUIRE_HANDLER")  # type: ignore[no-any-return]

    @property
    def retention(self) -> dict[str, timedelta | None]:
        """How long a finished job is kept, by outcome (the keys of the setting); None: for ever."""
        given = self._read("RETENTION")
        chosen = {kind: given.get(kind, default) for kind, default in DEFAULTS["RETENTION"].items()}
        return {kind: None if value is None else retention_period(value) for kind, value in chosen.items()}

    @property
    def suppressed_retention(self) -> timedelta:
        """How long a `SuppressedEnqueue` is kept."""
        return retention_period(self._read("SUPPRESSED_RETENTION"))

    @property
    def unique_queues(self) -> bool | Collection[str]:
        """The queues on which a job with neither a policy nor a key gets `presets.resque_uniqueue()`; True: all."""
        return self._read("UNIQUE_QUEUES")  # type: ignore[no-any-return]

    @property
    def workflow_retention(self) -> timedelta:
        """How long a workflow is kept after its end."""
        return retention_period(self._read("WORKFLOW_RETENTION"))

    def is_unique(self, queue: str) -> bool:
        """Whether `unique_queues` includes a queue."""
        rule = self.unique_queues
        return rule if isinstance(rule, bool) else queue in rule


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


settings = Settings()


def imported(named: Any) -> Any:
    """Import an object by its dotted path; return any other value as it is. Raises ImportError."""
    return import_string(named) if isinstance(named, str) else named
