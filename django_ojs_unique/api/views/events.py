"""Events: clients poll for what happened (HTTP binding, "Events")."""

from __future__ import annotations

from collections.abc import Callable

from rest_framework.request import Request
from rest_framework.response import Response

from ...conf import settings
from ...exceptions import InvalidRequest, did_you_mean
from ...lifecycle.events import TYPES
from ...maintenance.on_demand import run_maintenance
from ...models import Event
from ...models.event import DEFAULT_LIMIT, LARGEST_LIMIT
from ...ojs.names import job_type, queue_name
from ...wire.schema import Object, count, flag, mapping, text, time
from ..authorize import demand_each
from ..base import OJSView, operation
from ..wire.errors import Unsupported
from ..wire.queries import read_names

PARAMETERS = {
    "types": text("Of these types of events, with commas."),
    "queues": text("Of these queues, with commas."),
    "job_types": text("Of these types of jobs, with commas."),
    "after": text("After the event with this id."),
    "limit": count("How many at most.", 1, LARGEST_LIMIT, default=DEFAULT_LIMIT),
}

_EVENT = Object("Event", {"specversion id type source subject?": text(), "time": time(), "data": mapping()})
EVENTS = Object("Events", {"events": [_EVENT], "cursor?": text(), "has_more": flag()})


class Events(OJSView):
    """``/ojs/v1/events``: the oldest first, after the last one that the client has seen."""

    @operation("listEvents", "events", "What happened, oldest first", {200: EVENTS}, query=PARAMETERS)
    def get(self, request: Request) -> Response:
        if not settings.events:
            raise Unsupported(
                "Events are not recorded here. Set OJS_UNIQUE['EVENTS'] = True.", details={"feature": "events"}
            )
        parameters = request.query_params
        limit, after = (
            PARAMETERS["limit"].read(parameters.get("limit", str(DEFAULT_LIMIT)), "limit"),
            parameters.get("after"),
        )
        only = {name: read_names(parameters, name, check) for name, check in _FILTERS.items()}
        demand_each(request, "read", only["queues"], only["job_types"])
        run_maintenance(self.jobs, self.now(), crons=True)
        page = Event.objects.using(self.using).follow(
            after, limit=limit, max_bytes=settings.api["MAX_RESPONSE_BYTES"], **only
        )
        cursor = {} if page.cursor is None else {"cursor": page.cursor}
        return Response({"events": [event.to_dict() for event in page.events], **cursor, "has_more": page.has_more})


def _event_type(name: str) -> str:
    if name not in TYPES:
        raise InvalidRequest.at("types", "is not a type of events", value=name, hint=did_you_mean(name, TYPES))
    return name


_FILTERS: dict[str, Callable[[str], str]] = {"types": _event_type, "queues": queue_name, "job_types": job_type}
