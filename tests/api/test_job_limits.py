"""Limits over HTTP: how many jobs of a partition run at once, or start in a time."""

from functools import partial

import jsonschema
import pytest
from django.test import override_settings

from django_ojs_unique import Limit, job
from django_ojs_unique.api.openapi.generator import document
from django_ojs_unique.models import CronJob, Job, Slot
from django_ojs_unique.testing import run_jobs
from tests.support.processes import together

pytestmark = pytest.mark.django_db

JOBS, WORKFLOWS, CRON = "/ojs/v1/jobs", "/ojs/v1/workflows", "/ojs/v1/cron"
ONE = {"key": ["args.customer_id"], "running": 1}
RATE = {"key": [], "name": "mail server", "per_minute": 90, "weight": 2}
SHOWN = {"key": {"args.customer_id": 42}, "name": "args.customer_id", "running": 1}
STORED = Limit(key=["args.customer_id"], running=1)


def limited(ojs, customer=42, limits=(ONE,), **members):
    return ojs.enqueue("t", {"customer_id": customer}, options={"limits": list(limits), **members})


def ids(jobs):
    return [one["id"] for one in jobs]


def stored_limits():
    return [Limit.of_stored(one) for one in Job.objects.get().limits]


@pytest.mark.slow
@pytest.mark.parametrize("beside", [False, True], ids=["in options", "at the top"])
def test_a_job_shows_its_limits_with_their_numbers_and_the_values_of_their_keys(ojs, beside):
    limits = {"limits": [ONE, RATE]}
    sent = ojs.enqueue("t", {"customer_id": 42}, **(limits if beside else {"options": limits}))
    assert sent["limits"] == [SHOWN, {"key": {}, "name": "mail server", "per_minute": 90, "weight": 2}]
    assert ojs.get(f"{JOBS}/{sent['id']}").json()["job"]["limits"] == sent["limits"]
    assert ojs.get(JOBS).json()["jobs"][0]["limits"] == sent["limits"]
    assert stored_limits() == [STORED, Limit(name="mail server", per_minute=90, weight=2)]
    jsonschema.validate(sent, {"$ref": "#/components/schemas/Job", "components": document()["components"]})


def test_limits_can_be_sent_as_a_job_shows_them(ojs):
    shown = limited(ojs)["limits"]
    assert limited(ojs, 7, shown)["limits"] == [{**SHOWN, "key": {"args.customer_id": 7}}]


def test_a_job_without_limits_has_no_such_member(ojs):
    assert "limits" not in ojs.enqueue()
    assert "limits" not in ojs.enqueue(options={"limits": None})


def test_an_empty_list_switches_the_limits_of_the_handler_off(ojs, handlers):
    @job("t", limit=Limit(key=["args.customer_id"], running=1))
    def t(customer_id):
        pass

    assert ojs.enqueue("t", {"customer_id": 42})["limits"] == [SHOWN]
    assert "limits" not in limited(ojs, limits=[])


@pytest.mark.parametrize(
    ("limits", "field", "said"),
    [
        (5, "", "must be an array of objects (got 5). Write [{'key'"),
        ({"running": 1}, "", "must be an array of objects"),
        ([5], "[0]", "must be a Limit or an object (got 5). Write {'key'"),
        ([None], "[0]", "must be a Limit or an object (got null)"),
        ([{**ONE, "running": 0}], "[0].running", "must be a whole number from 1 to 1,000,000 (got 0). To stop a queue"),
        ([{**ONE, "running": True}], "[0].running", "(got true)"),
        ([ONE, {**RATE, "per_minute": "9"}], "[1].per_minute", '(got "9")'),
        ([{"key": ["type"]}], "[0].running", "is missing. Set it, or one of per_second, per_minute, per_hour."),
        ([{**ONE, "per_hours": 3}], "[0].per_hours", "is not a member of a limit. Did you mean 'per_hour'?"),
        ([{**ONE, "weight": 2}], "[0].weight", "is more than running, so the job could never run (got 2)."),
        ([{**ONE, "key": "type"}], "[0].key", 'must be a list of names (got "type"). Write ["type"].'),
        ([{**ONE, "key": ["customer_id"]}], "[0].key", "has a part that names nothing of a job"),
        ([{**ONE, "key": ["args.customer"]}], "[0].key", 'names a key that args does not have (got "customer"). Did'),
        ([RATE, {**ONE, "key": ["meta.x"]}], "[1].key", "names a key that meta does not have"),
        ([ONE, ONE], "[1].name", "is that of two limits of this job"),
        ([{**ONE, "name": f"n{n}"} for n in range(11)], "", "names more than 10 limits (got 11)."),
    ],
)
@pytest.mark.parametrize("beside", [False, True], ids=["in options", "at the top"])
def test_a_limit_that_is_wrong_is_refused_where_the_client_wrote_it(ojs, refused, limits, field, said, beside):
    members = {"limits": limits} if beside else {"options": {"limits": limits}}
    error = refused(ojs.post(JOBS, {"type": "t", "args": {"customer_id": 42}, **members}), 400, "invalid_request")
    place = f"{'' if beside else 'options.'}limits{field}"
    assert error["details"]["field"] == place
    assert error["message"].startswith(f"{place}: ")
    assert said in error["message"]
    assert not Job.objects.exists()


def test_a_batch_names_the_job_whose_limit_is_wrong(ojs, refused):
    body = {"type": "t", "args": {"customer_id": 42}, "options": {"limits": [ONE]}}
    wrong = {**body, "options": {"limits": [{**ONE, "key": ["args.customer"]}]}}
    error = refused(ojs.post(f"{JOBS}/batch", {"jobs": [body, wrong]}), 400, "invalid_request")
    assert (error["details"]["index"], error["details"]["field"]) == (1, "options.limits[0].key")
    assert error["message"].startswith("jobs[1]: options.limits[0].key: names a key that args does not have")
    results = ojs.post(f"{JOBS}/bulk", {"jobs": [body, wrong]}).json()["results"]
    assert results[0]["job"]["limits"] == [SHOWN]
    assert results[1]["error"]["details"]["field"] == "options.limits[0].key"


@pytest.mark.parametrize("path", ["batch", "bulk"])
def test_each_job_of_many_has_its_own_limits(ojs, path):
    jobs = [{"type": "t", "args": {"customer_id": n}, "options": {"limits": [ONE] if n else []}} for n in range(3)]
    assert ojs.post(f"{JOBS}/{path}", {"jobs": jobs}).status_code in (200, 201)
    found = Job.objects.order_by("id").values_list("limits", flat=True)
    assert [limits and limits[0]["key"] for limits in found] == [None, {"args.customer_id": 1}, {"args.customer_id": 2}]


@pytest.mark.slow
def test_the_members_of_a_workflow_have_limits_of_their_own_or_share_those_of_the_workflow(ojs):
    member = partial(dict, type="t", args={"customer_id": 42})
    own = {**ONE, "running": 3}
    body = {
        "type": "batch",
        "jobs": [member(), member(options={"limits": [own]}), member(options={"limits": []})],
        "callbacks": {"on_complete": member(type="done")},
        "options": {"limits": [ONE]},
    }
    workflow = ojs.post(WORKFLOWS, body).json()["workflow"]
    assert workflow["callbacks"]["on_complete"]["options"] == {"limits": [{**ONE, "name": "args.customer_id"}]}
    found = Job.objects.order_by("id").values_list("limits", flat=True)
    assert [limits and limits[0]["running"] for limits in found] == [1, 3, None]
    for _ in range(3):
        for one in ojs.fetch():
            ojs.post("/ojs/v1/workers/ack", {"job_id": one["id"]})
    done = Job.objects.get(type="done")
    assert (Limit.of_stored(done.limits[0]), done.blocked_by) == (STORED, "0")


def test_a_workflow_names_the_member_whose_limit_is_wrong(ojs, refused):
    member = {"type": "t", "args": {"customer_id": 42}}
    wrong = {"limits": [{**ONE, "running": 0}]}
    of_member = {"type": "chain", "steps": [member, {**member, "options": wrong}]}
    error = refused(ojs.post(WORKFLOWS, of_member), 400, "invalid_request")
    assert error["details"]["field"] == "steps[1].options.limits[0].running"
    error = refused(ojs.post(WORKFLOWS, {**of_member, "steps": [member], "options": wrong}), 400, "invalid_request")
    assert error["details"]["field"] == "options.limits[0].running"
    shared = {"limits": [{**ONE, "key": ["args.customer"]}]}
    error = refused(ojs.post(WORKFLOWS, {**of_member, "steps": [member], "options": shared}), 400, "invalid_request")
    assert error["details"]["field"] == "options.limits[0].key"


def test_each_occurrence_of_a_periodic_job_has_its_limits(ojs, refused):
    template = {"type": "t", "args": {"customer_id": 42}, "options": {"limits": [ONE]}}
    body = {"name": "nightly", "expression": "@yearly", "job_template": template}
    shown = ojs.post(CRON, body).json()["cron"]["job_template"]["options"]
    assert shown == {"limits": [{**ONE, "name": "args.customer_id"}]}
    Job.objects.enqueue(**CronJob.objects.get().job_at(Job().created_at))
    assert stored_limits() == [STORED]
    template["options"] = {"limits": [{**ONE, "key": ["args.customer"]}]}
    error = refused(ojs.post(CRON, body), 400, "invalid_request")
    assert error["details"]["field"] == "job_template.options.limits[0].key"


def test_the_key_of_a_limit_shows_nothing_that_is_redacted(ojs, handlers):
    @job("bank.pay", redact=["iban"])
    def pay(iban, to):
        pass

    secret = "DE89370400440532013000"
    keys = [["args.iban"], ["args/to/iban"], ["args.to"], ["args"], ["meta.iban"], ["meta"], ["type"]]
    limits = [{"key": key, "running": 1} for key in keys]
    options = {"limits": limits, "unique": {"keys": ["type"], "on_conflict": "ignore"}}
    body = {"type": "bank.pay", "args": {"iban": secret, "to": {"iban": secret}}, "meta": {"iban": secret}}
    sent = ojs.enqueue(**body, options=options)
    assert sent["limits"][0]["key"] == {"args.iban": secret}
    for answer in (ojs.get(f"{JOBS}/{sent['id']}"), ojs.get(JOBS), ojs.post(JOBS, {**body, "options": options})):
        assert answer.status_code == 200
        assert secret not in answer.content.decode()
    shown = ojs.get(f"{JOBS}/{sent['id']}").json()["job"]["limits"]
    assert shown[0]["key"] == {"args.iban": "[redacted]"}
    assert shown[-1]["key"] == {"type": "bank.pay"}
    explained = ojs.post(f"{JOBS}/explain", {**body, "options": options})
    assert secret not in explained.content.decode()
    assert explained.json()["explanation"]["limits"] == shown
    Job.objects.all().delete()
    long = {"type": "bank.pay", "args": {"iban": "", "to": {"iban": secret, "name": "x" * 300}}}
    for key in (["args"], ["args.to"]):
        id = ojs.enqueue(**long, options={"limits": [{"key": key, "running": 1}]})["id"]
        assert secret not in ojs.get(f"{JOBS}/{id}").content.decode()
    array = {**body, "args": [{"iban2": secret}], "options": {"limits": [{"key": ["args.iban2"], "running": 1}]}}
    id = ojs.enqueue(**array)["id"]
    assert secret not in ojs.get(f"{JOBS}/{id}").content.decode()


def test_two_fetches_never_hold_two_jobs_of_a_key_and_an_ack_frees_the_slot(ojs):
    first, second, other = limited(ojs), limited(ojs), limited(ojs, 7)
    held = ojs.fetch(count=5)
    assert ids(held) == [first["id"], other["id"]]
    assert held[0]["limits"] == [SHOWN]
    assert ojs.fetch() == ojs.fetch(count=5) == []
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": other["id"]}).status_code == 200
    assert ojs.fetch() == []
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": first["id"]}).status_code == 200
    assert ids(ojs.fetch()) == [second["id"]]


@pytest.mark.parametrize("report", [{"requeue": True}, {"error": {"retryable": False, "message": "no"}}])
def test_a_nack_frees_the_slot(ojs, report):
    first, second = limited(ojs), limited(ojs)
    assert ids(ojs.fetch()) == [first["id"]]
    assert ojs.post("/ojs/v1/workers/nack", {"job_id": first["id"], **report}).status_code == 200
    (held,) = ojs.fetch(count=5)
    assert held["id"] == (first["id"] if "requeue" in report else second["id"])


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_fetches_at_the_same_time_hold_one_job_of_a_key(ojs):
    for _ in range(4):
        limited(ojs)
    (fetched,) = together([lambda number: ojs.fetch(count=5)] * 3)
    held = [one["id"] for jobs in fetched for one in jobs]
    assert len(held) + len(ojs.fetch()) == 1


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 5])
def test_a_fetch_finds_the_free_job_behind_hundreds_that_wait(ojs, count):
    item = {"type": "t", "args": {"customer_id": 42}, "limit": STORED}
    Job.objects.enqueue_many([item] * 201)
    free = limited(ojs, 7)
    assert len(ojs.fetch()) == 1
    assert ids(ojs.fetch(count=count)) == [free["id"]]
    plain = ojs.enqueue()
    assert ids(ojs.fetch(count=count)) == [plain["id"]]
    assert ojs.fetch(count=count) == []


def test_jobs_that_wait_take_no_room_from_those_that_are_handed_out(ojs):
    large = "x" * 10_000
    Job.objects.enqueue_many(
        [{"type": "t", "args": {"customer_id": 42, "text": large}, "limit": STORED} for _ in range(10)]
    )
    assert len(ojs.fetch()) == 1
    small = [ojs.enqueue("t", {"n": n})["id"] for n in range(5)]
    with override_settings(OJS_UNIQUE={"API": {"MAX_RESPONSE_BYTES": 20_000}}):
        assert ids(ojs.fetch(count=10)) == small


@pytest.mark.slow
def test_what_does_not_fit_into_an_answer_is_requeued_as_it_was(ojs):
    args, limit = {"text": "x" * 10_000}, Limit(name="mail server", per_hour=4)
    Job.objects.enqueue_many([{"type": "t", "args": args, "limit": limit} for _ in range(6)])
    first = Job.objects.order_by("id").first().pk
    with override_settings(OJS_UNIQUE={"API": {"MAX_RESPONSE_BYTES": 25_000}}):
        held = ojs.fetch(count=6)
        assert (len(held), held[0]["id"]) == (2, str(first))
        assert Slot.objects.count() == Job.objects.filter(attempt=1, state="active").count() == 2
        assert Job.objects.filter(attempt=0, state="available", started_at=None, lease_token=None).count() == 4
        requeued, waiting = Job.objects.filter(state="available").order_by("id")[:2], Job.objects.order_by("-id")[0]
        Job.objects.filter(pk__in=[row.pk for row in requeued]).cancel()
        assert len(ojs.fetch()) == len(ojs.fetch()) == 1
        assert Job.objects.get(pk=waiting.pk).state == "active"
    with override_settings(OJS_UNIQUE={"API": {"MAX_RESPONSE_BYTES": 10}}):
        ojs.enqueue("t", args, options={"queue": "q", "limits": [ONE | {"key": ["type"]}]})
        assert len(ojs.fetch("q", count=6)) == 1


def test_a_fetch_goes_round_the_partitions_of_a_fair_queue(ojs):
    with override_settings(OJS_UNIQUE={"FAIR_QUEUES": {"imports": ["meta.tenant"]}}):
        first = [ojs.enqueue(meta={"tenant": "a"}, options={"queue": "imports"}) for _ in range(3)]
        second = ojs.enqueue(meta={"tenant": "b"}, options={"queue": "imports"})
    assert ids(ojs.fetch("imports", count=2)) == [first[0]["id"], second["id"]]
    assert "limits" not in first[0]


def test_a_job_that_is_enqueued_again_or_retried_keeps_its_limits(ojs):
    done = limited(ojs)
    run_jobs_over_http(ojs, done)
    again = ojs.post(f"{JOBS}/{done['id']}/enqueue-again").json()["job"]
    assert again["limits"] == done["limits"]
    ojs.delete(f"{JOBS}/{again['id']}")
    retried = ojs.post(f"{JOBS}/{again['id']}/retry").json()["job"]
    assert (retried["state"], retried["limits"]) == ("available", done["limits"])
    assert set(Job.objects.filter(state="available").values_list("blocked_by", flat=True)) == {"0"}
    holder = limited(ojs)
    assert len(ojs.fetch(count=5)) == 1
    assert Job.objects.get(pk=holder["id"]).state == "available"


def run_jobs_over_http(ojs, *jobs):
    assert ids(ojs.fetch(count=len(jobs))) == ids(jobs)
    for one in jobs:
        assert ojs.post("/ojs/v1/workers/ack", {"job_id": one["id"]}).status_code == 200


def test_a_job_of_http_keeps_its_limits_in_a_worker_here(ojs, handlers):
    seen = []

    @job("t")
    def t(customer_id):
        seen.append(Job.objects.filter(state="active").count())

    for _ in range(3):
        limited(ojs)
    run_jobs()
    assert seen == [1, 1, 1]
