"""What a caller may do by queue and type, as the project's rule says (docs: security)."""

import pytest
from django.core.exceptions import PermissionDenied
from django.core.management import call_command
from django.test import Client
from django.utils import timezone
from rest_framework.authtoken.models import Token

from django_ojs_unique import job
from django_ojs_unique.models import CronJob, Event, Job, WorkerProcess, Workflow, WorkflowMember

from .conftest import OJSClient

pytestmark = pytest.mark.django_db

JOBS, FETCH = "/ojs/v1/jobs", "/ojs/v1/workers/fetch"
asked = []


def mail_only(request, action, queue, type):
    """Let everybody do everything on one queue."""
    asked.append((action, queue, type))
    return queue == "mail"


def mail_types_only(request, action, queue, type):
    return type is not None and type.startswith("mail.")


def nothing(request, action, queue, type):
    return False


def everything(request, action, queue, type):
    return True


def everything_but_reading(request, action, queue, type):
    return action != "read"


def some_pairs(request, action, queue, type):
    return (queue, type) in {("a", "x"), ("b", "x"), ("b", "y")}


@pytest.fixture
def rule(settings):
    """Set the rule, by its dotted name."""

    def set_rule(function, **api):
        asked.clear()
        settings.OJS_UNIQUE = {"EVENTS": True, "API": {"AUTHORIZE": f"{__name__}.{function.__name__}", **api}}

    return set_rule


def forbidden(refused, answer, action, queue, type):
    error = refused(answer, 403, "x_forbidden")
    details = {name: error["details"][name] for name in ("action", "queue", "type")}
    assert details == {"action": action, "queue": queue, "type": type}
    place = error["details"].get("field")
    assert error["message"].startswith((f"{place}: " * bool(place) + f"You may not {action} jobs of ", "jobs["))
    assert "AUTHORIZE" in error["hint"]
    return error


ONE = {"type": "t", "args": []}
CRON = {"name": "nightly", "expression": "@daily", "job_template": ONE}


def test_a_workflow_is_started_with_allowed_jobs_only(ojs, rule, refused):
    rule(mail_only)
    on_mail, on_bank = ({**ONE, "options": {"queue": queue}} for queue in ("mail", "bank"))
    path, nested = "/ojs/v1/workflows", {"type": "batch", "jobs": [on_mail], "callbacks": {"on_success": on_bank}}
    graph = [{**one, "id": id} for id, one in (("on_success", ONE), ("a", on_mail), ("b", on_mail))]
    graph[0]["depends_on"] = ["a", "b"]
    for queue, place, definition in (
        ("bank", "steps[1].callbacks.on_success", {"type": "chain", "steps": [on_mail, nested]}),
        ("default", "steps[1]", {"type": "chain", "steps": [on_mail, ONE]}),
        ("default", "steps[0]", {"steps": graph}),
    ):
        error = forbidden(refused, ojs.post(path, definition), "enqueue", queue, "t")
        assert error["details"]["field"] == place
    assert not Job.objects.exists()


@pytest.mark.every_database
def test_a_team_reads_and_cancels_its_own_workflows(ojs, rule, refused, handlers):
    @job("mail.send", queue="mail")
    def send():
        pass

    path, sent = "/ojs/v1/workflows", {"type": "mail.send", "args": []}
    on_mail, on_bank = ({**ONE, "options": {"queue": queue}} for queue in ("mail", "bank"))
    batch = {"type": "batch", "jobs": [on_mail], "callbacks": {"on_failure": sent}}
    rule(mail_only)
    ours = ojs.post(path, {"type": "chain", "steps": [batch, sent]}).json()["workflow"]
    assert ojs.get(f"{path}/{ours['id']}").json()["workflow"]["steps"][0]["jobs"][0]["type"] == "t"
    nested = ours["steps"][0]["workflow_id"]
    assert ojs.get(f"{path}/{nested}").status_code == 200
    assert ojs.delete(f"{path}/{ours['id']}").json()["workflow"]["state"] == "cancelled"
    forbidden(refused, ojs.get(path), "read", None, None)
    for theirs in (
        {"type": "chain", "steps": [batch, on_bank]},
        {"type": "chain", "steps": [{**batch, "callbacks": {"on_failure": on_bank}}, sent]},
    ):
        rule(everything)
        other = ojs.post(path, theirs).json()["workflow"]
        rule(mail_only)
        for id in (other["id"], other["steps"][0]["workflow_id"]):
            forbidden(refused, ojs.get(f"{path}/{id}?members=false"), "read", "bank", "t")
            forbidden(refused, ojs.delete(f"{path}/{id}"), "cancel", "bank", "t")
    assert [one.state for one in Workflow.objects.roots()] == ["cancelled", "running", "running"]


@pytest.mark.every_database
def test_a_workflow_whose_jobs_cannot_be_read_is_about_any(ojs, rule, refused):
    rule(mail_only)
    id = ojs.post("/ojs/v1/workflows", {"type": "group", "jobs": [{**ONE, "queue": "mail"}]}).json()["workflow"]["id"]
    WorkflowMember.objects.update(request={"queue": "mail"})
    forbidden(refused, ojs.get(f"/ojs/v1/workflows/{id}"), "read", None, None)


@pytest.mark.parametrize(
    ("queues", "asked_about"),
    [
        (["mail"], ["mail"]),
        (["mail", "bank"], ["mail", "bank"]),
        *((queues, [None]) for queues in ([], ["mail*"], ["mail", "!bank"], ["mail", 5], "mail", {})),
    ],
)
def test_a_worker_is_directed_by_who_may_change_all_of_its_queues(ojs, rule, refused, queues, asked_about):
    now = timezone.now()
    row = WorkerProcess.objects.create(id="bob:1", queues=queues, started_at=now, heartbeat_at=now)
    for directive in ("quiet", "terminate", "resume"):
        rule(mail_only)
        answer = ojs.post(f"/ojs/v1/workers/bob:1/{directive}")
        assert asked == [("change", queue, None) for queue in asked_about]
        if asked_about == ["mail"]:
            assert answer.json()["worker"]["directive"] == {"resume": "running"}.get(directive, directive)
        else:
            forbidden(refused, answer, "change", asked_about[-1], None)
            row.refresh_from_db()
            assert row.directive == ""
    assert [one["id"] for one in ojs.get("/ojs/v1/workers").json()["workers"]] == ["bob:1"] * (asked_about == ["mail"])
    refused(ojs.post("/ojs/v1/workers/nobody/quiet"), 404, "not_found")


def test_a_job_is_enqueued_on_an_allowed_queue_only(ojs, rule, refused):
    rule(mail_only)
    assert ojs.enqueue(options={"queue": "mail"})
    for path in (JOBS, f"{JOBS}/explain"):
        forbidden(refused, ojs.post(path, {**ONE, "options": {"queue": "bank"}}), "enqueue", "bank", "t")
    assert Job.objects.count() == 1


def test_the_queue_that_the_request_leaves_out_is_the_one_that_the_job_gets(ojs, rule, refused, handlers, settings):
    @job("mail.send", queue="mail")
    def send():
        pass

    rule(mail_only)
    assert ojs.enqueue("mail.send")["queue"] == "mail"
    forbidden(refused, ojs.post(JOBS, ONE), "enqueue", "default", "t")
    settings.OJS_UNIQUE = {**settings.OJS_UNIQUE, "DEFAULT_QUEUE": "mail"}
    assert ojs.enqueue("t")["queue"] == "mail"


def test_an_invalid_request_is_told_what_is_wrong_with_it(ojs, rule, refused):
    rule(mail_only)
    for options, field in (({"queue": "Mail"}, "options.queue"), ({"priority": 1000}, "options.priority")):
        error = refused(ojs.post(JOBS, {**ONE, "options": options}), 400, "invalid_request")
        assert error["details"]["field"] == field
    refused(ojs.post(JOBS, {"type": ["t"], "args": []}), 400, "invalid_request")


def test_a_batch_is_refused_as_a_whole_and_a_bulk_each_on_its_own(ojs, rule, refused):
    rule(mail_only)
    jobs = [{**ONE, "queue": "mail"}, {**ONE, "queue": "bank"}]
    error = forbidden(refused, ojs.post(f"{JOBS}/batch", {"jobs": jobs}), "enqueue", "bank", "t")
    assert (error["details"]["index"], error["message"][:9]) == (1, "jobs[1]: ")
    assert not Job.objects.exists()
    answer = ojs.post(f"{JOBS}/bulk", {"jobs": jobs}).json()
    assert [result["status"] for result in answer["results"]] == ["created", "invalid"]
    assert answer["results"][1]["error"]["code"] == "x_forbidden"
    assert Job.objects.get().queue == "mail"


@pytest.fixture
def stored():
    """A job on each of two queues, by the name of the queue."""
    return {queue: str(Job.objects.enqueue("t", [1], queue=queue).job.pk) for queue in ("bank", "mail")}


def test_a_fetch_gets_jobs_of_the_allowed_queues_only(ojs, rule, refused, stored):
    rule(mail_only)
    assert [each["queue"] for each in ojs.fetch("bank", "mail", count=5)] == ["mail"]
    forbidden(refused, ojs.post(FETCH, {"queues": ["bank"]}), "fetch", "bank", None)
    error = forbidden(refused, ojs.post(FETCH, {"queues": ["bank", "x"], "types": ["t"]}), "fetch", "bank, x", "t")
    assert error["message"] == 'You may not fetch jobs of type "t" on queue "bank, x".'
    assert Job.objects.get(queue="bank").state == "available"


def test_a_fetch_gets_jobs_of_the_allowed_types_of_each_queue(ojs, rule, refused):
    for queue in ("a", "b"):
        for type in ("x", "y", "z"):
            Job.objects.enqueue(type, queue=queue)
    rule(some_pairs)
    refused(ojs.post(FETCH, {"queues": ["a", "b"], "count": 9}), 403, "x_forbidden")
    got = ojs.fetch("b", "a", types=["z", "y", "x"], count=9)
    assert {(each["queue"], each["type"]) for each in got} == {("a", "x"), ("b", "x"), ("b", "y")}


def test_a_fetch_that_waits_wakes_for_the_allowed_queues(ojs, rule, monkeypatch):
    rule(mail_only)
    seen = []
    monkeypatch.setattr(
        "django_ojs_unique.api.views.workers.wait_for", lambda look, jobs, queues, *rest: seen.extend(queues) or []
    )
    assert ojs.fetch("bank", "mail", wait=1) == []
    assert seen == ["mail"]


def test_a_job_is_read_and_cancelled_on_an_allowed_queue_only(ojs, rule, refused, stored):
    rule(mail_only)
    for path in (f"{JOBS}/{stored['bank']}", f"{JOBS}/{stored['bank']}/progress"):
        forbidden(refused, ojs.get(path), "read", "bank", "t")
    forbidden(refused, ojs.delete(f"{JOBS}/{stored['bank']}"), "cancel", "bank", "t")
    assert Job.objects.get(queue="bank").state == "available"
    for path in (f"{JOBS}/{stored['mail']}", f"{JOBS}/{stored['mail']}/progress"):
        assert ojs.get(path).status_code == 200
    assert ojs.delete(f"{JOBS}/{stored['mail']}").status_code == 200


def test_a_list_names_what_the_caller_may_read(ojs, rule, refused, stored):
    rule(mail_only)
    forbidden(refused, ojs.get(JOBS), "read", None, None)
    forbidden(refused, ojs.get(f"{JOBS}?queue=bank&type=t"), "read", "bank", "t")
    assert [each["id"] for each in ojs.get(f"{JOBS}?queue=mail").json()["jobs"]] == [stored["mail"]]
    forbidden(refused, ojs.get("/ojs/v1/dead-letter?type=t"), "read", None, "t")
    assert ojs.get("/ojs/v1/dead-letter?queue=mail").status_code == 200
    rule(mail_types_only)
    forbidden(refused, ojs.get(f"{JOBS}?queue=mail"), "read", "mail", None)
    assert ojs.get(f"{JOBS}?type=mail.send").json()["jobs"] == []


def test_events_are_listed_for_what_the_caller_may_read(ojs, rule, refused, stored):
    rule(mail_only)
    forbidden(refused, ojs.get("/ojs/v1/events"), "read", None, None)
    forbidden(refused, ojs.get("/ojs/v1/events?queues=mail,bank&job_types=t"), "read", "bank", "t")
    assert ojs.get("/ojs/v1/events?queues=mail").status_code == 200
    assert not Event.objects.exists()


def test_queues_and_periodic_jobs_are_listed_as_far_as_the_caller_may_read_them(ojs, rule, refused, stored):
    for queue in ("bank", "mail"):
        CronJob.objects.define(queue, "@daily", "t", queue=queue)
    rule(mail_only)
    queues, crons = ojs.get("/ojs/v1/queues").json(), ojs.get("/ojs/v1/cron").json()
    assert ([each["name"] for each in queues["queues"]], queues["pagination"]["total"]) == (["mail"], 1)
    assert ([each["name"] for each in crons["crons"]], crons["pagination"]["total"]) == (["mail"], 1)
    forbidden(refused, ojs.get("/ojs/v1/queues/bank/stats"), "read", "bank", None)
    forbidden(refused, ojs.post("/ojs/v1/queues/bank/pause"), "change", "bank", None)
    assert ojs.get("/ojs/v1/queues/mail/stats").status_code == 200
    assert ojs.get("/ojs/v1/cron/mail").status_code == 200


def test_a_periodic_job_can_neither_be_defined_nor_taken_over_for_a_queue_that_is_not_allowed(ojs, rule, refused):
    CronJob.objects.define("nightly", "@daily", "t", queue="bank")
    rule(mail_only)
    ours = {**CRON, "job_template": {**ONE, "options": {"queue": "mail"}}}
    theirs = {**CRON, "name": "other", "job_template": {**ONE, "options": {"queue": "bank"}}}
    forbidden(refused, ojs.post("/ojs/v1/cron", ours), "change", "bank", "t")
    forbidden(refused, ojs.post("/ojs/v1/cron", {"name": "nightly", "enabled": False}), "change", "bank", "t")
    forbidden(refused, ojs.post("/ojs/v1/cron", theirs), "enqueue", "bank", "t")
    assert ojs.post("/ojs/v1/cron", {**ours, "name": "other"}).status_code == 201
    assert [(entry.name, entry.enabled) for entry in CronJob.objects.order_by("name")] == [
        ("nightly", True),
        ("other", True),
    ]


def test_a_periodic_job_whose_row_was_changed_manually_is_asked_about_without_a_queue(ojs, rule):
    CronJob.objects.define("nightly", "@daily", "t")
    CronJob.objects.update(options={"queue": 5})
    rule(mail_only)
    assert ojs.get("/ojs/v1/cron").json()["crons"] == []
    assert asked == [("read", None, "t")]


def test_a_duplicate_that_the_caller_may_not_read_is_named_and_not_shown(ojs, rule):
    policy = {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    first = ojs.enqueue(args=["secret"], options={**policy, "queue": "bank"})
    rule(mail_only)
    body = {**ONE, "options": {**policy, "queue": "mail"}}
    answers = [
        ojs.post(JOBS, body),
        ojs.post(f"{JOBS}/batch", {"jobs": [body]}),
        ojs.post(f"{JOBS}/bulk", {"jobs": [body]}),
    ]
    for answer in answers:
        assert first["id"] in answer.content.decode()
        assert "secret" not in answer.content.decode()
    assert answers[0].json()["deduplicated"]
    rule(everything_but_reading)
    assert "args" in ojs.post(JOBS, {**ONE, "type": "new"}).json()["job"]


def test_an_enqueue_again_that_meets_such_a_duplicate_does_not_show_it_either(ojs, rule):
    policy = {"unique": {"keys": ["type"], "on_conflict": "ignore"}}
    ended = ojs.enqueue(options={**policy, "queue": "mail"})
    ojs.delete(f"{JOBS}/{ended['id']}")
    first = ojs.enqueue(args=["secret"], options={**policy, "queue": "bank"})
    rule(mail_only)
    answer = ojs.post(f"{JOBS}/{ended['id']}/enqueue-again")
    assert answer.json()["job"]["id"] == first["id"]
    assert "secret" not in answer.content.decode()


def test_an_enqueue_again_shows_the_args_of_the_old_job_and_so_needs_to_read_it(ojs, rule, refused):
    ended = ojs.enqueue(args=["secret"], options={"queue": "mail"})
    ojs.delete(f"{JOBS}/{ended['id']}")
    rule(everything_but_reading)
    forbidden(refused, ojs.post(f"{JOBS}/{ended['id']}/enqueue-again"), "read", "mail", "t")
    assert Job.objects.count() == 1


def test_a_worker_asks_the_rule_before_it_reads_what_it_holds(ojs, rule, refused, stored):
    ojs.fetch("bank")
    rule(mail_only)
    forbidden(refused, ojs.get(f"{JOBS}/{stored['bank']}"), "read", "bank", "t")
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": stored["bank"]}).status_code == 200


def test_the_rule_knows_the_caller(staff, rule):
    rule(who)
    client = Client(headers={"authorization": f"Token {Token.objects.create(user=staff).key}"})
    assert OJSClient(client).enqueue()


def who(request, action, queue, type):
    return request.user.username == "staff" and request.auth.user == request.user


@pytest.mark.parametrize("answer", [None, 0, 1, "yes", [True]], ids=repr)
def test_only_true_allows(ojs, settings, refused, answer):
    settings.OJS_UNIQUE = {"API": {"AUTHORIZE": lambda *args: answer}}
    refused(ojs.post(JOBS, ONE), 403, "x_forbidden")
    settings.OJS_UNIQUE = {"API": {"AUTHORIZE": lambda *args: True}}
    assert ojs.enqueue()


def test_a_rule_may_give_its_own_reason(ojs, rule, refused):
    rule(closed)
    assert refused(ojs.post(JOBS, ONE), 403, "x_forbidden")["message"] == "Come back tomorrow."


def closed(request, action, queue, type):
    raise PermissionDenied("Come back tomorrow.")


def test_the_permissions_of_the_group_are_asked_first(rule, db, refused):
    rule(mail_only)
    refused(OJSClient(Client()).post(JOBS, ONE), 401, "x_unauthenticated")
    assert asked == []


def test_the_rule_is_about_http_only(rule, stored):
    rule(nothing)
    assert Job.objects.enqueue("t").created
    call_command("jobs", "cancel", stored["bank"])
