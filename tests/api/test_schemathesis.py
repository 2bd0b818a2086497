"""Requests that fit the OpenAPI document, and requests that do not, get answers that fit it, and never a 5xx.

Their ids, names, keys and cursors are mostly real, their headers sometimes odd.

``OJS_TEST_EXAMPLES`` is how many requests are sent in all, by default 200 on SQLite and none elsewhere.
"""

import time
from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import pytest
import schemathesis
from django.core.handlers.wsgi import WSGIHandler
from django.core.signals import request_finished, request_started
from django.db import close_old_connections
from hypothesis import Phase, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from rest_framework.authtoken.models import Token
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from django_ojs_unique.api.openapi.generator import document

from .routes import DESCRIBED
from .test_costs import EXAMPLES, MOST_SECONDS

MODES = (GenerationMode.POSITIVE, GenerationMode.NEGATIVE)
EACH = -(-EXAMPLES // (len(DESCRIBED) * len(MODES)))
pytestmark = [
    pytest.mark.every_database,
    pytest.mark.skipif(not EXAMPLES, reason="OJS_TEST_EXAMPLES is not set, and SQLite has run them"),
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]

ODD_HEADERS = {
    "Accept": ["", "text/html", "application/json;q=é", "a/b;" * 2_000, "x" * 10_000],
    "Accept-Language": ["de", "de;q=1," * 2_000, "\xff"],
    "Authorization": ["", "Token", "Token a b", "Bearer \xff", "Basic Og=="],
    "Content-Type": ["", ";", "text/plain", "application/json; charset=utf-7", "multipart/form-data; boundary=x"],
    "Cookie": ["sessionid=\x01; csrftoken=;;=", "a=" * 2_000],
    "OJS-Version": ["", "1.0.0-rc.1", "1." * 2_000, "\xff"],
    "User-Agent": ["", "\xff", "python-httpx/0.28.1", "ojs-ruby/0.4.0"],
    "X-Request-Id": ["", "é", "mine", "x" * 10_000],
}
ODD_SHAPES = {"1.0.0-rc.1", "ojs-ruby/0.4.0"}
"""Clients that read some things in another shape than the document describes."""


@pytest.fixture(scope="module")
def api() -> dict[str, Any]:
    """The document, and the project that answers as it says."""
    loaded = schemathesis.openapi.from_dict(deepcopy(document()))  # as `send` changes its examples
    loaded.app = WSGIHandler()
    operations = [result.ok() for result in loaded.get_all_operations()]
    return {operation.definition.raw["operationId"]: operation for operation in operations}


@pytest.fixture
def known(ojs: Any, settings: Any) -> Iterator[dict[str, list[str]]]:
    """Store one of each thing; return their names by what the document calls them."""
    settings.OJS_UNIQUE = {"EVENTS": True, "API": {"MAX_WAIT": 0.01}}
    pending = ojs.enqueue(options={"pending": True})
    waiting = ojs.enqueue(options={"queue": "mail", "key": "k"})
    dead = ojs.enqueue(options={"queue": "dead", "retry": {"max_attempts": 1, "on_exhaustion": "dead_letter"}})
    active = ojs.enqueue(options={"queue": "busy"})
    ojs.fetch("dead", "busy", count=2, worker_id="w-1")
    ojs.post("/ojs/v1/workers/nack", {"job_id": dead["id"]})
    ojs.post("/ojs/v1/workers/heartbeat", {"worker_id": "w-1"})
    ojs.post("/ojs/v1/cron", {"name": "nightly", "expression": "@daily", "job_template": {"type": "t", "args": []}})
    chain = {"type": "chain", "name": "nightly", "steps": [{"type": "t", "args": []}]}
    workflow, _ = (ojs.post("/ojs/v1/workflows", chain).json()["workflow"] for _ in range(2))
    lists = ("jobs", "workflows")
    cursors = [ojs.get(f"/ojs/v1/{name}?limit=1").json()["pagination"]["next_cursor"] for name in lists]
    for signal in (request_started, request_finished):  # whose connection holds the transaction of the test
        signal.disconnect(close_old_connections)
    yield {
        "id": [job["id"] for job in (pending, waiting, dead, active, workflow)] + ["w-1"],
        "job_id": [active["id"], waiting["id"]],
        "name": ["nightly", "mail"],
        "code": ["not_found"],
        "key": ["k"],
        "cursor": [*cursors, cursors[0][:-1]],
    }
    for signal in (request_started, request_finished):
        signal.connect(close_old_connections)


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: mode.value)
@pytest.mark.parametrize("operation", [operation.id for operation in DESCRIBED.values()])
def test_the_server_does_what_the_document_says(
    operation: str, mode: GenerationMode, api: Any, known: dict[str, list[str]], staff: Any, forgotten: None
) -> None:
    token = Token.objects.create(user=staff).key

    @hypothesis_settings(max_examples=EACH, phases=[Phase.generate])
    @given(case=api[operation].as_strategy(generation_mode=mode), choice=st.integers(0, 9), odd=st.data())
    def send(case: Any, choice: int, odd: st.DataObject) -> None:
        for values in (case.path_parameters, case.query, case.body):
            if isinstance(values, dict) and choice < 8:
                values.update({name: names[choice % len(names)] for name, names in known.items() if name in values})
        if choice:  # a wrong version keeps the rest from being looked at
            case.headers.pop("OJS-Version", None)
        headers = {"Authorization": f"Token {token}"}
        if choice % 3 == 0:
            name = odd.draw(st.sampled_from(sorted(ODD_HEADERS)))
            headers[name] = odd.draw(st.sampled_from(ODD_HEADERS[name]))
        before = time.process_time()
        response = case.call(headers=headers)
        assert time.process_time() - before < MOST_SECONDS
        others = [response_schema_conformance] if ODD_SHAPES & {*headers.values()} else []
        case.validate_response(response, checks=CHECKS, excluded_checks=others)

    send()
