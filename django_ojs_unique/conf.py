"""The settings: one dict, ``OJS_UNIQUE``, read through one property each."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from datetime import timedelta
from typing import Any

from django.conf import settings as django_settings
from django.utils.module_loading import import_string

from .exceptions import InvalidRequest, did_you_mean
from .ojs.durations import LONGEST_YEARS, milliseconds, parse_duration
from .ojs.names import queue_name

DEFAULTS: dict[str, Any] = {
    "API": {},
    "DEFAULT_QUEUE": "default",
    "EVENTS": False,
    "EVENT_RETENTION": "P7D",
    "LISTEN_DATABASES": {},
    "MAX_ARGS_BYTES": 1_048_576,
    "MAX_META_BYTES": 65_536,
    "MAX_RESULT_BYTES": 1_048_576,
    "NOTIFY": True,
    "RECORD_SUPPRESSED": True,
    "REPLACE_ACTIVE": True,
    "REPLACE_MIXED_ARGS": True,
    "REQUIRE_HANDLER": False,
    "RETENTION": {"completed": "P7D", "cancelled": "P7D", "discarded": "P30D", "dead_letter": "P180D"},
    "SUPPRESSED_RETENTION": "P30D",
    "UNIQUE_QUEUES": False,
}

API_DEFAULTS: dict[str, Any] = {
    "ARRAYS_ONLY": False,
    "AUTHENTICATION": None,
    "LEASE": "PT30M",
    "MAX_BATCH": 1000,
    "MAX_BODY_BYTES": 4_194_304,
    "MAX_WAIT": 20.0,
    "PERMISSIONS": {
        "status": ["rest_framework.permissions.IsAdminUser"],
        "producers": ["rest_framework.permissions.IsAdminUser"],
        "workers": ["rest_framework.permissions.IsAdminUser"],
        "operators": ["rest_framework.permissions.IsAdminUser"],
    },
    "TEST_DIRECTIVES": False,
    "THROTTLES": [],
}
"""The members of ``OJS_UNIQUE["API"]``; each group of ``PERMISSIONS`` that is left out keeps its default."""


class Settings:
    """`OJS_UNIQUE` with its defaults, read at each access so that `override_settings` holds at once."""

    def _read(self, name: str) -> Any:
        given = getattr(django_settings, "OJS_UNIQUE", DEFAULTS)
        # What is no dict is E001; until a check says so, it must not keep the project from starting.
        return given.get(name, DEFAULTS[name]) if isinstance(given, dict) else DEFAULTS[name]

    @property
    def api(self) -> dict[str, Any]:
        """The settings of the HTTP API, each with its default."""
        return {**API_DEFAULTS, **self._read("API")}

    @property
    def events(self) -> bool:
        """Whether what happens to jobs is recorded for those who poll events."""
        return self._read("EVENTS")  # type: ignore[no-any-return]

    @property
    def event_retention(self) -> timedelta:
        """How long an `Event` is kept."""
        return retention_period(self._read("EVENT_RETENTION"))

    @property
    def default_queue(self) -> str:
        """The queue of a job whose caller and handler name none."""
        return self._read("DEFAULT_QUEUE")  # type: ignore[no-any-return]

    @property
    def listen_databases(self) -> dict[str, str]:
        """For databases that are reached through a pooler: the aliases under which a connection can listen."""
        return self._read("LISTEN_DATABASES")  # type: ignore[no-any-return]

    @property
    def max_args_bytes(self) -> int:
        """The largest `args`, as JSON in UTF-8."""
        return self._read("MAX_ARGS_BYTES")  # type: ignore[no-any-return]

    @property
    def max_meta_bytes(self) -> int:
        """The largest `meta`, as JSON in UTF-8."""
        return self._read("MAX_META_BYTES")  # type: ignore[no-any-return]

    @property
    def max_result_bytes(self) -> int:
        """The largest result of a handler, as JSON in UTF-8."""
        return self._read("MAX_RESULT_BYTES")  # type: ignore[no-any-return]

    @property
    def notify(self) -> bool:
        """Whether an enqueue on PostgreSQL wakes the idle workers of its queue when it commits."""
        return self._read("NOTIFY")  # type: ignore[no-any-return]

    @property
    def record_suppressed(self) -> bool:
        """Whether each refused, ignored or replacing enqueue leaves a `SuppressedAttempt`."""
        return self._read("RECORD_SUPPRESSED")  # type: ignore[no-any-return]

    @property
    def replace_active(self) -> bool:
        """Whether the replacing strategies may cancel a running job; if not, they reject."""
        return self._read("REPLACE_ACTIVE")  # type: ignore[no-any-return]

    @property
    def replace_mixed_args(self) -> bool:
        """Whether an enqueue by key may replace an array by an object or the reverse; if not, it is refused."""
        return self._read("REPLACE_MIXED_ARGS")  # type: ignore[no-any-return]

    @property
    def require_handler(self) -> bool:
        """Whether enqueuing a type without a registered handler is refused; if not, it waits for another worker."""
        return self._read("REQUIRE_HANDLER")  # type: ignore[no-any-return]

    @property
    def retention(self) -> dict[str, timedelta | None]:
        """How long a finished job is kept, by what became of it; None: for ever."""
        given = self._read("RETENTION")
        chosen = {kind: given.get(kind, default) for kind, default in DEFAULTS["RETENTION"].items()}
        return {kind: None if value is None else retention_period(value) for kind, value in chosen.items()}

    @property
    def suppressed_retention(self) -> timedelta:
        """How long a `SuppressedAttempt` is kept."""
        return retention_period(self._read("SUPPRESSED_RETENTION"))

    @property
    def unique_queues(self) -> bool | Collection[str]:
        """The queues on which identical jobs cannot wait, whatever the callers say; True: all of them."""
        return self._read("UNIQUE_QUEUES")  # type: ignore[no-any-return]

    def is_unique(self, queue: str) -> bool:
        """Whether identical jobs cannot wait on a queue."""
        rule = self.unique_queues
        return rule if isinstance(rule, bool) else queue in rule


def retention_period(value: Any) -> timedelta:
    """Read an ISO 8601 duration or a timedelta; raises ValueError unless it is fixed, positive and subtractable."""
    duration = parse_duration(value) if isinstance(value, str) else value
    if not isinstance(duration, timedelta) or duration <= timedelta():
        raise ValueError("must be a positive duration without years or months")
    if duration > timedelta(days=365 * LONGEST_YEARS):
        raise ValueError(f"is longer than {LONGEST_YEARS} years")
    return duration


settings = Settings()


def problems() -> Iterator[str]:
    """Say what is wrong with the project's ``OJS_UNIQUE``, one sentence each."""
    value = getattr(django_settings, "OJS_UNIQUE", {})
    if not isinstance(value, dict):
        yield "OJS_UNIQUE must be a dict."
        return
    for name, given in value.items():
        default = DEFAULTS.get(name)
        if name not in DEFAULTS:
            yield f"OJS_UNIQUE[{name!r}] is not a setting. {did_you_mean(name, DEFAULTS)}"
        elif name in ("EVENT_RETENTION", "SUPPRESSED_RETENTION"):
            yield from _retention_problems(f"OJS_UNIQUE[{name!r}]", given)
        elif name == "UNIQUE_QUEUES":
            yield from _queue_rule_problems(given)
        elif type(given) is not type(default):
            yield f"OJS_UNIQUE[{name!r}] must be a {type(default).__name__} (got {given!r})."
        elif name == "API":
            yield from _api_problems(given)
        elif name == "LISTEN_DATABASES":
            yield from _listen_problems(given)
        elif isinstance(given, dict):
            for kind, value in given.items():
                if kind not in DEFAULTS[name]:
                    mend = did_you_mean(kind, DEFAULTS[name])
                    yield f"OJS_UNIQUE[{name!r}][{kind!r}] is no kind of finished job. {mend}"
                elif value is not None:
                    yield from _retention_problems(f"OJS_UNIQUE[{name!r}][{kind!r}]", value, "; None keeps for ever")
        elif name == "DEFAULT_QUEUE":
            try:
                queue_name(given)
            except InvalidRequest as error:
                yield f"OJS_UNIQUE[{name!r}]: {error.message}"
        elif isinstance(given, int) and not isinstance(given, bool) and given <= 0:
            yield f"OJS_UNIQUE[{name!r}] must be positive (got {given!r})."


def _retention_problems(setting: str, given: Any, otherwise: str = "") -> Iterator[str]:
    try:
        retention_period(given)
    except ValueError as error:
        yield f"{setting} {error} (got {given!r}). Write an ISO 8601 duration such as 'P30D'{otherwise}."


def _listen_problems(given: Any) -> Iterator[str]:
    for alias, other in given.items():
        for one in (alias, other):
            if not isinstance(one, str) or one not in django_settings.DATABASES:
                mend = did_you_mean(one, django_settings.DATABASES)
                yield f"OJS_UNIQUE['LISTEN_DATABASES']: {one!r} is no entry of DATABASES. {mend}"


def _queue_rule_problems(given: Any) -> Iterator[str]:
    if isinstance(given, bool):
        return
    if not isinstance(given, (list, tuple, set, frozenset)):
        yield f"OJS_UNIQUE['UNIQUE_QUEUES'] must be True, False or a list of queue names (got {given!r})."
        return
    for index, name in enumerate(given):
        try:
            queue_name(name)
        except InvalidRequest as error:
            yield f"OJS_UNIQUE['UNIQUE_QUEUES'][{index}]: {error.message}"


def _api_problems(api: Any) -> Iterator[str]:
    for name, given in api.items():
        setting = f"OJS_UNIQUE['API'][{name!r}]"
        default = API_DEFAULTS.get(name)
        if name not in API_DEFAULTS:
            yield f"{setting} is not a setting. {did_you_mean(name, API_DEFAULTS)}"
        elif isinstance(default, bool):
            if not isinstance(given, bool):
                yield f"{setting} must be a bool (got {given!r})."
        elif name == "LEASE":
            try:
                milliseconds(given, setting)
            except InvalidRequest as error:
                yield error.message
        elif name == "MAX_WAIT":
            if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given < float("inf"):
                yield f"{setting} must be a number of seconds, 0 for no waiting (got {given!r})."
        elif isinstance(default, int):
            if type(given) is not int or given <= 0:
                yield f"{setting} must be a positive int (got {given!r})."
        elif name == "PERMISSIONS":
            yield from _permission_problems(setting, given)
        elif given is not None or name != "AUTHENTICATION":
            yield from _class_problems(setting, given)


def _permission_problems(setting: str, given: Any) -> Iterator[str]:
    groups = API_DEFAULTS["PERMISSIONS"]
    if not isinstance(given, dict):
        yield f"{setting} must be a dict (got {given!r})."
        return
    for group, classes in given.items():
        if group not in groups:
            yield f"{setting}[{group!r}] is no group of permissions. {did_you_mean(group, groups)}"
        elif classes in ([], ()):
            yield f"{setting}[{group!r}] is empty. Leave it out for staff only, or name a permission class."
        else:
            yield from _class_problems(f"{setting}[{group!r}]", classes)


def imported(named: Any) -> Any:
    """Return what a setting names by its dotted path, or holds itself. Raises ImportError."""
    return import_string(named) if isinstance(named, str) else named


def _class_problems(setting: str, given: Any) -> Iterator[str]:
    if not isinstance(given, (list, tuple)):
        yield f"{setting} must be a list of classes, or of their dotted names (got {given!r})."
        return
    for index, one in enumerate(given):
        try:
            one = imported(one)
        except Exception as error:
            yield f"{setting}[{index}] cannot be imported: {error}."
            continue
        if not callable(one):
            yield f"{setting}[{index}] is not a class (got {one!r})."
