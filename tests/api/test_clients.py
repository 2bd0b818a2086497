"""The OJS clients that others wrote: what each sends, and what it reads from the answer (docs: HTTP).

``clients/*.jsonl`` are the requests of each client's own code against this server, as a proxy saw them. Only ids, the
token, dates and the paths in tracebacks were replaced. ``answer``: the members that the client reads, each with the
name of its JSON type, or its value.
"""

import json
import re
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token

from django_ojs_unique.models import CronJob, Job

from .conftest import THREADED

CLIENTS = Path(__file__).parent / "clients"
TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array", dict: "object"}
ABSENT = object()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["go", "javascript", "python"])
def test_each_request_of_a_client_is_understood_and_its_answer_can_be_read(staff, name, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    first, *requests = map(json.loads, (CLIENTS / f"{name}.jsonl").read_text().splitlines())
    headers = {**first["headers"], "Authorization": f"Bearer {Token.objects.create(user=staff).key}"}
    client, ids = Client(headers=headers, **THREADED), {"enqueued": [], "fetched": []}

    def filled(text):
        return re.sub(r"<(\w+) (\d+)>", lambda match: ids[match[1]][int(match[2])], text)

    for number, sent in enumerate(requests, start=2):
        where, media_type = (
            f"{name}.jsonl, line {number}: {sent['call']}",
            headers.get("Content-Type", headers["Accept"]),
        )
        response = client.generic(sent["method"], filled(sent["path"]), filled(sent["body"]), content_type=media_type)
        assert response.status_code == sent["status"], (where, response.content)
        assert (response["Content-Type"], response["OJS-Version"]) == (headers["Accept"], "1.0"), where
        answer = response.json()
        for path, expected in json.loads(filled(json.dumps(sent["answer"]))).items():
            for value in found(answer, path.split(".")):
                assert expected in (value, TYPES.get(type(value), "absent")), (where, path, value)
        made = {"enqueue": "enqueued", "enqueue a batch": "enqueued", "fetch": "fetched"}.get(sent["call"])
        if made and response.status_code < 400:
            ids[made] += [job["id"] for job in answer.get("jobs") or [answer["job"]]]
    assert len(ids["fetched"]) >= 2


def found(value: Any, path: list[str]) -> list[Any]:
    """Return what is at a path in JSON; ``*`` stands for every member, of which there must be one."""
    if not path:
        return [value]
    if path[0] == "*":
        members = list(value.values()) if isinstance(value, dict) else value
        assert members
        return [each for member in members for each in found(member, path[1:])]
    if isinstance(value, list):
        return found(value[int(path[0])], path[1:])
    return found(value[path[0]], path[1:]) if path[0] in value else [ABSENT]


# Unique policies


def unique(ojs, policy, args=({"id": 1},), **members):
    return ojs.post("/ojs/v1/jobs", {"type": "t", "args": args, **members, "options": {"unique": policy}})


@pytest.mark.parametrize(
    ("policy", "args", "canonical"),
    [
        ({"key": ["type"]}, [1], {"keys": ["type"]}),
        ({"key": ["args"]}, [1], {"keys": ["type", "args"]}),
        ({"key": ["args", "queue"]}, {"id": 1}, {"keys": ["type", "queue", "args"]}),
        ({"key": ["args", "type"]}, [{"type": 1}], {"keys": ["type", "args"]}),
        ({"key": ["args"], "args_keys": ["id"]}, {"id": 1}, {"keys": ["type", "args"], "args_keys": ["id"]}),
        ({"key": ["args"], "args_keys": ["args"]}, {"args": 1}, {"keys": ["type", "args"], "args_keys": ["args"]}),
        ({"key": ["id"]}, [{"id": 1, "x": 2}], {"keys": ["type", "args"], "args_keys": ["id"]}),
        ({"key": ["id", "type"]}, {"id": 1, "type": 2}, {"keys": ["type", "args"], "args_keys": ["id", "type"]}),
        ({"key": ["id"], "keys": None, "args_keys": None}, {"id": 1}, {"keys": ["type", "args"], "args_keys": ["id"]}),
        ({"key": None, "period_ms": None}, [], {"keys": ["type"]}),
        ({"period_ms": 1}, [], {"period": "PT0.001S"}),
        ({"period_ms": 90_000, "keys": ["args"]}, [], {"period": "PT1M30S", "keys": ["type", "args"]}),
        ({"period_ms": 86_400_000, "period": None}, [], {"period": "P1D"}),
        ({"on_conflict": "use_existing"}, [], {"on_conflict": "ignore"}),
    ],
    ids=str,
)
def test_another_name_is_answered_by_the_specifications(ojs, policy, args, canonical):
    shown = unique(ojs, policy, args).json()["job"]["unique"]
    assert shown.items() >= canonical.items()
    assert ("args_keys" in shown) is ("args_keys" in canonical)
    assert {"key", "period_ms"}.isdisjoint(shown)
    assert Job.objects.get().unique == {**Job.objects.get().unique_policy.to_dict(), **canonical}


@pytest.mark.parametrize(
    ("policy", "args", "field"),
    [
        ({"key": ["type"]}, {"type": 1}, "key"),  # a member of args, says one client; the job's type, says another
        ({"key": ["queue", "args"]}, [{"queue": 1, "args": 2}], "key"),
        ({"key": ["type", "id"]}, {"id": 1}, "key"),
        ({"key": ["id", "nothing"]}, {"id": 1}, "key"),
        ({"key": ["id"]}, [{"id": 1}, {"id": 1}], "key"),
        ({"key": ["id"]}, [], "key"),
        ({"key": ["id"], "args_keys": ["x"]}, {"id": 1, "x": 1}, "key"),
        ({"key": []}, {"id": 1}, "key"),
        ({"key": "id"}, {"id": 1}, "key"),
        ({"key": [1]}, {"id": 1}, "key"),
        ({"key": [["id"]]}, {"id": 1}, "key"),
        ({"key": {"id": 1}}, {"id": 1}, "key"),
        ({"key": ["id", "id"]}, {"id": 1}, "key"),
        ({"key": ["args", "args"]}, [], "key"),
        ({"key": ["type"], "keys": ["type"]}, [], "key"),
        ({"key": ["meta"]}, [], "meta_keys"),
        ({"period_ms": 60_000, "period": "PT1M"}, [], "period_ms"),
        ({"period_ms": 40_000_000_000_000}, [], "period_ms"),
        *(({"period_ms": value}, [], "period_ms") for value in (0, -1, 1.5, "60000", True, 2**53)),
        ({"on_conflict": "use-existing"}, [], "on_conflict"),
    ],
    ids=str,
)
@pytest.mark.parametrize("at_top", [False, True], ids=["in options", "at the top"])
def test_what_could_mean_something_else_is_refused_by_the_name_that_the_client_wrote(
    ojs, refused, policy, args, field, at_top
):
    body = {"type": "t", "args": args, **({"unique": policy} if at_top else {"options": {"unique": policy}})}
    error = refused(ojs.post("/ojs/v1/jobs", body), 400, "invalid_request")
    assert error["details"]["field"] == f"{'' if at_top else 'options.'}unique.{field}"
    assert error["message"].startswith(error["details"]["field"])
    assert not Job.objects.exists()


def test_a_key_of_two_meanings_says_both_and_the_hint(ojs, refused):
    error = refused(unique(ojs, {"key": ["type"]}, {"type": 1}), 400, "invalid_request")
    assert "dimensions" in error["message"]
    assert "members of args" in error["message"]
    assert "`keys`" in error["message"]
    assert "`args_keys`" in error["message"]
    assert "at least one" in refused(unique(ojs, {"key": []}), 400, "invalid_request")["message"]


@pytest.mark.parametrize("end", ["/batch", "/bulk", "/explain"])
def test_the_other_names_are_understood_wherever_a_job_is(ojs, end):
    body = {
        "type": "t",
        "args": {"id": 1, "n": 1},
        "options": {"unique": {"key": ["id"], "on_conflict": "use_existing"}},
    }
    other = {**body, "args": {"id": 1, "n": 2}}
    if end == "/explain":
        assert ojs.enqueue(**body)["unique"]["args_keys"] == ["id"]
        assert ojs.post("/ojs/v1/jobs/explain", other).json()["explanation"]["action"] == "ignore"
    else:
        ojs.post(f"/ojs/v1/jobs{end}", {"jobs": [body, other]})
    assert Job.objects.count() == 1


def test_the_other_names_are_understood_in_a_periodic_job(ojs, refused):
    template = {"type": "t", "args": [{"id": 1}], "options": {"unique": {"key": ["id"], "period_ms": 60_000}}}
    body = {"name": "nightly", "expression": "@daily", "job_template": template}
    shown = ojs.post("/ojs/v1/cron", body).json()["cron"]["job_template"]["options"]["unique"]
    assert (shown["keys"], shown["args_keys"], shown["period"]) == (["type", "args"], ["id"], "PT1M")
    template["options"]["unique"] = {"key": ["meta"]}
    error = refused(ojs.post("/ojs/v1/cron", body), 400, "invalid_request")
    assert error["details"]["field"] == "job_template.options.unique.meta_keys"
    template["options"]["unique"] = {"period_ms": 40_000_000_000_000}
    error = refused(ojs.post("/ojs/v1/cron", body), 400, "invalid_request")
    assert error["details"]["field"] == "job_template.options.unique.period_ms"


# Headers


@pytest.mark.parametrize("version", ["1", "1.0", "1.0.0", "1.1", "1.12.3", "1.0.0-rc.1", "1.1-beta"])
def test_every_version_of_our_major_is_served_by_ours(ojs, version):
    answer = ojs.get("/ojs/v1/health", headers={"OJS-Version": version})
    assert (answer.status_code, answer["OJS-Version"]) == (200, "1.0")


@pytest.mark.parametrize(
    "version", ["2", "2.0", "0.9", "10.0", "v1", "", "1.", "1.0.0.0", "1.x", "1.0-", "1.0, 2.0", "1\n"]
)
def test_other_versions_are_refused_with_the_one_that_is_served(ojs, refused, version):
    error = refused(ojs.get("/ojs/v1/health", headers={"OJS-Version": version}), 422, "unsupported")
    assert error["details"] == {"field": "OJS-Version", "supported": ["1.0"]}


@pytest.mark.parametrize("word", ["Token", "Bearer", "bearer", "TOKEN"])
def test_a_token_comes_under_either_word(staff, word):
    key = Token.objects.create(user=staff).key
    assert Client(headers={"Authorization": f"{word} {key}"}).get("/ojs/v1/health").status_code == 200


@pytest.mark.parametrize("credentials", ["Bearer", "Bearer x", "Bearer a b", "Basic x", "Bearer \xff"])
def test_a_wrong_bearer_is_refused(db, refused, credentials):
    answer = Client(headers={"Authorization": credentials}).get("/ojs/v1/health")
    refused(answer, 401, "x_unauthenticated")
    assert answer["WWW-Authenticate"] == ("Token" if credentials == "Basic x" else "Bearer")


OJS, JSON = "application/openjobspec+json", "application/json"


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        (JSON, JSON),
        (f"{JSON}, text/plain, */*", JSON),
        (f"{OJS};q=0.5, {JSON}", JSON),
        (OJS, OJS),
        ("*/*", OJS),
        ("application/*", OJS),
        (f"{JSON}, {OJS}", JSON),
        (f"{OJS}, {JSON}", OJS),
        (f"{JSON};q=0.5, */*", OJS),
        ("text/html", OJS),
        ("", OJS),
        (f"{JSON};q=0", OJS),
        ("x" * 20_000 + "; q=1", OJS),
        (";;;,=,\xff", OJS),
    ],
)
def test_the_answer_has_the_media_type_that_the_client_prefers(staff, accept, media_type):
    client = Client(headers={"Accept": accept, "Authorization": f"Token {Token.objects.create(user=staff).key}"})
    for path, status in (("/ojs/v1/health", 200), ("/ojs/v1/jobs/nothing", 404), ("/ojs/v1/nothing", 404)):
        answer = client.get(path)
        assert (answer.status_code, answer["Content-Type"]) == (status, media_type)
        assert answer.json()


# Delays


@pytest.mark.parametrize("name", ["delay", "delay_until"])
@pytest.mark.parametrize("value", ["PT5M", "+PT5M"])
def test_a_delay_is_a_duration_from_now(ojs, name, value):
    before = timezone.now()
    ojs.enqueue(options={name: value})
    ojs.enqueue(**{name: value})
    after = timezone.now()
    for job in Job.objects.all():
        assert before + timedelta(minutes=5) <= job.scheduled_at <= after + timedelta(minutes=5)
        assert (job.state, job.extra or {}) == ("scheduled", {})


@pytest.mark.parametrize("value", [300, "5m", "PT", "-PT5M", "P", True, [], "PT0S"])
def test_what_is_no_delay_is_refused(ojs, refused, value):
    error = refused(
        ojs.post("/ojs/v1/jobs", {"type": "t", "args": [], "options": {"delay": value}}), 400, "invalid_request"
    )
    assert error["details"]["field"] == "options.delay"
    assert "+PT90S" in error["message"]


@pytest.mark.parametrize("name", ["scheduled_at", "expires_at"])
def test_a_moment_is_no_delay(ojs, refused, name):
    error = refused(ojs.post("/ojs/v1/jobs", {"type": "t", "args": [], name: "PT5M"}), 400, "invalid_request")
    assert error["details"]["field"] == name


def test_one_delay_is_enough(ojs, refused):
    options = {"delay": "PT5M", "scheduled_at": "2300-01-01T00:00:00Z"}
    refused(ojs.post("/ojs/v1/jobs", {"type": "t", "args": [], "options": options}), 400, "invalid_request")


# Heartbeats


def test_the_ids_of_a_worker_may_stand_beside_their_number(ojs, refused):
    ojs.enqueue()
    ojs.enqueue()
    (one, other) = [job["id"] for job in ojs.fetch(count=2, worker_id="w", visibility_timeout_ms=60_000)]

    def beat(**members):
        return ojs.post("/ojs/v1/workers/heartbeat", {"worker_id": "w", **members})

    assert beat(active_jobs=1, active_job_ids=[other]).json()["jobs_extended"] == [other]
    assert sorted(beat(active_jobs=[one], active_job_ids=[other]).json()["jobs_extended"]) == sorted([one, other])
    assert beat(active_jobs=0, active_job_ids=[]).json()["jobs_extended"] == []
    error = refused(beat(active_jobs=1), 400, "invalid_request")
    assert error["details"]["field"] == "active_jobs"
    assert "active_job_ids" in error["message"]
    for ids in ("x", [1], {}, 1):
        error = refused(beat(active_jobs=1, active_job_ids=ids), 400, "invalid_request")
        assert error["details"]["field"] in ("active_jobs", "active_job_ids")
    refused(beat(active_jobs=True, active_job_ids=[one]), 400, "invalid_request")
    error = refused(beat(active_jobs=["x"] * 600, active_job_ids=["x"] * 600), 400, "invalid_request")
    assert "1000" in error["message"]


# Shapes


DRAFT = {"OJS-Version": "1.0.0-rc.1"}


@pytest.mark.slow
def test_who_asks_for_the_draft_gets_the_shapes_of_its_http_chapter(ojs):
    """The Go client cannot read the others; the seed and the conformance suite demand them."""
    assert ojs.get("/ojs/manifest").json()["capabilities"]["unique_jobs"]["strength"] == "strong"
    said = ojs.get("/ojs/manifest", headers=DRAFT).json()
    assert (said["capabilities"]["unique_jobs"], said["unique_job_strength"]) == (True, "strong")
    assert ojs.get("/ojs/v1/queues/mail/stats").json()["queue"]["name"] == "mail"
    assert ojs.get("/ojs/v1/queues/mail/stats", headers=DRAFT).json()["queue"] == "mail"


def test_a_periodic_job_is_shown_flat_too(ojs):
    CronJob.objects.define("a", "@daily", "t", {"n": 1}, meta={"m": 1}, queue="q")
    CronJob.objects.define("b", "@daily", "t", [1], enabled=False)
    first, second = ojs.get("/ojs/v1/cron").json()["cron_jobs"]
    assert (first["cron"], first["status"], first["args"], first["meta"]) == ("@daily", "active", [{"n": 1}], {"m": 1})
    assert (first["options"], "expression" in first, "job_template" in first) == ({"queue": "q"}, False, False)
    assert (second["status"], second["args"], "next_run_at" in second) == ("paused", [1], False)
    assert ojs.get("/ojs/v1/cron/a").json()["cron_job"] == first
    assert ojs.delete("/ojs/v1/cron/a").json()["cron_job"] == first


def test_a_list_may_be_read_by_the_number_of_the_page(ojs, refused):
    for name in "abcde":
        CronJob.objects.define(name, "@daily", "t")

    def page(query):
        return [entry["name"] for entry in ojs.get(f"/ojs/v1/cron?{query}").json()["cron_jobs"]]

    assert page("page=1&per_page=2") == ["a", "b"]
    assert page("page=3&per_page=2") == ["e"]
    assert page("page=4&per_page=2") == []
    assert page("per_page=2") == ["a", "b"]
    assert page("page=2") == []
    for query, field in (
        ("page=0", "page"),
        ("per_page=0", "per_page"),
        ("per_page=201", "per_page"),
        ("page=x", "page"),
    ):
        assert refused(ojs.get(f"/ojs/v1/cron?{query}"), 400, "invalid_request")["details"]["field"] == field
