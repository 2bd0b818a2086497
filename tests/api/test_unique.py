"""Unique jobs on the wire (HTTP binding, "Unique jobs over HTTP")."""

import json
from datetime import timedelta
from functools import partial

import pytest
from django.contrib.auth.models import User
from django.db import connections
from django.test import Client, override_settings
from django.utils import timezone

from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.api.conftest import OJSClient
from tests.support.processes import together

JOBS = "/ojs/v1/jobs"
EMAIL = {"type": "email.send", "args": {"user_id": 42}, "options": {"queue": "notifications"}}
KEYS = {"keys": ["type", "queue", "args"]}
FINGERPRINT = "71f9344b82e66297a49775bbe27752297922842b675330641ebe3ff4fea46c1f"
PERIOD = {"keys": ["type"], "period": "PT1H"}


def ask(ojs, policy, at_top=False, **members):
    body = {**EMAIL, **members}
    if at_top:
        return ojs.post(JOBS, {**body, "unique": policy})
    return ojs.post(JOBS, {**body, "options": {**body["options"], "unique": policy}})


def change(id, **values):
    Job._base_manager.filter(pk=id).update(**values)


@pytest.mark.parametrize("at_top", [False, True], ids=["in options", "at the top"])
def test_a_rejected_duplicate_names_the_existing_job_and_the_key(ojs, refused, at_top):
    first = ask(ojs, KEYS, at_top)
    job = first.json()["job"]
    assert (first.status_code, first["Location"]) == (201, f"{JOBS}/{job['id']}")
    answer = ask(ojs, KEYS, at_top)
    error = refused(answer, 409, "duplicate")
    assert error["details"] == {
        "existing_job_id": job["id"],
        "existing_job_state": "available",
        "unique_key": FINGERPRINT,
    }
    assert error["message"] == "A job matching the uniqueness key already exists"
    assert not answer.has_header("Location")
    assert Job.objects.count() == 1
    assert SuppressedEnqueue.objects.get().outcome == "rejected"


def test_a_policy_may_delay_what_gives_no_time(ojs, refused):
    later = ask(ojs, {**KEYS, "delay": "PT1H", "on_conflict": "replace"}).json()["job"]
    assert (later["state"], later["unique"]["delay"]) == ("scheduled", "PT1H")
    refusal = refused(ask(ojs, {**KEYS, "delay": -1}), 400, "invalid_request")
    assert refusal["details"]["field"].endswith("unique.delay")


def test_an_ignored_duplicate_is_answered_by_the_existing_job(ojs):
    job = ask(ojs, KEYS, own={"a": 1}, meta={"b": 2}).json()["job"]
    row = Job.objects.values().get()
    answer = ask(ojs, {**KEYS, "on_conflict": "ignore"}, meta={"other": 3})
    assert (answer.status_code, answer.json()) == (200, {"job": job, "deduplicated": True})
    assert not answer.has_header("Location")
    assert Job.objects.values().get() == row


@pytest.mark.parametrize("strategy", ["replace", "replace_except_schedule"])
@pytest.mark.parametrize("scheduled", [False, True])
def test_a_replaced_job_is_cancelled_and_still_read(ojs, strategy, scheduled):
    members = {"scheduled_at": "2300-01-01T00:00:00Z"} if scheduled else {}
    old = ask(ojs, KEYS, **members).json()["job"]
    answer = ask(ojs, {**KEYS, "on_conflict": strategy})
    new = answer.json()["job"]
    assert (answer.status_code, answer["Location"]) == (201, f"{JOBS}/{new['id']}")
    assert "deduplicated" not in answer.json()
    assert new["id"] != old["id"]
    inherits = scheduled and strategy == "replace_except_schedule"
    assert new["state"] == ("scheduled" if inherits else "available")
    assert new.get("scheduled_at") == (old["scheduled_at"] if inherits else None)
    seen = ojs.get(f"{JOBS}/{old['id']}").json()["job"]
    assert seen["state"] == "cancelled"
    assert seen["cancelled_at"]


def test_an_active_job_is_replaced_unless_the_project_forbids_it(ojs, refused):
    policy = {**KEYS, "on_conflict": "replace"}
    old = ask(ojs, policy).json()["job"]
    change(old["id"], state="active", started_at=timezone.now())
    with override_settings(OJS_UNIQUE={"REPLACE_ACTIVE": False}):
        refused(ask(ojs, policy), 409, "duplicate")
    assert ask(ojs, policy).status_code == 201
    assert Job.objects.get(pk=old["id"]).state == "cancelled"


@pytest.mark.parametrize("state", ["completed", "cancelled", "discarded"])
def test_a_finished_job_frees_its_key_unless_the_new_policy_counts_it(ojs, refused, state):
    old = ask(ojs, KEYS).json()["job"]
    change(old["id"], state=state, finished_at=timezone.now())
    error = refused(ask(ojs, {**KEYS, "states": ["available", state]}), 409, "duplicate")
    assert error["details"]["existing_job_state"] == state
    assert ask(ojs, KEYS).status_code == 201


@pytest.mark.parametrize("state", ["active", "scheduled", "retryable", "pending"])
def test_each_unfinished_state_counts_by_default(ojs, refused, state):
    old = ask(ojs, KEYS).json()["job"]
    change(old["id"], state=state)
    assert refused(ask(ojs, KEYS), 409, "duplicate")["details"]["existing_job_state"] == state


def test_after_its_period_a_job_of_whatever_state_counts_no_more(ojs, refused):
    old = ask(ojs, PERIOD).json()["job"]
    change(old["id"], created_at=timezone.now() - timedelta(minutes=59))
    refused(ask(ojs, PERIOD), 409, "duplicate")
    change(old["id"], created_at=timezone.now() - timedelta(minutes=61))
    assert ask(ojs, PERIOD).status_code == 201


@pytest.mark.parametrize("end", ["", "/batch", "/bulk"])
@pytest.mark.parametrize(
    ("state", "past"), [("available", "expires_at"), ("active", "lease_expires_at")], ids=["expired", "lost"]
)
def test_a_job_whose_time_is_over_is_no_duplicate_though_nobody_has_looked(ojs, state, past, end):
    """Section 8: a reader would be told that it is discarded."""
    once = {"retry": {"max_attempts": 1}, "expires_at": "+PT1H", "unique": KEYS}
    id = ojs.enqueue(options=once)["id"]
    if state == "active":
        ojs.fetch()
    change(id, **{past: timezone.now() - timedelta(minutes=1)})
    body = {"type": "t", "args": [], "options": once}
    assert ojs.post(JOBS + end, {"jobs": [body]} if end else body).status_code == (200 if end == "/bulk" else 201)
    ojs.get(f"{JOBS}/{id}")
    assert sorted(Job.objects.values_list("state", flat=True)) == ["available", "discarded"]


def test_the_policy_of_the_new_job_decides(ojs, refused):
    old = ask(ojs, {**PERIOD, "on_conflict": "replace"}).json()["job"]
    change(old["id"], created_at=timezone.now() - timedelta(hours=2))
    refused(ask(ojs, {"keys": ["type"]}), 409, "duplicate")
    assert ask(ojs, {"keys": ["type"], "on_conflict": "ignore"}).status_code == 200
    assert ask(ojs, {"keys": ["type"], "states": ["active"]}).status_code == 201


@pytest.mark.parametrize(
    ("policy", "same", "other"),
    [
        ({}, {"args": [1], "options": {"queue": "x"}}, {"type": "u"}),
        ({"keys": ["type"]}, {"args": []}, {"type": "u"}),
        ({"keys": ["queue"]}, {"args": []}, {"options": {"queue": "x"}}),
        ({"keys": ["args"]}, {"options": {"queue": "x"}}, {"args": {"user_id": 43}}),
        ({"keys": ["args"]}, {}, {"type": "u"}),
        ({"keys": ["args"], "args_keys": ["user_id"]}, {"args": {"user_id": 42, "x": 1}}, {"args": {"user_id": "42"}}),
        ({"keys": ["args"], "args_keys": ["user_id"]}, {"args": [{"user_id": 42, "x": 1}]}, {"args": [{"user_id": 1}]}),
        ({"keys": ["meta"], "meta_keys": ["a"]}, {"meta": {"a": 1, "b": 3}}, {"meta": {"a": 2}}),
    ],
)
def test_the_keys_say_what_is_the_same(ojs, refused, policy, same, other):
    assert ask(ojs, policy, meta={"a": 1}).status_code == 201
    refused(ask(ojs, policy, **{"meta": {"a": 1}, **same}), 409, "duplicate")
    assert ask(ojs, policy, **{"meta": {"a": 1}, **other}).status_code == 201


@pytest.mark.parametrize(
    ("policy", "field"),
    [
        *((value, "") for value in (5, "args", [], True)),
        *(({"keys": value}, ".keys") for value in (5, "type", {}, None, ["type", "type"])),
        *(({"keys": [value]}, ".keys[0]") for value in ("Type", "args ", "state", "", 5, None)),
        *(({"keys": ["args"], "args_keys": value}, ".args_keys") for value in (5, "user_id", [], ["no"], ["a", "a"])),
        ({"args_keys": ["user_id"]}, ".args_keys"),
        *(({"keys": ["meta"], "meta_keys": value}, ".meta_keys") for value in (None, [], ["no"])),
        ({"keys": ["meta"]}, ".meta_keys"),
        ({"meta_keys": ["a"]}, ".meta_keys"),
        *(({"period": value}, ".period") for value in ("1h", "PT0S", "-PT1H", "P", "", "PT1H\n", "pt1h", 5, True)),
        *(({"states": value}, ".states") for value in (5, "available", [], ["active", "active"], None)),
        *(({"states": [value]}, ".states[0]") for value in ("Active", "running", 5)),
        *(({"on_conflict": value}, ".on_conflict") for value in ("use-existing", "Reject", "", 5, None)),
        ({"key": ["type", "nothing"]}, ".key"),
        ({"uniqueness": 1}, ".uniqueness"),
        ({"\ud800": 1}, ".\ud800"),
    ],
)
@pytest.mark.parametrize("at_top", [False, True], ids=["in options", "at the top"])
def test_an_invalid_policy_is_refused_at_enqueue(ojs, refused, policy, field, at_top):
    error = refused(ask(ojs, policy, at_top), 400, "invalid_request")
    assert error["details"]["field"] == f"{'' if at_top else 'options.'}unique{field}"
    assert error["message"].startswith(error["details"]["field"])
    assert not Job.objects.exists()


def test_a_fingerprint_is_not_logged(ojs, refused, caplog):
    with caplog.at_level("INFO"):
        ask(ojs, KEYS)
        refused(ask(ojs, KEYS), 409, "duplicate")
    assert FINGERPRINT not in caplog.text


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("strategy", ["reject", "ignore", "replace"])
def test_of_many_at_once_one_is_admitted(transactional_db, strategy):
    user = User.objects.create_user("staff", is_staff=True)
    client = Client()
    client.force_login(user)
    cookies = client.cookies
    policy = {**KEYS, "on_conflict": strategy}

    def post(round):
        mine = Client()
        mine.cookies = cookies
        answer = ask(OJSClient(mine), policy, args={"user_id": round})
        said = json.loads(answer.content)
        connections.close_all()
        return answer.status_code, said["job"]["id"] if "job" in said else said["error"]["details"]["existing_job_id"]

    for answers in together([partial(post)] * 4, rounds=3):
        statuses = sorted(status for status, _ in answers)
        ids = {id for _, id in answers}
        if strategy == "replace":
            assert (statuses, len(ids)) == ([201] * 4, 4)
        else:
            assert statuses == ([201, 409, 409, 409] if strategy == "reject" else [200, 200, 200, 201])
            assert len(ids) == 1
    assert Job.objects.filter(state="available").count() == 3
    assert Job.objects.filter(state="cancelled").count() == (9 if strategy == "replace" else 0)
