"""Eight clients race for one key through four server processes, key after key; then the rows are audited."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import httpx
import pytest
from django.contrib.auth.models import User
from rest_framework.authtoken.models import Token

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from tests.support.audit import audit
from tests.support.processes import together

from .servers import caller, serving

pytestmark = [pytest.mark.every_database, pytest.mark.django_db(transaction=True), pytest.mark.torture]

SERVERS, CLIENTS = 4, 8
KEYS = int(os.environ.get("OJS_RACE_KEYS", "6"))
"""Per strategy."""


@pytest.fixture
def race(transactional_db: None) -> Iterator[Callable[..., list[list[httpx.Response]]]]:
    """Let the clients post the same job at the same moment, for each key; return the answers by key."""
    token = Token.objects.create(user=User.objects.create_user("caller", is_staff=True))
    with serving(SERVERS) as urls:

        def run(on_conflict: str | None) -> list[list[httpx.Response]]:
            clients = [caller(urls[number % SERVERS], token) for number in range(CLIENTS)]
            for client in clients:
                client.get("/ojs/v1/health")
            return together([partial(_post, client, on_conflict) for client in clients], rounds=KEYS)

        yield run


def test_one_is_stored_and_the_others_are_refused(race):
    for key, answers in enumerate(race("reject")):
        assert statuses(answers) == {201: 1, 409: CLIENTS - 1}, key
        (winner,) = (answer.json()["job"]["id"] for answer in answers if answer.status_code == 201)
        errors = [answer.json()["error"] for answer in answers if answer.status_code == 409]
        assert {error["code"] for error in errors} == {"duplicate"}
        assert {error["details"]["existing_job_id"] for error in errors} == {winner}
    assert len(audit()) == KEYS


def test_one_is_stored_and_the_others_get_it(race):
    for key, answers in enumerate(race("ignore")):
        assert statuses(answers) == {201: 1, 200: CLIENTS - 1}, key
        assert len({answer.json()["job"]["id"] for answer in answers}) == 1
        assert sum("deduplicated" in answer.json() for answer in answers) == CLIENTS - 1
    assert len(audit()) == KEYS


@pytest.mark.parametrize("on_conflict", ["replace", "replace_except_schedule"])
def test_each_is_stored_and_the_last_one_lives(race, on_conflict):
    answers = race(on_conflict)
    for key, of_key in enumerate(answers):
        assert statuses(of_key) == {201: CLIENTS}, key
    rows = audit()
    assert {str(row.pk) for row in rows} == {answer.json()["job"]["id"] for of_key in answers for answer in of_key}
    live = Counter(row.args[0]["key"] for row in rows if row.state not in TERMINAL)
    assert live == dict.fromkeys(range(KEYS), 1)


def test_one_id_is_stored_once_whoever_else_sends_it(race):
    for key, answers in enumerate(race(None)):
        assert statuses(answers) == {201: 1, 409: CLIENTS - 1}, key
        refused = [answer.json()["error"] for answer in answers if answer.status_code == 409]
        assert {(error["code"], error["details"]["existing_job_id"]) for error in refused} == {("duplicate", _id(key))}
    assert Job.objects.count() == KEYS


def statuses(answers: list[httpx.Response]) -> dict[int, int]:
    return dict(Counter(answer.status_code for answer in answers))


def _post(client: httpx.Client, on_conflict: str | None, key: int) -> httpx.Response:
    job: dict[str, Any] = {"type": "race", "args": [{"key": key}]}
    if on_conflict is None:
        job["id"] = _id(key)
    else:
        job["unique"] = {"keys": ["type", "args"], "on_conflict": on_conflict}
    return client.post("/ojs/v1/jobs", json=job)


def _id(key: int) -> str:
    return f"01890a5d-ac96-774b-bcce-{key:012x}"
