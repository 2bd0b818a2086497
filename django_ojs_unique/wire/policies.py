"""The objects among a job's options: unique policy, retry policy, limits (docs: HTTP, "Enqueue").

A unique policy may be in the words that the OJS clients send, too (docs: HTTP, "Clients that others wrote").
"""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from ..exceptions import InvalidPolicy, InvalidRequest
from ..models.queue import HIGHEST_LIMIT
from ..ojs import names
from ..ojs.durations import format_duration
from ..ojs.limits import LARGEST, MOST_LIMITS, Limit, limits_of
from ..ojs.retry import EXHAUSTION, LONGEST_ERROR, MOST_ATTEMPTS, MOST_ERRORS, STRATEGIES
from ..ojs.selection import object_of
from ..ojs.states import JobState
from ..options import OPTIONS
from ..unique.policy import DIMENSIONS, OnConflict, OnRetry, Window
from .schema import Object, Value, array, duration_ms, flag, mapping, number, one_of, read_milliseconds, text, whole

USE_EXISTING = "use_existing"
"""What the OpenAPI document of OJS calls `OnConflict.IGNORE`."""
_KEYS = "Write `keys`, and `args_keys` for members of args."
_LIMIT_MEMBERS = tuple(field.name for field in fields(Limit))
_BEYOND = "Beyond the specification."
_DURATION = {"type": "string", "format": "duration"}
_MOMENT = {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "string", "pattern": r"^\+P"}]}
_DELAY = {"anyOf": [{"type": "string", "pattern": r"^\+?P"}, {"type": "string", "format": "date-time"}]}

UNIQUE = Object(
    "Unique",
    {
        "keys?": array(one_of(DIMENSIONS)),
        "args_keys? meta_keys?": array(text(), null=True),
        "period?": Value(_DURATION, "Counted from the stored job's `created_at`.", null=True),
        "states?": array(one_of(JobState), fewest=1),
        "on_conflict?": one_of(OnConflict, f"`{OnConflict.REPLACE_IN_PLACE}`: beyond the specification."),
        "window?": one_of(Window, _BEYOND),
        "on_retry?": one_of(OnRetry, _BEYOND),
        "delay?": Value(_DURATION, _BEYOND, null=True),
    },
    "When two jobs are the same, and what to do then.",
    closed=True,
)
_SENT_UNIQUE = UNIQUE.extended(
    "SentUnique",
    {
        "key?": array(text(), "`keys`, or `args_keys`, as the OJS clients call them."),
        "period_ms?": duration_ms("`period`, as the OJS client for Go calls it."),
        "on_conflict?": one_of((*OnConflict, USE_EXISTING), f"`{USE_EXISTING}` is `ignore`."),
    },
    "A unique policy, also in the words of other clients.",
)
RETRY = Object(
    "Retry",
    {
        "max_attempts?": whole("", 0, MOST_ATTEMPTS),
        "initial_interval? max_interval?": Value(_DURATION),
        "backoff_coefficient?": number(lowest=1),
        "jitter?": flag(),
        "non_retryable_errors?": array(text(longest=LONGEST_ERROR), most=MOST_ERRORS),
        "on_exhaustion?": one_of(EXHAUSTION),
        "backoff_strategy?": one_of(STRATEGIES),
    },
    "How often and how soon a failed job runs again.",
    closed=True,
)
_SENT_RETRY = RETRY.extended(
    "SentRetry",
    {"initial_interval_ms? max_interval_ms?": duration_ms(), "backoff_type?": one_of(STRATEGIES)},
    "A retry policy, also in the words of the HTTP chapter.",
)
RATE = Object(
    "RateLimit",
    {"max_per_second": whole("", 1, HIGHEST_LIMIT, problem=f"must be a whole number from 1 to {HIGHEST_LIMIT}")},
    "How fast the job's queue may be worked off.",
    closed=True,
)
_NUMBERS = {
    "running?": whole("How many run at once.", 1, LARGEST),
    "per_second?": whole("How many start in a second.", 1, LARGEST),
    "per_minute? per_hour?": whole("", 1, LARGEST),
    "weight?": whole("How many the job counts for.", 1, LARGEST),
}
_LIMIT = Object(
    "Limit",
    {
        **_NUMBERS,
        "key?": array(text(), "What the jobs have in common, such as `args.customer_id`."),
        "name?": text(longest=names.LONGEST_LIMIT),
    },
    f"How many jobs of a partition may run at once, or start in a time. {_BEYOND}",
    closed=True,
)
JOB_LIMIT = Object(
    "JobLimit", {**_NUMBERS, "key": mapping(), "name": text()}, "A limit of a job, with the values of its key."
)


_MOMENT_MEMBER = Value(_MOMENT, "RFC 3339 with a zone, or `+` and an ISO 8601 duration from now.")
_LENGTH = Value({"anyOf": [_DURATION, {"type": "number"}]}, "An ISO 8601 duration, or seconds.")
_DELAY_MEMBER = Value(_DELAY, "An ISO 8601 duration from now, or RFC 3339 with a zone.")
JOB_OPTIONS = Object(
    "Options",
    {
        **{f"{option.written}?": Value(option.kind.schema) for option in OPTIONS.values() if option.wire},
        "timeout_ms? visibility_timeout_ms?": duration_ms(),
        "scheduled_at? expires_at?": _MOMENT_MEMBER,
        "delay_until? delay?": _DELAY_MEMBER,
        "timeout? visibility_timeout?": _LENGTH,
        "retry? retry_policy?": _SENT_RETRY.member(),
        "unique?": _SENT_UNIQUE.member(),
        "rate_limit?": RATE.member(),
        "metadata?": mapping(),
        "limits?": array(_LIMIT, most=MOST_LIMITS),
    },
    "How to treat a job.",
    closed=True,
)


def read_limits(value: Any, places: dict[str, str]) -> tuple[Limit, ...]:
    """Return the limits that a client has written; none, if the list is empty.

    Note in ``places`` how the client has written what errors of the engine name. Raises InvalidRequest.
    """
    if not isinstance(value, list):
        hint = "Write [{'key': ['args.customer_id'], 'running': 1}]."
        raise InvalidRequest.at("limit", "must be an array of objects", value=value, hint=hint)
    if len(value) == 1:
        places.update({f"limit.{member}": f"{places['limit']}[0].{member}" for member in _LIMIT_MEMBERS})
    return limits_of(value)


def read_unique(policy: Any, args: Any, places: dict[str, str]) -> Any:
    """Return a policy with the specification's members in the place of ``key``, ``period_ms`` and ``use_existing``.

    Note in ``places`` which member the client wrote. Raises InvalidRequest for what could mean two things.
    """
    if not isinstance(policy, dict):
        return policy
    read = {name: value for name, value in policy.items() if name not in ("key", "period_ms")}
    if (key := policy.get("key")) is not None:
        member, names = _read_key(key, read, args)
        read[member], places[f"unique.{member}"] = names, f"{places['unique']}.key"
        if member == "args_keys":
            read["keys"] = ["type", "args"]
    if (period := policy.get("period_ms")) is not None:
        if read.get("period") is not None:
            raise InvalidPolicy.at("unique.period_ms", "says the same as period", hint="Leave one of them out.")
        read["period"] = format_duration(read_milliseconds(period, "unique.period_ms"))
        places["unique.period"] = f"{places['unique']}.period_ms"
    if read.get("on_conflict") == USE_EXISTING:
        read["on_conflict"] = str(OnConflict.IGNORE)
    return read


def _read_key(key: Any, policy: dict[str, Any], args: Any) -> tuple[str, list[str]]:
    """Return whether ``key`` means ``keys`` or ``args_keys``, and the names.

    The Python client sends dimensions; the Go and JavaScript clients send members of args. Only one of the two is
    possible, or the key is refused: the wrong one would make other jobs duplicates than the client meant.
    """
    field = "unique.key"
    if policy.get("keys") is not None:
        raise InvalidPolicy.at(field, "says the same as keys", hint="Leave one of them out.")
    if not isinstance(key, list) or not key or not all(isinstance(name, str) for name in key):
        raise InvalidPolicy.at(field, "must be a list of at least one name", value=key, hint=_KEYS)
    members = set() if policy.get("args_keys") is not None else set(object_of(args) or ())
    are_dimensions, are_members = set(DIMENSIONS).issuperset(key), members.issuperset(key)
    if are_dimensions and are_members:
        problem = "can mean dimensions of the job, and members of args with the same names"
        raise InvalidPolicy.at(field, problem, value=key, hint=f"{_KEYS} If your client cannot, rename the members.")
    if are_dimensions or are_members:
        return ("keys" if are_dimensions else "args_keys"), key
    problem = f"must name only dimensions ({', '.join(DIMENSIONS)}), or only members of args"
    raise InvalidPolicy.at(field, problem, value=key, hint=_KEYS)
