"""Read the query of a list: names, and the filters of jobs.

Functions raise InvalidRequest, which names the parameter.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from django.db import router
from django.http import QueryDict

from ...db.characters import storable
from ...db.clock import database_now
from ...exceptions import InvalidRequest, did_you_mean
from ...models import Job
from ...ojs.names import job_key, job_type, queue_name
from ...ojs.states import JobState
from ...reporting.job_filters import before
from ...unique.keys import KeyScope
from ...wire.schema import Value, choice, read_moment, text

MOST_NAMES = 100
PAGE = ("limit", "offset", "cursor")


def read_names(parameters: QueryDict, field: str, check: Callable[[str], str]) -> list[str]:
    """Read comma-separated names from one parameter, or from several of the same name."""
    names = [name for text in parameters.getlist(field) if text for name in text.split(",")]
    if len(names) > MOST_NAMES:
        raise InvalidRequest.at(field, f"names more than {MOST_NAMES} values", hint="Make several requests.")
    try:
        return [check(name) for name in names]
    except InvalidRequest as error:
        problem = error.message.partition(": ")[2]
        raise InvalidRequest(f"{field}: {problem}", details={**error.details, "field": field}) from None


def read_job_filters(parameters: QueryDict) -> dict[str, Any]:
    """Return the given filters as `reporting.job_filters.filters` takes them; a misspelt one is refused."""
    given = _read(parameters, FILTERS, PAGE)
    if "worker_id" in given:
        given["worker"] = given.pop("worker_id")
    return {**given, "state": read_names(parameters, "state", _state) or None}


def read_key(parameters: QueryDict) -> dict[str, Any]:
    """Return the arguments of `JobQuerySet.remove`; a misspelt one is refused."""
    given = _read(parameters, KEY)
    if "key" not in given:
        raise InvalidRequest.at("key", "is missing", hint="Write ?key= and the key of the job to remove.")
    return given


def _read(parameters: QueryDict, values: Mapping[str, Value], others: tuple[str, ...] = ()) -> dict[str, Any]:
    known = (*values, *others)
    for name in parameters:
        if name not in known:
            raise InvalidRequest.at(name, "is not a parameter here", hint=did_you_mean(name, known))
        if name != "state" and len(parameters.getlist(name)) > 1:
            raise InvalidRequest.at(name, "is given more than once", hint="Make a request for each value.")
    return {name: one.read(str(parameters[name]), name) for name, one in values.items() if name in parameters}


def _state(name: str) -> str:
    if name not in tuple(JobState):
        raise InvalidRequest.at("state", "is not a state", value=name, hint=did_you_mean(name, JobState))
    return name


def stored_text(text: str, field: str) -> str:
    """Return a text to compare with a stored one."""
    if storable(text) != text:
        raise InvalidRequest.at(field, "has a character that no stored text has", value=text)
    return text


def _past(text: str, field: str) -> datetime:
    now = database_now(router.db_for_write(Job))
    try:
        return before(now, text) or read_moment(text, field, now)
    except ValueError as error:
        raise InvalidRequest.at(field, str(error), value=text, hint="Write PT30M for half an hour ago.") from None


def _boolean(text: str, field: str) -> bool:
    if text not in ("true", "false"):
        raise InvalidRequest.at(field, "must be true or false", value=text)
    return text == "true"


FILTERS = {
    "state": text("In one of these states, with commas."),
    "queue": text("Of one queue.", read=lambda text, field: queue_name(text)),
    "type": text("Of one type.", read=lambda text, field: job_type(text)),
    "key": text("Enqueued with this key.", read=lambda text, field: job_key(text)),
    "worker_id": text("Whose lease this worker has, or had last.", read=stored_text),
    "since": text("Enqueued at or after this time, or so long ago, as in PT30M.", read=_past),
    "until": text("Enqueued before this time, or longer ago than this.", read=_past),
    "finished_since": text("Finished at or after this time, or so long ago.", read=_past),
    "finished_until": text("Finished before this time, or longer ago than this.", read=_past),
    "dead_letter": Value(
        {"type": "string", "enum": ["true", "false"]}, "Only dead letters, or none of them.", read=_boolean
    ),
}
"""The parameters that filter jobs, as those of `manage.py jobs list` do."""
KEY = {
    "key": text("The key.", read=FILTERS["key"].read),
    "type": text("The type of the job, if several hold the key.", read=FILTERS["type"].read),
    "key_scope": choice(KeyScope, "The scope of the key, likewise."),
}
"""The parameters that name the job that holds a key."""
