"""Workflows over HTTP: start, show, list, cancel, and what their jobs carry (OJS workflows)."""

from datetime import timedelta

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from django_ojs_unique.maintenance import on_demand
from django_ojs_unique.models import Job, Queue, Workflow, WorkflowMember
from django_ojs_unique.reporting import bounded
from django_ojs_unique.testing import travel

pytestmark = pytest.mark.django_db

PATH = "/ojs/v1/workflows"
ID = "01890a5d-ac96-774b-bcce-b302099a8057"


def step(type="t", *args, **more):
    return {"type": type, "args": list(args), **more}


@pytest.fixture
def start(ojs):
    """Start a workflow that must be accepted; return it."""

    def start(type, members, **more):
        answer = ojs.post(PATH, {"type": type, "steps" if type == "chain" else "jobs": members, **more})
        assert answer.status_code == 201, answer.content
        shown = answer.json()["workflow"]
        assert answer["Location"] == f"{PATH}/{shown['id']}"
        return shown

    return start


@pytest.fixture
def show(ojs):
    """Return a workflow as it is shown now."""

    def show(workflow, query=""):
        answer = ojs.get(f"{PATH}/{workflow['id']}{query}")
        assert answer.status_code == 200, answer.content
        return answer.json()["workflow"]

    return show


@pytest.fixture
def work(ojs):
    """Fetch the next job and ack it, or nack it for good if its type is ``fail``; return it as it was fetched."""

    def work(*queues, result=None):
        jobs = ojs.fetch(*queues)
        if not jobs:
            return None
        (job,) = jobs
        report = {"job_id": job["id"], "lease_token": job["lease_token"]}
        if job["type"] == "fail":
            error = {"code": "broken", "message": "It broke.", "retryable": False}
            assert ojs.post("/ojs/v1/workers/nack", {**report, "error": error}).status_code == 200
        else:
            given = {} if result is None else {"result": result}
            assert ojs.post("/ojs/v1/workers/ack", {**report, **given}).status_code == 200
        return job

    return work


def states(shown, noun="jobs"):
    return [member["state"] for member in shown[noun]]


# Start and show


@pytest.mark.slow
def test_a_chain_goes_on_with_each_ack(start, show, work):
    chain = start("chain", [step("a"), step("b", name="second"), step("c")], name="abc")
    assert (chain["type"], chain["name"], chain["state"]) == ("chain", "abc", "running")
    assert (chain["steps_total"], chain["steps_completed"]) == (3, 0)
    assert "jobs_total" not in chain
    assert "completed_at" not in chain
    assert states(chain, "steps") == ["pending", "waiting", "waiting"]
    assert chain["steps"][1] == {"index": 1, "type": "b", "name": "second", "state": "waiting"}
    assert chain["metadata"] == {
        "created_at": chain["created_at"],
        "job_count": 3,
        "completed_count": 0,
        "failed_count": 0,
    }
    assert show(chain) == chain

    first = work(result={"n": 1})
    assert (first["workflow_id"], first["workflow_step"], first["parent_results"]) == (chain["id"], 0, [])
    second = work()
    assert (second["type"], second["workflow_step"], second["parent_results"]) == ("b", 1, [{"n": 1}])
    assert states(show(chain), "steps") == ["completed", "completed", "pending"]
    third = work(result=[3])
    assert third["parent_results"] == [{"n": 1}, None]
    done = show(chain)
    assert (done["state"], done["steps_completed"]) == ("completed", 3)
    assert done["completed_at"] == done["metadata"]["completed_at"]
    assert done["metadata"]["started_at"] == done["steps"][0]["started_at"]
    assert done["steps"][0]["result"] == {"n": 1}
    assert done["steps"][2]["job_id"] == third["id"]
    assert "result" not in done["steps"][1]


@pytest.mark.slow
def test_a_failed_step_is_told(start, show, work):
    chain = start("chain", [step("a"), step("fail"), step("c")])
    work()
    failed = work()
    shown = show(chain)
    assert (shown["state"], shown["steps_completed"]) == ("failed", 1)
    assert states(shown, "steps") == ["completed", "failed", "cancelled"]
    error = {"job_id": failed["id"], "code": "broken", "message": "It broke.", "attempt": 1}
    assert error.items() <= shown["steps"][1]["error"].items()
    metadata = shown["metadata"]
    assert metadata["failed_step_index"] == 1
    assert metadata["failed_job_ids"] == [failed["id"]]
    assert error.items() <= metadata["errors"][0].items()
    assert (metadata["completed_count"], metadata["failed_count"]) == (1, 1)


@pytest.mark.slow
def test_the_jobs_of_a_group_are_fetched_in_order(start, show, work):
    group = start("group", [step(name) for name in "abc"])
    assert (group["jobs_total"], group["jobs_completed"]) == (3, 0)
    assert "steps_total" not in group
    assert states(group) == ["pending"] * 3
    assert [work()["type"] for _ in range(3)] == ["a", "b", "c"]
    assert (show(group)["state"], show(group)["jobs_completed"]) == ("completed", 3)


def test_a_job_that_runs_is_active(start, show, ojs):
    group = start("group", [step("a"), step("b")])
    (job,) = ojs.fetch()
    shown = show(group)
    assert states(shown) == ["active", "pending"]
    assert shown["jobs"][0]["started_at"] == job["started_at"] == shown["metadata"]["started_at"]
    ojs.post("/ojs/v1/workers/nack", {"job_id": job["id"], "error": {"code": "c", "message": "m"}})
    assert states(show(group)) == ["pending", "pending"]


@pytest.mark.slow
def test_a_batch_shows_its_callbacks(start, show, work):
    callbacks = {
        "on_success": step(
            "s", 1, options={"queue": "mail", "priority": 7, "timeout_ms": 5000, "scheduled_at": "+PT1M"}
        ),
        "on_failure": step("f", meta={"a": 1}),
    }
    batch = start("batch", [step("a"), step("b")], callbacks=callbacks)
    assert batch["callbacks"] == {name: {**callback, "state": "waiting"} for name, callback in callbacks.items()}
    work()
    work()
    shown = show(batch)
    assert shown["state"] == "running"
    assert shown["callbacks"]["on_failure"]["state"] == "skipped"
    assert shown["callbacks"]["on_success"]["state"] == "pending"
    assert shown["metadata"]["job_count"] == 2
    with travel(timedelta(minutes=2)):
        called = work("mail", result="told")
        assert (called["workflow_callback"], called["parent_results"]) == ("on_success", [None, None])
        assert "workflow_step" not in called
        assert called["priority"] == 7
    shown = show(batch)
    assert (shown["state"], shown["callbacks"]["on_success"]["result"]) == ("completed", "told")


@pytest.mark.slow
def test_a_failed_callback_is_named(start, show, work):
    batch = start("batch", [step("a")], callbacks={"on_complete": step("fail")})
    work()
    failed = work()
    metadata = show(batch)["metadata"]
    assert (metadata["failed_callback"], metadata["failed_job_ids"]) == ("on_complete", [failed["id"]])
    assert (metadata["completed_count"], metadata["failed_count"]) == (1, 0)


@pytest.mark.slow
def test_what_failed_stands_among_the_results_of_a_callback(start, work):
    start("batch", [step("a"), step("fail")], callbacks={"on_failure": step("f", options={"queue": "f"})})
    work(result=1)
    failed = work()
    done, error = work("f")["parent_results"]
    assert done == 1
    assert error["error"]["job_id"] == failed["id"]
    assert (error["error"]["code"], error["error"]["attempt"]) == ("broken", 1)


@pytest.mark.slow
def test_a_nested_workflow_is_shown_where_it_stands(start, show, work, ojs):
    group = {
        "type": "group",
        "name": "exports",
        "jobs": [step("b"), {"type": "chain", "steps": [step("c"), step("d")]}],
    }
    chain = start("chain", [step("a"), group, step("e")])
    shown = chain["steps"][1]
    assert (shown["type"], shown["name"], shown["state"], states(shown)) == (
        "group", "exports", "waiting", ["waiting", "waiting"],
    )  # fmt: skip
    assert chain["metadata"]["job_count"] == 5
    assert chain["steps_total"] == 3
    work(result="A")
    assert show(chain)["steps"][1]["state"] == "pending"
    inner = show({"id": shown["workflow_id"]})
    assert (inner["root_workflow_id"], inner["parent_workflow_id"]) == (chain["id"], chain["id"])
    deepest = inner["jobs"][1]["workflow_id"]
    assert show({"id": deepest})["parent_workflow_id"] == inner["id"]
    b, c = ojs.fetch(count=2)
    for job in (b, c):
        assert (job["parent_results"], job["root_workflow_id"]) == (["A"], chain["id"])
    assert (b["workflow_id"], c["workflow_id"]) == (inner["id"], deepest)
    assert show(chain)["steps"][1]["state"] == "active"
    for job, result in ((b, "B"), (c, "C")):
        ojs.post("/ojs/v1/workers/ack", {"job_id": job["id"], "result": result})
    assert work(result="D")["parent_results"] == ["C"]
    assert work()["parent_results"] == ["A", ["B", "D"]]
    done = show(chain)
    assert (done["state"], done["metadata"]["completed_count"]) == ("completed", 5)


@pytest.mark.slow
def test_a_stand_in_is_shown_as_it_is(start, show, ojs):
    unique = {"unique": {"on_conflict": "ignore"}}
    existing = ojs.enqueue("a", options=unique)
    group = start("group", [step("a", options=unique)])
    assert group["jobs"][0]["job_id"] == existing["id"]
    (job,) = ojs.fetch()
    assert "workflow_id" not in job
    assert states(show(group)) == ["active"]
    ojs.post("/ojs/v1/workers/ack", {"job_id": job["id"], "result": 1})
    assert (show(group)["state"], show(group)["jobs"][0]["result"]) == ("completed", 1)


def test_a_stand_in_keeps_its_own_place(start, ojs):
    unique = {"unique": {"on_conflict": "ignore"}}
    chain = start("chain", [step("a", options=unique)])
    group = start("group", [step("b"), step("a", options=unique)])
    assert group["jobs"][1]["job_id"] == chain["steps"][0]["job_id"]
    a, b = ojs.fetch(count=2)
    assert (a["workflow_id"], a["workflow_step"]) == (chain["id"], 0)
    assert (b["workflow_id"], b["workflow_step"]) == (group["id"], 0)


def test_a_job_that_is_over_is_no_duplicate(start, ojs):
    unique = {"unique": {"states": ["available", "active"]}}
    ojs.enqueue("a", options={**unique, "expires_at": "+PT1M"})
    with travel(timedelta(minutes=2)):
        start("group", [step("a", options=unique)])


def test_who_only_reads_sees_the_truth(start, show):
    group = start("group", [step(options={"expires_at": "+PT1M"})])
    with travel(timedelta(minutes=2)):
        shown = show(group)
    assert (shown["state"], shown["jobs"][0]["error"]["code"]) == ("failed", "expired")


def test_a_job_that_was_deleted_has_failed_for_whoever_reads(start, show):
    workflow = start("chain", [step("t"), step("t")])
    Job.objects.get().remove()
    assert show(workflow)["state"] == "failed"


@pytest.mark.slow
def test_large_results_are_left_out_together(start, show, work, settings):
    settings.OJS_UNIQUE = {"API": {"MAX_RESPONSE_BYTES": 100}}
    group = start("group", [step(), step()])
    work(result="x" * 50)
    assert "result" in show(group)["jobs"][0]
    work(result="x" * 50)
    shown = show(group)
    assert shown["results_omitted"] is True
    assert all("result" not in job for job in shown["jobs"])


@pytest.mark.slow
def test_the_members_can_be_left_out(start, show, work, ojs):
    def assert_alike(workflow):
        whole = show(workflow)
        assert show(workflow, "?members=false") == {
            name: whole[name] for name in whole if name not in ("jobs", "steps")
        }

    inner = {"type": "batch", "jobs": [step("fail"), step("a")], "callbacks": {"on_failure": step("b")}}
    batch = start("batch", [inner, step("c"), step("fail")], callbacks={"on_complete": step("fail")})
    assert_alike(batch)
    for _ in range(6):
        (job,) = ojs.fetch()
        assert_alike(batch)
        error = {"code": "c", "message": "m", "retryable": job["type"] != "fail"}
        report = {"error": error} if job["type"] == "fail" else {}
        ojs.post(f"/ojs/v1/workers/{'nack' if report else 'ack'}", {"job_id": job["id"], **report})
        assert_alike(batch)
        assert_alike({"id": batch["jobs"][0]["workflow_id"]})
    metadata = show(batch, "?members=false")["metadata"]
    assert (metadata["failed_callback"], len(metadata["errors"])) == ("on_complete", 3)


@pytest.mark.slow
def test_what_is_redacted_is_shown_to_workers_only(start, show, work, ojs, settings):
    settings.OJS_UNIQUE = {"REDACT": ["token"]}
    secret, masked = {"token": "s"}, {"token": "[redacted]"}
    batch = start("batch", [step("a")], callbacks={"on_success": step("s", secret)})
    work(result=secret)
    shown = show(batch)
    assert shown["jobs"][0]["result"] == masked
    assert shown["callbacks"]["on_success"]["args"] == [masked]
    (job,) = ojs.fetch()
    assert (job["args"], job["parent_results"]) == ([secret], [secret])
    assert ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]["parent_results"] == [masked]


@pytest.mark.slow
def test_a_workflow_is_read_in_a_constant_number_of_queries(start, show):
    def count(workflow, query=""):
        with CaptureQueriesContext(connection) as queries:
            show(workflow, query)
        return len(queries)

    small = start("group", [step(), {"type": "group", "jobs": [step()]}])
    large = start("group", [step() for _ in range(20)] + [{"type": "group", "jobs": [step()]} for _ in range(20)])
    assert count(small) == count(large)
    assert count(small, "?members=false") == count(large, "?members=false")


# What a client may write


@pytest.mark.slow
def test_all_options_of_an_enqueue_work_in_a_member(start, work, show):
    options = {
        "queue": "mail", "priority": 5, "timeout_ms": 7000, "visibility_timeout_ms": 9000, "tags": ["x"],
        "retry": {"max_attempts": 9, "initial_interval_ms": 2000}, "unique": {"keys": ["type"]},
        "rate_limit": {"max_per_second": 3},
    }  # fmt: skip
    later = step("b", {"n": 1}, options=options, meta={"m": 1}, schema="urn:s", x_extra=[1])
    beside = {**step("c"), "queue": "own", "delay_until": "+PT1M", "metadata": {"k": 1}, "timeout": "PT3S"}
    start("chain", [step("a"), later, beside])
    assert Queue.objects.get(name="mail").max_per_second == 3
    work()
    job = work("mail")
    assert {**options, "args": [{"n": 1}], "meta": {"m": 1}, "schema": "urn:s", "x_extra": [1]}.items() >= {
        name: job[name] for name in ("queue", "priority", "timeout_ms", "visibility_timeout_ms", "tags", "args",
                                     "meta", "schema", "x_extra")
    }.items()  # fmt: skip
    stored = Job.objects.get(type="b")
    assert (stored.max_attempts, stored.retry_options["initial_interval"]) == (9, "PT2S")
    assert stored.unique["keys"] == ["type"]
    last = Job.objects.get(type="c")
    assert (last.queue, last.state, last.meta, last.timeout_ms) == ("own", "scheduled", {"k": 1}, 3000)


@pytest.mark.slow
def test_a_relative_time_counts_from_the_enqueue_of_the_member(start, work):
    later = {"scheduled_at": "+PT5M", "expires_at": "+PT20M"}
    start("chain", [step("a"), step("b", options=later), {**step("c"), "expires_at": "+PT1M"}])
    with travel(timedelta(hours=1)):
        before = timezone.now()
        work()
        after, job = timezone.now(), Job.objects.get(type="b")
        assert before + timedelta(minutes=5) <= job.run_at <= after + timedelta(minutes=5)
        assert before + timedelta(minutes=20) <= job.expires_at <= after + timedelta(minutes=20)
    with travel(timedelta(hours=1, minutes=6)):
        before = timezone.now()
        assert work()["type"] == "b"
        after, job = timezone.now(), Job.objects.get(type="c")
        assert before + timedelta(minutes=1) <= job.expires_at <= after + timedelta(minutes=1)


def test_an_absolute_time_is_kept(start, work, ojs):
    moment = (timezone.now() + timedelta(hours=2)).isoformat()
    start("chain", [step("a"), step("b", options={"scheduled_at": moment})])
    work()
    assert Job.objects.get(type="b").run_at.isoformat() == moment


@pytest.mark.slow
def test_a_pending_member_waits_for_its_activation(start, work, ojs, show):
    chain = start("chain", [step("a"), step("b", options={"pending": True})])
    work()
    assert work() is None
    shown = show(chain)["steps"][1]
    assert shown["state"] == "pending"
    ojs.post(f"/ojs/v1/jobs/{shown['job_id']}/activate")
    assert work()["type"] == "b"


def test_options_of_the_workflow_hold_for_what_a_member_does_not_say(start):
    options = {"queue": "shared", "timeout_ms": 1000, "priority": 1}
    nested = {"type": "group", "options": {"priority": 2}, "jobs": [step("c"), step("d", options={"priority": None})]}
    members = [step("a"), {**step("b"), "queue": "own", "timeout": "PT9S"}, nested]
    start("batch", members, options=options, callbacks={"on_success": step("s")})
    said = {job.type: (job.queue, job.timeout_ms, job.priority) for job in Job.objects.all()}
    assert said == {
        "a": ("shared", 1000, 1), "b": ("own", 9000, 1), "c": ("shared", 1000, 2), "d": ("shared", 1000, 2),
    }  # fmt: skip
    assert WorkflowMember.objects.get(role="on_success").request["queue"] == "shared"


def test_what_the_specification_does_not_define_is_kept(start, show):
    group = start("group", [step()], x_owner="ada", state="done", metadata={"a": 1}, jobs_total=9, specversion="1.0")
    assert group["x_owner"] == "ada"
    assert (group["state"], group["jobs_total"]) == ("running", 1)
    assert "a" not in group["metadata"]
    assert Workflow.objects.get().extra == {"x_owner": "ada"}
    assert show(group) == group


def test_a_request_can_be_repeated_with_the_id_of_the_client(start, ojs, refused):
    assert start("group", [step()], id=ID)["id"] == ID
    error = refused(ojs.post(PATH, {"type": "group", "jobs": [step()], "id": ID}), 409, "duplicate")
    assert error["details"]["workflow_id"] == ID
    assert Job.objects.count() == 1


@pytest.mark.slow
def test_the_id_of_a_member_is_that_of_its_job(start, work):
    start("chain", [step("a"), step("b", id=ID)])
    work()
    assert work()["id"] == ID


def test_an_empty_array_of_steps_beside_jobs_that_are_null(start):
    assert start("chain", None, jobs=[step()])["steps_total"] == 1


@pytest.mark.parametrize(
    ("body", "path", "says"),
    [
        ({"jobs": [step()]}, "type", "kind"),
        ({"type": "circle", "jobs": [step()]}, "type", "kind"),
        ({"type": ["chain"], "jobs": [step()]}, "type", "kind"),
        ({"type": "chain"}, "steps", "at least one"),
        ({"type": "chain", "steps": []}, "steps", "at least one"),
        ({"type": "group", "jobs": {}}, "jobs", "at least one"),
        ({"type": "group", "steps": [step()]}, "steps", "Write jobs"),
        ({"type": "chain", "steps": [step()], "jobs": [step()]}, "jobs", "combined"),
        ({"type": "batch", "jobs": [step()]}, "callbacks", "at least one callback"),
        ({"type": "batch", "jobs": [step()], "callbacks": {}}, "callbacks", "at least one callback"),
        ({"type": "batch", "jobs": [step()], "callbacks": {"on_done": step()}}, "callbacks.on_done", "not a callback"),
        ({"type": "group", "jobs": [step()], "callbacks": {"on_success": step()}}, "callbacks", "batch"),
        (
            {"type": "batch", "jobs": [step()], "callbacks": {"on_success": {"type": "group", "jobs": [step()]}}},
            "callbacks.on_success",
            "not a workflow",
        ),
        ({"type": "chain", "steps": [{"type": "group", "jobs": []}]}, "steps[0].jobs", "at least one"),
        ({"type": "chain", "steps": [{"type": "group", "jobs": [step()], "args": []}]}, "steps[0].args", "not to a"),
        ({"type": "chain", "steps": [{"type": "group", "jobs": [step()], "id": ID}]}, "steps[0].id", "nested"),
    ],
)
def test_a_wrong_structure_is_refused_with_its_place(body, path, says, ojs, refused):
    error = refused(ojs.post(PATH, body), 400, "invalid_workflow")
    assert error["details"]["field"] == path
    (told,) = error["details"]["validation_errors"]
    assert told["path"] == f"$.{path}"
    assert says in told["message"]
    assert error["message"].startswith(f"{path}: ")
    assert not Workflow.objects.exists()


def test_limits_of_depth_and_of_jobs(ojs, refused, settings):
    settings.OJS_UNIQUE = {"MAX_WORKFLOW_DEPTH": 2, "MAX_WORKFLOW_JOBS": 3}
    group = {"type": "group", "jobs": [step()]}
    deep = {"type": "group", "jobs": [{"type": "group", "jobs": [group]}]}
    error = refused(ojs.post(PATH, deep), 400, "invalid_workflow")
    assert error["details"]["validation_errors"][0]["path"] == "$.jobs[0].jobs[0]"
    assert ojs.post(PATH, {"type": "group", "jobs": [group, group, group]}).status_code == 201
    error = refused(ojs.post(PATH, {"type": "group", "jobs": [group] * 4}), 400, "invalid_workflow")
    assert error["details"]["validation_errors"][0]["path"] == "$"


@pytest.mark.parametrize(
    ("more", "field"),
    [
        ({"type": "saga"}, "type"),
        ({"workflow_timeout": "PT1H"}, "workflow_timeout"),
        ({"steps": [step(), step(depends_on=["a"])]}, "steps[1].depends_on"),
        ({"failure_policy": {"on_failure": "continue"}}, "failure_policy"),
        ({"steps": [{"type": "group", "jobs": [step()], "workflow_timeout": 5}]}, "steps[0].workflow_timeout"),
    ],
)
def test_what_is_not_supported_is_not_swallowed(more, field, ojs, refused):
    error = refused(ojs.post(PATH, {"type": "chain", "steps": [step()], **more}), 422, "unsupported")
    assert error["details"]["field"] == field


@pytest.mark.parametrize(
    ("member", "field"),
    [
        ({"args": []}, "type"),
        ({"type": "t"}, "args"),
        ({"type": "T!", "args": []}, "type"),
        (step(options={"priority": 101}), "options.priority"),
        (step(priority=101), "priority"),
        (step(options={"queue": "No"}), "options.queue"),
        (step(options={"nothing": 1}), "options.nothing"),
        (step(options=[]), "options"),
        (step(options={"scheduled_at": "soon"}), "options.scheduled_at"),
        (step(options={"unique": {"keys": ["nothing"]}}), "options.unique.keys[0]"),
        (step(name=5), "name"),
        (step(name="x" * 256), "name"),
        (step(id="nothing"), "id"),
        ("job", ""),
        (None, ""),
    ],
)
def test_a_wrong_job_is_refused_as_by_an_enqueue_with_its_place(member, field, ojs, refused):
    at = f".{field}" if field else ""
    chain = {"type": "chain", "steps": [step(), {"type": "group", "jobs": [member]}]}
    error = refused(ojs.post(PATH, chain), 400, "invalid_request")
    assert error["details"]["field"] == f"steps[1].jobs[0]{at}"
    assert error["message"].startswith(f"steps[1].jobs[0]{at}: ")
    batch = {"type": "batch", "jobs": [step()], "callbacks": {"on_success": member}}
    error = refused(ojs.post(PATH, batch), 400, "invalid_request")
    assert error["details"]["field"] == f"callbacks.on_success{at}"
    assert not Workflow.objects.exists()
    assert not Job.objects.exists()


def test_a_wrong_retry_policy_is_refused_as_by_an_enqueue(ojs, refused):
    chain = {"type": "chain", "steps": [step(), step(options={"retry": {"max_attempts": -1}})]}
    error = refused(ojs.post(PATH, chain), 422, "validation_error")
    assert error["details"]["field"] == "steps[1].options.retry.max_attempts"


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"queue": "No"}, "options.queue"),
        ({"nothing": 1}, "options.nothing"),
        ({"priority": 101}, "options.priority"),
        ({"scheduled_at": 5}, "options.scheduled_at"),
        ([], "options"),
    ],
)
def test_wrong_options_of_the_workflow_are_named_where_they_stand(options, field, ojs, refused):
    assert (
        refused(ojs.post(PATH, {"type": "group", "jobs": [step()], "options": options}), 400, "invalid_request")[
            "details"
        ]["field"]
        == field
    )
    nested = {"type": "chain", "steps": [{"type": "group", "jobs": [step()], "options": options}]}
    error = refused(ojs.post(PATH, nested), 400, "invalid_request")
    assert error["details"]["field"] == f"steps[0].{field}"


def test_a_duplicate_refuses_the_whole(ojs, refused):
    unique = {"unique": {"keys": ["type"]}}
    existing = ojs.enqueue("b", options=unique)
    error = refused(ojs.post(PATH, {"type": "group", "jobs": [step("a"), step("b", options=unique)]}), 409, "duplicate")
    assert error["details"]["field"] == "jobs[1]"
    assert error["details"]["existing_job_id"] == existing["id"]
    assert Job.objects.count() == 1
    assert not Workflow.objects.exists()


def test_an_id_of_a_job_that_is_in_use_is_named(ojs, refused):
    ojs.enqueue("a", id=ID)
    error = refused(ojs.post(PATH, {"type": "group", "jobs": [step("a", id=ID)]}), 409, "duplicate")
    assert error["details"]["field"] == "jobs[0].id"


@pytest.mark.parametrize(("body", "code"), [(b"[]", "invalid_request"), (b"{", "invalid_payload")])
def test_a_body_that_is_no_object(body, code, ojs, refused):
    refused(ojs.post(PATH, body), 400, code)


# Cancel


@pytest.mark.slow
def test_a_cancelled_chain_goes_no_further(start, show, work, ojs, refused):
    chain = start("chain", [step("a"), step("b"), step("c")])
    work()
    answer = ojs.delete(f"{PATH}/{chain['id']}")
    assert answer.status_code == 200
    cancelled = answer.json()["workflow"]
    assert (cancelled["state"], cancelled["steps_cancelled"], cancelled["steps_already_completed"]) == (
        "cancelled",
        2,
        1,
    )
    assert cancelled["cancelled_at"] == cancelled["completed_at"]
    assert states(cancelled, "steps") == ["completed", "cancelled", "cancelled"]
    assert work() is None
    assert show(chain)["state"] == "cancelled"
    error = refused(ojs.delete(f"{PATH}/{chain['id']}"), 409, "conflict")
    details = {"workflow_id": chain["id"], "current_state": "cancelled", "expected_state": "running"}
    assert error["details"] == details


@pytest.mark.slow
def test_a_job_that_runs_when_its_workflow_is_cancelled_may_end(start, show, ojs):
    group = start("group", [step("a"), step("b")])
    (job,) = ojs.fetch()
    ojs.delete(f"{PATH}/{group['id']}")
    assert states(show(group)) == ["active", "cancelled"]
    assert ojs.post("/ojs/v1/workers/ack", {"job_id": job["id"], "result": 1}).status_code == 200
    shown = show(group)
    assert (shown["state"], shown["jobs"][0]["result"]) == ("cancelled", 1)


@pytest.mark.parametrize("id", [ID, "nothing", ID.upper()])
@pytest.mark.parametrize("method", ["get", "delete"])
def test_an_unknown_workflow(method, id, ojs, refused):
    error = refused(getattr(ojs, method)(f"{PATH}/{id}"), 404, "not_found")
    assert error["details"] == {"resource_type": "workflow", "resource_id": id}


# List


@pytest.mark.slow
def test_the_list_has_the_outermost_ones_the_newest_first(start, show, work, ojs):
    chain = start("chain", [step("a"), {"type": "group", "jobs": [step("b"), step("c")]}], name="n")
    group = start("group", [step("fail", options={"queue": "f"}), step("d")])
    work("f")
    work()
    listed = ojs.get(PATH).json()
    assert [one["id"] for one in listed["workflows"]] == [group["id"], chain["id"]]
    assert listed["pagination"]["total"] == 2
    for one in listed["workflows"]:
        whole = show(one, "?members=false")
        del one["metadata"], whole["metadata"]
        assert one == whole
    counts = [one["metadata"] for one in ojs.get(PATH).json()["workflows"]]
    assert [(one["job_count"], one["completed_count"], one["failed_count"]) for one in counts] == [(2, 0, 1), (3, 1, 0)]


@pytest.mark.slow
def test_the_list_can_be_filtered(start, work, ojs, refused):
    chain, group = start("chain", [step("a")], name="n"), start("group", [step("b"), step("c")])
    work()

    def ids(query):
        return [one["id"] for one in ojs.get(f"{PATH}?{query}").json()["workflows"]]

    assert ids("state=completed") == ids("type=chain") == ids("name=n") == [chain["id"]]
    assert ids("state=running") == ids("type=group&name=") == [group["id"]]
    assert ids("type=chain&state=running") == ids("name=other") == []
    for query, field in (("state=done", "state"), ("type=saga", "type"), ("limit=0", "limit")):
        assert refused(ojs.get(f"{PATH}?{query}"), 400, "invalid_request")["details"]["field"] == field
    refused(ojs.get(f"{PATH}/{group['id']}?members=no"), 400, "invalid_request")


@pytest.mark.slow
@pytest.mark.parametrize("filters", ["", "&state=running", "&type=group", "&state=running&type=group&name="])
def test_the_list_has_pages(start, ojs, monkeypatch, filters):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 3)
    ids = []
    for _ in range(5):
        ids.append(start("group", [step()])["id"])
        start("chain", [step()])
    if "group" not in filters:
        ids = [one["id"] for one in ojs.get(PATH).json()["workflows"]][::-1]
    seen, query = [], f"?limit=2{filters}"
    while query:
        page = ojs.get(f"{PATH}{query}").json()
        seen += [one["id"] for one in page["workflows"]]
        cursor = page["pagination"].get("next_cursor")
        query = cursor and f"?limit=2{filters}&cursor={cursor}"
    assert seen == ids[::-1]


# What jobs carry


def test_a_client_cannot_fake_results(ojs):
    fake = {"workflow_id": ID, "workflow_step": 1, "workflow_callback": "on_success", "root_workflow_id": ID}
    job = ojs.enqueue(**fake, parent_results=["fake"], x_mine=1)
    (fetched,) = ojs.fetch()
    for shown in (job, fetched, ojs.get(f"/ojs/v1/jobs/{job['id']}").json()["job"]):
        assert shown["x_mine"] == 1
        assert not {*fake, "parent_results"} & shown.keys()


def test_a_job_of_a_workflow_is_shown_with_its_place(start, ojs):
    chain = start("chain", [step("a")])
    job = ojs.get(f"/ojs/v1/jobs/{chain['steps'][0]['job_id']}").json()["job"]
    assert (job["workflow_id"], job["workflow_step"], job["parent_results"]) == (chain["id"], 0, [])
    assert "root_workflow_id" not in job


@pytest.mark.slow
def test_the_fetch_of_many_jobs_has_a_constant_number_of_queries(start, ojs, monkeypatch):
    monkeypatch.setattr(on_demand, "SCAN", timedelta(days=1))
    ojs.fetch()  # which looks for deleted jobs

    def queries(count):
        with CaptureQueriesContext(connection) as captured:
            assert len(ojs.fetch(count=count)) == count
        return len(captured)

    for _ in range(12):
        ojs.enqueue()
    ordinary = queries(2)
    assert queries(10) == ordinary
    jobs = [{"type": "chain", "steps": [step(), step()]} for _ in range(11)]
    start("chain", [step(), {"type": "group", "jobs": [*jobs, step()]}])
    ojs.post("/ojs/v1/workers/ack", {"job_id": ojs.fetch()[0]["id"]})
    few = queries(2)
    assert ordinary < few == queries(10)


def test_an_ack_succeeds_though_the_workflow_cannot_go_on(start, ojs, show, monkeypatch, caplog):
    chain = start("chain", [step("a"), step("b")])
    (job,) = ojs.fetch()

    def fail(using):
        raise RuntimeError("broken")

    with monkeypatch.context() as patched:
        patched.setattr("django_ojs_unique.worker.remote.advance_due", fail)
        assert ojs.post("/ojs/v1/workers/ack", {"job_id": job["id"]}).status_code == 200
    assert "was not advanced" in caplog.text
    assert states(show(chain), "steps") == ["completed", "pending"]


def test_the_end_of_an_ordinary_job_looks_for_no_workflow(ojs, monkeypatch):
    looked = []
    monkeypatch.setattr("django_ojs_unique.worker.remote.advance_due", looked.append)
    ojs.enqueue()
    ojs.post("/ojs/v1/workers/ack", {"job_id": ojs.fetch()[0]["id"]})
    assert looked == []


def test_the_ack_itself_starts_the_next_step(start, ojs):
    start("chain", [step("a"), step("b")])
    ojs.post("/ojs/v1/workers/ack", {"job_id": ojs.fetch()[0]["id"]})
    assert Job.objects.filter(type="b", state="available").exists()


@pytest.mark.parametrize("is_busy", [False, True])
def test_a_fetch_counts_a_deleted_job_though_nobody_reads_the_workflow(start, work, ojs, is_busy, monkeypatch):
    monkeypatch.setattr(on_demand, "_scanned", {})
    start("batch", [step("a"), step("b")], callbacks={"on_failure": step("f")})
    Job.objects.get(type="a").delete()
    if is_busy:
        ojs.enqueue("other", args=[])
    assert {work()["type"] for _ in range(2 + is_busy)} == {"b", "f"} | ({"other"} if is_busy else set())


def test_a_fetch_looks_for_deleted_jobs_now_and_then(ojs, monkeypatch):
    scans = []
    monkeypatch.setattr(on_demand, "_scanned", {})
    monkeypatch.setattr(on_demand, "SCAN", timedelta(days=1))
    monkeypatch.setattr(on_demand, "fail_deleted", scans.append)
    for ahead in ("PT1S", "PT1H", "P2D"):
        with travel(ahead):
            ojs.fetch()
    assert scans == ["default"] * 2
