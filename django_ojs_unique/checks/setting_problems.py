"""What is wrong with the project's ``OJS_UNIQUE``."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from difflib import get_close_matches
from typing import Any

from django.conf import settings as django_settings

from ..conf import API_DEFAULTS, DEFAULTS, imported, retention_period
from ..exceptions import InvalidRequest, did_you_mean
from ..handlers.carried import Context
from ..ojs.durations import milliseconds
from ..ojs.limits import key_parts
from ..ojs.names import are_names, queue_name
from ..ojs.retry import RetryPolicy


def problems() -> Iterator[str]:
    """Yield one sentence for each problem."""
    value = getattr(django_settings, "OJS_UNIQUE", {})
    if not isinstance(value, dict):
        yield "OJS_UNIQUE must be a dict."
        return
    for name, given in value.items():
        setting = f"OJS_UNIQUE[{name!r}]"
        if name not in DEFAULTS:
            yield f"{setting} is not a setting. {did_you_mean(name, DEFAULTS)}"
        elif name in _OF_SEVERAL_TYPES or type(given) is type(DEFAULTS[name]):
            yield from _PROBLEMS.get(name, _number_problems)(setting, given)
        else:
            yield f"{setting} must be a {type(DEFAULTS[name]).__name__} (got {given!r})."


def lookalikes() -> Iterator[str]:
    """Yield the names of other settings that were probably meant to be ``OJS_UNIQUE``.

    Such a setting is a dict with an entry that ``OJS_UNIQUE`` has, or without any: a project may have settings of its
    own with such a name.
    """
    for name in get_close_matches("OJS_UNIQUE", dir(django_settings), n=9, cutoff=_CLOSE):
        value = getattr(django_settings, name)
        if name != "OJS_UNIQUE" and isinstance(value, dict) and (not value or not DEFAULTS.keys().isdisjoint(value)):
            yield name


def _eager_problems(setting: str, given: Any) -> Iterator[str]:
    if not isinstance(given, bool) and given != "propagate":
        yield f"{setting} must be True, False or 'propagate' (got {given!r})."


def _number_problems(setting: str, given: Any) -> Iterator[str]:
    if isinstance(given, int) and not isinstance(given, bool) and given <= 0:
        yield f"{setting} must be positive (got {given!r})."


def _retention_problems(setting: str, given: Any, otherwise: str = "") -> Iterator[str]:
    try:
        retention_period(given)
    except ValueError as error:
        yield f"{setting} {error} (got {given!r}). Write an ISO 8601 duration such as 'P30D'{otherwise}."


def _kinds_problems(setting: str, given: Any) -> Iterator[str]:
    kinds = DEFAULTS["RETENTION"]
    for kind, value in given.items():
        if kind not in kinds:
            yield f"{setting}[{kind!r}] is no kind of finished job. {did_you_mean(kind, kinds)}"
        elif value is not None:
            yield from _retention_problems(f"{setting}[{kind!r}]", value, "; None keeps for ever")


def _retry_problems(setting: str, given: Any) -> Iterator[str]:
    try:
        RetryPolicy.parse(given)
    except InvalidRequest as error:
        yield f"{setting}: {error.message}"


def _queue_problems(setting: str, given: Any) -> Iterator[str]:
    try:
        queue_name(given)
    except InvalidRequest as error:
        yield f"{setting}: {error.message}"


def _listen_problems(setting: str, given: Any) -> Iterator[str]:
    for alias, other in given.items():
        for one in (alias, other):
            if not isinstance(one, str) or one not in django_settings.DATABASES:
                hint = did_you_mean(one, django_settings.DATABASES)
                yield f"{setting}: {one!r} is no entry of DATABASES. {hint}"


def _context_problems(setting: str, given: Any) -> Iterator[str]:
    if not isinstance(given, (str, type, list, tuple)):
        yield f"{setting} must be the dotted name of a class, or a list of them (got {given!r})."
        return
    names: set[str] = set()
    for one in [given] if isinstance(given, (str, type)) else given:
        try:
            kind = imported(one)
        except Exception as error:
            yield f"{setting}: {one!r} cannot be imported: {error}."
            continue
        if not (isinstance(kind, type) and issubclass(kind, Context)):
            yield f"{setting}: {one!r} is not a subclass of django_ojs_unique.context.Context."
        elif not isinstance(name := getattr(kind, "name", None), str) or not name:
            yield f"{setting}: {one!r} has no name. Write name = '...' in the class."
        elif name in names:
            yield f"{setting}: two classes have the name {name!r}. Jobs could not tell them apart."
        else:
            names.add(name)


def _module_problems(setting: str, given: Any) -> Iterator[str]:
    if not (are_names(given) and all(name.isidentifier() for name in given)):
        yield f"{setting} must be a list of names of modules of apps, such as ['jobs', 'tasks'] (got {given!r})."


def _redact_problems(setting: str, given: Any) -> Iterator[str]:
    if not are_names(given):
        yield f"{setting} must be a list of names of members, such as ['iban'] (got {given!r})."


def _queue_rule_problems(setting: str, given: Any) -> Iterator[str]:
    if isinstance(given, bool):
        return
    if not isinstance(given, (list, tuple, set, frozenset)):
        yield f"{setting} must be True, False or a list of queue names (got {given!r})."
        return
    for index, name in enumerate(given):
        yield from _queue_problems(f"{setting}[{index}]", name)


def _fair_problems(setting: str, given: Any) -> Iterator[str]:
    for name, parts in given.items():
        yield from _queue_problems(setting, name)
        try:
            if not key_parts(parts):
                yield f"{setting}[{name!r}] is empty. Name what its jobs take turns by, such as 'meta.tenant'."
        except InvalidRequest as error:
            yield f"{setting}[{name!r}] {error.message.removeprefix('limit.key: ')}"


def _api_problems(setting: str, given: Any) -> Iterator[str]:
    for name, value in given.items():
        member = f"{setting}[{name!r}]"
        if name not in API_DEFAULTS:
            yield f"{member} is not a setting. {did_you_mean(name, API_DEFAULTS)}"
        elif name in _API_PROBLEMS:
            yield from _API_PROBLEMS[name](member, value)
        elif isinstance(API_DEFAULTS[name], bool):
            if not isinstance(value, bool):
                yield f"{member} must be a bool (got {value!r})."
        elif isinstance(API_DEFAULTS[name], int):
            if type(value) is not int or value <= 0:
                yield f"{member} must be a positive int (got {value!r})."
        elif value is not None or name != "AUTHENTICATION":
            yield from _class_problems(member, value)


def _lease_problems(setting: str, given: Any) -> Iterator[str]:
    try:
        milliseconds(given, setting)
    except InvalidRequest as error:
        yield error.message


def _wait_problems(setting: str, given: Any) -> Iterator[str]:
    if not isinstance(given, (int, float)) or isinstance(given, bool) or not 0 <= given < float("inf"):
        yield f"{setting} must be a number of seconds, 0 for no waiting (got {given!r})."


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


def _rule_problems(setting: str, given: Any) -> Iterator[str]:
    if given is None:
        return
    try:
        rule = imported(given)
    except Exception as error:
        yield f"{setting} cannot be imported: {error}."
        return
    if not isinstance(given, str) and not inspect.isfunction(rule):
        yield f"{setting} must be a function, or the dotted name of one (got {given!r})."
    elif inspect.iscoroutinefunction(rule) or isinstance(rule, type) or not callable(rule):
        yield f"{setting} must name a plain function that returns True or False (got {rule!r})."
    else:
        try:
            inspect.signature(rule).bind(*_RULE_ARGUMENTS)
        except TypeError as error:
            yield f"{setting} cannot be called with ({', '.join(_RULE_ARGUMENTS)}): {error}."


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


_RULE_ARGUMENTS = ("request", "action", "queue", "type")
_CLOSE = 0.85
"""One or two letters of ten: ``OJS_UNIQUE_URL`` is not as close."""
_OF_SEVERAL_TYPES = (
    "CONTEXT", "EAGER", "EVENT_RETENTION", "REDACT", "RETRY", "SUPPRESSED_RETENTION", "UNIQUE_QUEUES",
    "WORKFLOW_RETENTION",
)  # fmt: skip
_PROBLEMS: dict[str, Callable[[str, Any], Iterator[str]]] = {
    "API": _api_problems,
    "AUTODISCOVER_MODULES": _module_problems,
    "CONTEXT": _context_problems,
    "DEFAULT_QUEUE": _queue_problems,
    "EAGER": _eager_problems,
    "EVENT_RETENTION": _retention_problems,
    "FAIR_QUEUES": _fair_problems,
    "LISTEN_DATABASES": _listen_problems,
    "REDACT": _redact_problems,
    "RETENTION": _kinds_problems,
    "RETRY": _retry_problems,
    "SUPPRESSED_RETENTION": _retention_problems,
    "UNIQUE_QUEUES": _queue_rule_problems,
    "WORKFLOW_RETENTION": _retention_problems,
}
_API_PROBLEMS: dict[str, Callable[[str, Any], Iterator[str]]] = {
    "AUTHORIZE": _rule_problems,
    "LEASE": _lease_problems,
    "MAX_WAIT": _wait_problems,
    "PERMISSIONS": _permission_problems,
}
