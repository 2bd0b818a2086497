"""Periodic jobs in JSON: read those of a client, and show the stored ones (HTTP binding, "Cron")."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from ...enqueue.request import Request
from ...exceptions import InvalidRequest, OJSError, did_you_mean
from ...handlers.redaction import redacted_member
from ...models import CronJob
from ...models.cron import LONGEST_NAME, NAME
from ...ojs.cron import OverlapPolicy
from ...ojs.moments import rfc3339
from ...options import OPTIONS, REPEATED
from ...wire import policies
from ...wire.enqueue import TEMPLATE, read_job, relocated, show_options
from ...wire.schema import Object, anything, array, flag, job_args, mapping, one_of, text, time, whole

_SYSTEM_MANAGED = {"created_at", "next_run_at", "last_run_at", "run_count"}
_OF_ONE_JOB = ("id", "rate_limit", *(name for one in OPTIONS.values() if not one.repeats for name in one.wire))
_TEMPLATE = "Write job_template, an object with `type` and `args`."
STATUSES = ("active", "paused")
"""Of periodic jobs and queues."""


@dataclass(frozen=True, slots=True)
class WantedCron:
    """What a client asks for: to define an entry; if ``definition`` is None, only to enable or disable it."""

    name: str
    enabled: bool
    definition: Mapping[str, Any] | None = field(default=None, repr=False)
    places: Mapping[str, str] = field(default_factory=dict)

    def locate(self, error: OJSError) -> OJSError:
        """Return an error of the engine with the field name that the client wrote."""
        path = str(error.details.get("field", ""))
        if path.startswith("options."):  # the stored entry's options, not a member of the request
            error.details["field"] = path.removeprefix("options.")
            error.message = error.message.removeprefix("options.")
        return relocated(error, self.places)


def read_cron(body: Mapping[str, Any], now: datetime) -> WantedCron:
    """Read a periodic job: the job's members are in ``job_template``, or beside the entry's own members.

    Raises InvalidRequest or InvalidRetryPolicy, which name the field.
    """
    members = {name: value for name, value in body.items() if value is not None and name not in _SYSTEM_MANAGED}
    if (name := members.pop("name", None)) is None:
        raise InvalidRequest.at("name", "is missing", hint="Write a name, as in 'reports.nightly'.")
    if members.keys() == {"enabled"} and isinstance(members["enabled"], bool):
        return WantedCron(name, members["enabled"])
    places = {"expression": "expression" if "expression" in members else "cron"}
    if (alias := members.pop("cron", None)) is not None:
        members.setdefault("expression", alias)
    if "expression" not in members:
        raise InvalidRequest.at("expression", "is missing", hint="Write a cron expression, as in '0 9 * * MON-FRI'.")
    own = {member: members.pop(member) for member in DEFINE.members if member in members}
    template, prefix = _template_of(own, members)
    request = _read_template(template, prefix, now, places)
    options = {name: getattr(request, name) for name in REPEATED}
    own["options"] = {name: value for name, value in options.items() if value != OPTIONS[name].default}
    return WantedCron(name, True, {"name": name, **own, "type": request.type, "args": request.args}, places)


def show(entry: CronJob) -> dict[str, Any]:
    """Return a periodic job's JSON object."""
    return CRON.show(entry)


def show_flat(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return the same with the job's members beside the entry's own (OJS cron chapter), as the OJS clients read it.

    Args that are an object become the only element of an array: nothing else is args there, and some read nothing else.
    """
    own = {name: value for name, value in entry.items() if name not in ("expression", "job_template")}
    args, status = entry["job_template"]["args"], "active" if entry["enabled"] else "paused"
    args = args if isinstance(args, list) else [args]
    return {**entry["job_template"], **own, "args": args, "cron": entry["expression"], "status": status}


def _template_of(own: dict[str, Any], others: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """Return the members of the job, and the path that precedes their names in the body."""
    if "job_template" not in own:
        if not others:
            raise InvalidRequest.at("job_template", "is missing", hint=_TEMPLATE)
        return others, ""
    template = own.pop("job_template")
    if not isinstance(template, dict):
        raise InvalidRequest.at("job_template", "must be an object", value=template, hint=_TEMPLATE)
    if others:
        raise _unknown(next(iter(others)))
    return template, "job_template."


def _read_template(template: dict[str, Any], prefix: str, now: datetime, places: dict[str, str]) -> Request:
    options = template.get("options")
    for path, members in ((prefix, template), (f"{prefix}options.", options if isinstance(options, dict) else {})):
        for name in _OF_ONE_JOB:
            if members.get(name) is not None:
                raise InvalidRequest.at(f"{path}{name}", "does not suit every occurrence", hint="Leave it out.")
    try:
        wanted = read_job(template, now)
    except OJSError as error:
        path = str(error.details.get("field", ""))
        error.details["field"] = f"{prefix}{path}".removesuffix(".")
        if path and error.message.startswith(path):
            error.message = prefix + error.message
        raise
    if wanted.request.extra and not prefix:
        raise _unknown(next(iter(wanted.request.extra)))
    places.update(
        {name: prefix + wanted.places.get(name, name) for name in ("type", "args", *REPEATED, *wanted.places)}
    )
    return wanted.request


def _unknown(name: str) -> InvalidRequest:
    return InvalidRequest.at(name, "is not a member of a periodic job", hint=did_you_mean(name, DEFINE.members))


def _template(entry: CronJob) -> dict[str, Any]:
    """Return the ``job_template`` of an entry, whose row may have been changed manually."""
    options = redacted_member(entry, "options")
    options = dict(options) if isinstance(options, dict) else {}
    extra = options.pop("extra", None)
    template = {
        **(extra if isinstance(extra, dict) else {}),
        "type": entry.type,
        "args": redacted_member(entry, "args"),
    }
    for name in ("meta", "schema"):
        if options.get(name):
            template[name] = options[name]
        options.pop(name, None)
    if shown := show_options(options):
        template["options"] = shown
    return template


DEFINE = Object(
    "DefineCron",
    {
        "name": text("", LONGEST_NAME, NAME.pattern),
        "expression": text("Five or six fields, `@daily` and its like, or `@every` and a duration."),
        "timezone?": text(),
        "overlap_policy?": one_of(OverlapPolicy),
        "enabled?": flag(),
        "description?": text(),
        "job_template": Object(
            "JobTemplate",
            {**TEMPLATE, "options?": policies.JOB_OPTIONS.member("Those that suit every occurrence.")},
            "What a periodic job enqueues.",
        ).member(),
    },
    "A periodic job, new or changed.",
    closed=True,
)
_OWN = {
    "name timezone": text(),
    "overlap_policy": one_of(OverlapPolicy),
    "enabled": flag(),
    "description?": text(of=lambda entry: entry.description or None),
    "created_at": time(),
    "next_run_at?": time(of=lambda entry: entry.next_run_at if entry.enabled else None, write=rfc3339),
    "last_run_at?": time(),
    "run_count": whole(),
}
_STORED = {"type": text(), "args": job_args(), "meta? options?": mapping()}
CRON = Object(
    "CronJob", {**_OWN, "expression": text(), "job_template": Object("StoredTemplate", _STORED).member(of=_template)}
)
FLAT_CRON = Object(
    "FlatCronJob",
    {**_OWN, **_STORED, "args": array(anything()), "cron": text(), "status": one_of(STATUSES)},
    "The same entry, with the members of its job beside its own.",
)
