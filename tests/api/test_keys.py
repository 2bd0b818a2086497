"""Job keys over HTTP, and hints about members that look like ours and do nothing."""

import jsonschema
import pytest
from django.utils.http import urlencode

from django_ojs_unique.api.openapi.generator import document
from django_ojs_unique.models import CronJob, Job

from .test_authorize import everything_but_reading, forbidden, mail_only, mail_types_only, rule

__all__ = ["rule"]
pytestmark = pytest.mark.django_db

JOBS, WORKFLOWS, CRON = "/ojs/v1/jobs", "/ojs/v1/workflows", "/ojs/v1/cron"
LATER = "+PT1H"


def keyed(ojs, args=(), key="abc", **members):
    return ojs.enqueue("t", list(args), **members, options={"key": key})


def at(**parameters):
    return f"{JOBS}?{urlencode(parameters)}"


# Enqueue


@pytest.mark.every_database
@pytest.mark.parametrize("beside", [False, True], ids=["in options", "at the top"])
def test_a_second_job_with_a_key_rewrites_the_first(ojs, beside):
    def enqueue(args, **options):
        return ojs.enqueue("t", args, **(options if beside else {"options": options}))

    first = enqueue([1], key="abc", delay="PT1H")
    again = enqueue([2], key="abc", key_mode="preserve_run_at", priority=7)
    assert again == {**first, "args": [1, 2], "priority": 7}
    assert (again["key"], Job.objects.get().key, Job.objects.get().extra or {}) == ("abc", "abc", {})
    assert enqueue([3], key="abc")["state"] == "available"
    dropped = ojs.post(JOBS, {"type": "t", "args": [4], "options": {"key": "abc", "key_mode": "unsafe_dedupe"}})
    assert (dropped.status_code, dropped.json()["deduplicated"], Job.objects.get().args) == (200, True, [1, 2, 3])
    jsonschema.validate(again, {"$ref": "#/components/schemas/Job", "components": document()["components"]})
    assert "key" not in ojs.enqueue()


def test_a_key_counts_among_all_types_if_the_client_says_so(ojs):
    ojs.enqueue("a", options={"key": "k"})
    ojs.enqueue("b", options={"key": "k"})
    first = ojs.enqueue("a", options={"key": "k", "key_scope": "global"})
    again = ojs.enqueue("b", options={"key": "k", "key_scope": "global"})
    assert (again["id"], again["type"], Job.objects.count()) == (first["id"], "b", 3)


@pytest.mark.parametrize("end", ["batch", "bulk"])
def test_jobs_of_one_request_meet_by_their_key(ojs, end):
    ojs.post(f"{JOBS}/{end}", {"jobs": [{"type": "t", "args": [n], "key": "k"} for n in range(3)]})
    assert Job.objects.get().args == [0, 1, 2]


def test_an_explanation_a_periodic_job_and_the_steps_of_a_workflow_take_a_key(ojs, refused):
    step = {"type": "t", "args": [], "options": {"key": "k"}}
    assert ojs.post(WORKFLOWS, {"type": "chain", "steps": [step]}).status_code == 201
    assert (Job.objects.get().key, Job.objects.get().workflow_id is None) == ("k", False)
    assert ojs.post(f"{JOBS}/explain", step).json()["explanation"]["action"] == "replace"
    entry = {"name": "nightly", "expression": "@daily", "job_template": step}
    assert ojs.post(CRON, entry).json()["cron"]["job_template"]["options"] == {"key": "k"}
    assert CronJob.objects.get().options == {"key": "k"}
    shared = ojs.post(WORKFLOWS, {"type": "chain", "options": {"key": "k"}, "steps": [step]})
    error = refused(shared, 400, "invalid_workflow")
    assert (error["details"]["field"], "own" in error["message"]) == ("options.key", True)


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"key": ""}, "key"),
        ({"key": 7}, "key"),
        ({"key": "k" * 513}, "key"),
        ({"key": "k", "key_mode": "preserve"}, "key_mode"),
        ({"key": "k", "key_scope": ["type"]}, "key_scope"),
        ({"key": "k", "unique": {}}, "key"),
        ({"job_key": "k"}, "job_key"),
    ],
    ids=str,
)
def test_a_wrong_key_is_refused_by_its_name(ojs, refused, options, field):
    error = refused(ojs.post(JOBS, {"type": "t", "args": [], "options": options}), 400, "invalid_request")
    assert error["details"]["field"] == f"options.{field}"
    assert error["message"].startswith(f"options.{field}")


# Remove


@pytest.mark.every_database
def test_the_job_that_holds_a_key_is_removed(ojs, refused):
    waiting, other = keyed(ojs, [1], "a/b?c"), keyed(ojs)
    answer = ojs.delete(at(key="a/b?c"))
    assert (answer.status_code, answer.json()) == (200, {"job": waiting, "deleted": True})
    assert [str(job.pk) for job in Job.objects.all()] == [other["id"]]
    error = refused(ojs.delete(at(key="a/b?c")), 404, "not_found")
    assert error["details"]["resource_id"] == "a/b?c"


def test_a_running_job_loses_its_key_and_stays(ojs):
    job = keyed(ojs)
    ojs.fetch()
    removed = ojs.delete(at(key="abc")).json()
    assert (removed["deleted"], removed["job"]["id"], removed["job"]["state"]) == (False, job["id"], "active")
    assert keyed(ojs)["id"] != job["id"]


def test_one_of_several_jobs_is_named_by_its_type_or_scope(ojs, refused):
    for type in ("a", "b"):
        ojs.enqueue(type, options={"key": "k"})
    ojs.enqueue("a", options={"key": "k", "key_scope": "global"})
    error = refused(ojs.delete(at(key="k")), 400, "invalid_request")
    assert (error["details"]["field"], "key_scope=" in error["message"]) == ("key", True)
    assert ojs.delete(at(key="k", type="b")).json()["job"]["type"] == "b"
    assert ojs.delete(at(key="k", key_scope="type")).json()["job"]["type"] == "a"
    assert ojs.delete(at(key="k")).status_code == 200
    assert not Job.objects.exists()


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("", "key"),
        ("key=", "key"),
        ("key=%00", "key"),
        ("kee=abc", "kee"),
        ("key=abc&key=d", "key"),
        ("key=abc&type=A", "type"),
        ("key=abc&key_scope=all", "key_scope"),
    ],
)
def test_a_wrong_removal_removes_nothing(ojs, refused, query, field):
    keyed(ojs)
    assert refused(ojs.delete(f"{JOBS}?{query}"), 400, "invalid_request")["details"]["field"] == field
    assert Job.objects.exists()


# Who may


@pytest.mark.every_database
def test_who_may_not_cancel_a_job_cannot_remove_it(ojs, rule, refused):
    keyed(ojs, queue="bank")
    keyed(ojs, key="mail", queue="mail")
    rule(mail_only)
    forbidden(refused, ojs.delete(at(key="abc")), "cancel", "bank", "t")
    assert ojs.delete(at(key="mail")).status_code == 200
    assert [job.key for job in Job.objects.all()] == ["abc"]


def test_a_key_of_all_types_is_for_who_may_enqueue_all(ojs, rule, refused):
    rule(mail_types_only)
    job = {"type": "mail.send", "args": [], "options": {"key": "k"}}
    assert ojs.post(JOBS, job).status_code == 201
    job["options"]["key_scope"] = "global"
    entry = {"name": "nightly", "expression": "@daily", "job_template": job}
    for path, body in ((JOBS, job), (WORKFLOWS, {"type": "chain", "steps": [job]}), (CRON, entry)):
        forbidden(refused, ojs.post(path, body), "enqueue", None, None)


def test_what_others_have_sent_is_not_shown_to_who_may_not_read_it(ojs, rule):
    keyed(ojs, ["secret"])
    rule(everything_but_reading)
    rewritten = keyed(ojs, ["mine"])
    assert Job.objects.get().args == ["secret", "mine"]
    assert (rewritten["state"], "args" in rewritten) == ("available", False)


# Hints


@pytest.mark.parametrize(
    ("name", "meant"),
    [("uniqe", "unique"), ("jobKey", "key"), ("job_key_mode", "key_mode"), ("run_at", "scheduled_at")],
)
def test_a_member_that_does_nothing_is_answered_with_what_was_meant(ojs, name, meant):
    answer = ojs.post(JOBS, {"type": "t", "args": [], name: {}}).json()
    assert answer["job"][name] == {}
    assert answer["hints"] == [f"{name!r} is stored and does nothing. Did you mean {meant!r}?"]


def test_a_member_of_the_client_and_one_that_we_know_get_no_hint(ojs):
    answer = ojs.post(JOBS, {"type": "t", "args": [], "x_trace": 1, "attempt": 9, "key": "k"}).json()
    assert answer.keys() == {"job"}


def test_hints_name_the_first_of_several_jobs_and_are_few(ojs):
    job, odd = {"type": "t", "args": []}, {"type": "t", "args": [], "uniqe": 1, "tag": 2}
    said = ["'jobs[1].uniqe' is stored", "'jobs[1].tag' is stored"]
    for path, body in (
        (f"{JOBS}/batch", {"jobs": [job, odd, odd]}),
        (f"{JOBS}/bulk", {"jobs": [job, odd, odd]}),
        (WORKFLOWS, {"type": "group", "jobs": [job, odd, odd]}),
    ):
        assert [hint.partition(" and")[0] for hint in ojs.post(path, body).json()["hints"]] == said
    many = ojs.post(JOBS, {**job, **{f"uniqe{number}": 1 for number in range(50)}})
    assert len(many.json()["hints"]) == 10
