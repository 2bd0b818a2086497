"""What a search term for jobs can mean, and which rows each reading of it selects."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

from django.db import connections
from django.db.models import Q, QuerySet, TextField
from django.db.models.fields.json import KeyTransform
from django.db.models.functions import Cast, Upper

from ..conf import settings
from ..db.args_index import can_index_args, has_args_index
from ..db.constraints import of_fingerprint
from ..db.dialect import Dialect
from ..db.dialects import dialect_of
from ..exceptions import Message
from ..handlers.redaction import hides_places, is_hidden, names_of_any
from ..handlers.registry import registry
from ..models import Job
from ..ojs.names import LONGEST_KEY
from .parse import fingerprint_begins, read_id

LEFT_OUT = Message("Jobs with a redacted member are left out of the search for a text in the args.")
LONGEST_TERM = LONGEST_KEY
"""The most characters of a term; a longer one finds nothing."""

_NAME = r"(?:[^\W\d][\w-]*|\d{1,4})"
_MEMBER = re.compile(rf"(?:args\.)?({_NAME}(?:\.{_NAME}){{0,7}})\s*=\s*(\S.*)", re.DOTALL)
_IN_ARGS = "args:"


class Reading(NamedTuple):
    """One way to read a term. ``select`` filters jobs by it; ``by_index`` says whether an index finds them.

    ``note``: what it does not find.
    """

    select: Callable[[QuerySet[Any]], QuerySet[Any]]
    by_index: bool = False
    note: str = ""


def readings(term: str, using: str) -> Iterator[Reading]:
    """Yield the ways to read a term, the best first; there is at least one.

    A term that names a member of the args may take one statement, which looks for an index.
    """
    if not 0 < len(term) <= LONGEST_TERM or "\0" in term:
        yield NOTHING
    elif term.startswith(_IN_ARGS):
        yield _in_text(term.removeprefix(_IN_ARGS).strip())
    else:
        dialect = dialect_of(Job.objects.using(using))
        conditions = _exact(term, dialect)
        yield from (Reading(partial(_matching, condition=condition), by_index=True) for condition in conditions)
        if (member := _MEMBER.fullmatch(term)) is not None:
            path, value = member[1].split("."), member[2]
            if hidden := next((name for name in path if is_hidden(name, names_of_any())), None):
                yield NOTHING._replace(note=Message("No job is searched by {name}: it is redacted.", name=hidden))
                return
            if can_index_args(connections[using]) and not any(map(str.isdecimal, path)):
                select = partial(_matching, condition=_contains(path, value))
                yield Reading(select, by_index=has_args_index(Job, connections[using]))
            else:  # a number may be the name of a member or a place in an array
                yield Reading(partial(_with_member, path=path, value=value))
        else:
            queue = Q(queue=term) & dialect.exactly("queue", term)
            yield Reading(partial(_matching, condition=queue | dialect.beginning("type", term)))
        yield _in_text(term)


NOTHING = Reading(lambda jobs: jobs.none(), by_index=True)


def exact(jobs: QuerySet[Any], term: str) -> QuerySet[Any]:
    """Select the jobs of the first reading of a term that finds any; only readings that an index answers are tried."""
    found = jobs.none()
    for reading in readings(term.strip(), jobs.db):
        if reading.by_index and (found := reading.select(jobs)).exists():
            break
    return found


def of_types(rows: QuerySet[Any], begins: str) -> QuerySet[Any]:
    """Select the rows whose type begins so."""
    return rows.filter(dialect_of(rows).beginning("type", begins))


def _exact(term: str, dialect: Dialect) -> Iterator[Q]:
    if (id := read_id(term)) is not None:
        yield Q(pk=id)
    yield Q(key=term) & dialect.exactly("key", term)
    if re.fullmatch("[0-9a-f]{6,64}", digits := term.lower()):
        yield of_fingerprint(**fingerprint_begins(digits))


def _matching(jobs: QuerySet[Any], *, condition: Q) -> QuerySet[Any]:
    return jobs.filter(condition)


def _with_member(jobs: Any, *, path: list[str], value: str) -> Any:
    """Select by a member of the args: its value is the text as a string, or as a JSON number, boolean or null."""
    if path[0].isdecimal():
        jobs = jobs.exclude(type__in=_types_with_hidden_places())
    member: Any = "args"
    for name in path:
        member = KeyTransform(name, member)
    condition = Q()
    for each in _values(value):
        condition |= Q(member=each)
    return jobs.alias(member=member).filter(condition)


def _contains(path: list[str], value: str) -> Q:
    """Return what `_with_member` selects by, in the form that an index of all members answers."""
    condition = Q()
    for wanted in _values(value):
        for name in reversed(path):
            wanted = {name: wanted}
        condition |= Q(args__contains=wanted)
    return condition


def _values(text: str) -> list[Any]:
    """Return what a text can stand for: itself, and null, a boolean or a number that databases accept."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return [text]
    if value is None or isinstance(value, bool):
        return [text, value]
    if (isinstance(value, int) and abs(value) < 2**63) or (isinstance(value, float) and math.isfinite(value)):
        if abs(value) < 2**53 and value == int(value):
            return [text, int(value), float(value)]  # to MariaDB, 5 and 5.0 differ
        return [text, value]
    return [text]


def _in_text(text: str) -> Reading:
    """Read a term as a text in the args; it finds no job that has a redacted member."""
    names = names_of_any()
    if all(map(str.isascii, names)):
        return Reading(partial(_containing, text=text), note=LEFT_OUT if names else "")
    return NOTHING._replace(note=LEFT_OUT)  # databases differ in what they take for equal


def _types_with_hidden_places() -> list[str]:
    return [type for type in registry if hides_places(type)]


def _hiding() -> Q:
    """Return the condition for jobs that may have a redacted member in their args."""
    hiding = Q(type__in=_types_with_hidden_places(), args_text__startswith="[")
    for type, names in ((None, settings.redact), *((one.type, one.redact) for one in registry.definitions())):
        for name in names:
            condition = Q(args_upper__contains=json.dumps(name).upper())
            hiding |= condition if type is None else condition & Q(type=type)
    return hiding


def _containing(jobs: Any, *, text: str) -> Any:
    """Select by a text in the args, either as given or as JSON escapes it inside a string."""
    dialect = dialect_of(jobs)
    spelled = json.dumps(text, ensure_ascii=not dialect.keeps_unicode_in_json)[1:-1]
    found = dialect.containing("args_text", text) | dialect.containing("args_text", spelled)
    jobs = jobs.alias(args_text=Cast("args", TextField())).filter(found)
    return jobs.alias(args_upper=Upper("args_text")).exclude(_hiding()) if names_of_any() else jobs
