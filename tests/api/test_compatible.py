"""The official clients as they are: what each sends and reads beyond the binding (docs: HTTP).

The headers and the shapes are those of the clients' own code: `args` and options vary, ids and names are theirs.
"""

import jsonschema
import pytest
from django.test import override_settings

from django_ojs_unique.api.openapi import generator
from django_ojs_unique.models import Queue

pytestmark = pytest.mark.django_db

JOBS, WORKFLOWS = "/ojs/v1/jobs", "/ojs/v1/workflows"
MEDIA_TYPE = "application/openjobspec+json"
PYTHON = {"User-Agent": "python-httpx/0.28.1", "Accept": MEDIA_TYPE}
RUBY = {"User-Agent": "ojs-ruby/0.4.0 ruby/3.3.0", "Accept": MEDIA_TYPE}
OFF = override_settings(OJS_UNIQUE={"API": {"COMPATIBLE_CLIENTS": False}})


def step(id, *needed, **members):
    return {"id": id, "type": "t", "args": [], "depends_on": list(needed), **members}


def without_depends(one):
    return {name: value for name, value in one.items() if name != "depends_on"}


def called(role):
    return step(role, "step-0", "step-1", options={"callback_type": role, "queue": "mail"})


ALONE = [step("step-0"), step("step-1")]
PARALLEL = ["job-0", "job-1"]
GRAPHS = {
    "chain, Python and Go": ("chain", [step("step-0"), step("step-1", "step-0"), step("step-2", "step-1")]),
    "chain, Java": ("chain", [without_depends(step("step_0")), step("step_1", "step_0")]),
    "chain of one": ("chain", [step("step-0")]),
    "group, Python and Go": ("group", ALONE),
    "group, Java": ("group", list(map(without_depends, ALONE))),
    "batch, Python": ("batch", [*ALONE, called("on_complete"), called("on_success"), called("on_failure")]),
    "batch, Go": ("batch", [*map(step, PARALLEL), step("on-complete", *PARALLEL), step("on-failure", *PARALLEL)]),
    "batch, Java": ("batch", [*map(without_depends, ALONE), step("on_success", "step-1", "step-0")]),
    "batch of one": ("batch", [step("step-0"), step("on_failure", "step-0")]),
}


@pytest.mark.parametrize(("kind", "steps"), GRAPHS.values(), ids=GRAPHS)
def test_steps_that_name_those_before_them_are_a_chain_a_group_or_a_batch(ojs, kind, steps):
    answer = ojs.post(WORKFLOWS, {"name": "import", "steps": steps, "options": {"priority": 7}})
    assert answer.status_code == 201, answer.content
    for sent in (answer.json(), ojs.get(f"{WORKFLOWS}/{answer.json()['id']}").json()):
        workflow = sent["workflow"]
        assert (workflow["type"], workflow["name"], workflow["state"]) == (kind, "import", "running")
        assert (sent["id"], sent["state"]) == (workflow["id"], "running")
        assert "steps" not in sent
        shown = workflow["steps"]
        assert [one["id"] for one in shown] == [one["id"].replace("on-", "on_") for one in steps]
        needed = [sorted(one.get("depends_on", [])) for one in steps]
        assert [sorted(one["depends_on"]) for one in shown] == needed
        assert {(one["type"], "state" in one) for one in shown} == {("t", True)}


@pytest.mark.parametrize("steps", [steps for _, steps in GRAPHS.values()], ids=GRAPHS)
def test_a_graph_fits_the_document(steps):
    document = generator.document()
    start = {"$ref": "#/components/schemas/StartWorkflow", "components": document["components"]}
    nested = {"id": "step-9", "depends_on": [], "type": "group", "jobs": [{"type": "t", "args": []}]}
    jsonschema.validate({"steps": [*steps, nested]}, start)
    for wrong in ({"args": "none"}, {"options": {"callback_type": "on_monday"}}, {"id": 7}):
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate({"steps": [{**steps[0], **wrong}]}, start)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"jobs": [{"type": "t", "args": []}]}, start)


def test_the_callbacks_of_such_a_batch_run_by_its_outcome(ojs):
    sent = {"name": "b", "steps": GRAPHS["batch, Python"][1]}
    id = ojs.post(WORKFLOWS, sent).json()["workflow"]["id"]
    for job in ojs.fetch(count=2):
        ojs.post("/ojs/v1/workers/ack", {"job_id": job["id"], "result": {}})
    assert len(ojs.fetch("mail", count=5)) == 2
    states = {one["id"]: one["state"] for one in ojs.get(f"{WORKFLOWS}/{id}").json()["workflow"]["steps"]}
    assert states["on_failure"] == "skipped"
    assert states["on_success"] == states["on_complete"] == "active"


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([*ALONE, step("c", "step-0", "step-1")], "steps[2].depends_on"),
        ([step("a"), step("b", "a"), step("c", "a")], "steps[1].depends_on"),
        ([step("a", "b"), step("b", "a")], "steps[0].depends_on"),
        ([step("a", "a")], "steps[0].depends_on"),
        ([step("b", "a"), step("a")], "steps[0].depends_on"),
        ([*ALONE, called("on_success"), {**called("on_success"), "id": "on-success"}], "steps[2].depends_on"),
        ([*ALONE, step("on_success", "step-0")], "steps[2].depends_on"),
        ([*ALONE, called("on_success"), step("c", "on_success")], "steps[2].depends_on"),
    ],
)
def test_another_graph_is_refused(ojs, refused, steps, field):
    error = refused(ojs.post(WORKFLOWS, {"name": "w", "steps": steps}), 422, "unsupported")
    assert error["details"]["field"] == field
    assert "nest chains" in error["message"]


@pytest.mark.parametrize(
    ("steps", "field"),
    [
        ([step("a"), step("a")], "steps[1].id"),
        ([step("")], "steps[0].id"),
        ([step("a" * 256)], "steps[0].id"),
        ([step("a"), step("b\x00")], "steps[1].id"),
        ([step(["a"])], "steps[0].id"),
        ([step("a"), step("b", "c")], "steps[1].depends_on"),
        ([step("a", depends_on="a")], "steps[0].depends_on"),
        ([step("a"), step("b", ["a"])], "steps[1].depends_on"),
        ([step("a", args=None)], "steps[0].args"),
    ],
)
def test_a_wrong_graph_is_refused_by_its_field(ojs, refused, steps, field):
    answer = ojs.post(WORKFLOWS, {"name": "w", "steps": steps})
    assert answer.status_code == 400
    assert answer.json()["error"]["details"]["field"] == field


@pytest.mark.parametrize("steps", [steps for _, steps in GRAPHS.values()], ids=GRAPHS)
def test_an_error_names_a_step_as_it_was_sent(ojs, refused, steps):
    for index, one in enumerate(steps):
        wrong = {**one, "args": "none"}
        error = refused(
            ojs.post(WORKFLOWS, {"steps": [*steps[:index], wrong, *steps[index + 1 :]]}), 400, "invalid_request"
        )
        assert error["details"]["field"] == f"steps[{index}].args"
        assert error["message"].startswith(f"steps[{index}].args: ")


def test_what_an_enqueue_refuses_and_a_hint_name_a_step_as_it_was_sent(ojs, refused):
    first_two = [called("on_success"), step("step-0")]

    def sent(**last):
        return ojs.post(WORKFLOWS, {"steps": [*first_two, {"id": "step-1", **last}]})

    options = {"unique": {"keys": ["type"], "on_conflict": "reject"}}
    ojs.enqueue("held", options=options)
    error = refused(sent(type="held", args=[], options=options), 409, "duplicate")
    assert error["details"]["field"] == "steps[2]"
    error = refused(sent(type="group", jobs=[{"type": "t"}]), 400, "invalid_request")
    assert error["details"]["field"] == "steps[2].jobs[0].args"
    error = refused(sent(type="group", jobs=[]), 400, "invalid_workflow")
    assert error["details"]["validation_errors"][0]["path"] == "$.steps[2].jobs"
    (hint,) = sent(type="t", args=[], quue="a").json()["hints"]
    assert hint.startswith("'steps[2].quue' ")


def test_a_rate_limit_of_a_step_holds_for_its_queue(ojs):
    options = {"queue": "mail", "rate_limit": {"max_per_second": 5}}
    assert ojs.post(WORKFLOWS, {"steps": [step("a"), step("b", options=options)]}).status_code == 201
    assert Queue.objects.get(name="mail").max_per_second == 5


def test_a_client_that_names_the_mark_of_a_graph_itself_harms_nobody(ojs):
    body = {"type": "group", "from_graph": True, "jobs": [{"type": "t", "args": []}]}
    workflow = ojs.post(WORKFLOWS, body).json()["workflow"]
    assert [one["id"] for one in workflow["steps"]] == ["step-0"]
    assert "steps" not in ojs.get(f"{WORKFLOWS}/{workflow['id']}?members=false").json()["workflow"]


def test_the_client_for_python_gets_the_content_type_that_it_reads(ojs):
    get = ojs._client.get
    assert get("/ojs/v1/health", headers=PYTHON)["Content-Type"] == "application/json"
    assert get("/ojs/v1/nothing", headers=PYTHON)["Content-Type"] == "application/json"
    for headers in ({**PYTHON, "Accept": "*/*"}, {**PYTHON, "User-Agent": "curl"}):
        assert get("/ojs/v1/health", headers=headers)["Content-Type"] == MEDIA_TYPE


def test_the_client_for_ruby_finds_a_job_and_the_name_of_a_queue_at_the_top(ojs):
    sent = ojs.post(JOBS, {"type": "t", "args": [{"to": "ada"}]}, headers=RUBY).json()
    assert sent == {**sent["job"], "job": sent["job"]}
    stats = ojs.get("/ojs/v1/queues/default/stats", headers=RUBY).json()
    assert (stats["queue"], stats["available"]) == ("default", 1)
    chain = {"type": "chain", "steps": [{"type": "t", "args": [{}]}]}
    started = ojs.post(WORKFLOWS, chain, headers=RUBY).json()
    assert started["steps"] == started["workflow"]["steps"]
    assert ojs.delete(f"{WORKFLOWS}/{started['id']}", headers=RUBY).json()["state"] == "cancelled"
    assert ojs.post(JOBS, {"type": "t", "args": []}).json().keys() == {"job"}


def test_without_the_setting_the_binding_is_what_it_is(ojs, refused):
    with OFF:
        refused(ojs.post(WORKFLOWS, {"name": "w", "steps": ALONE}), 400, "invalid_workflow")
        chain = {"type": "chain", "steps": [{"type": "t", "args": []}]}
        assert ojs.post(WORKFLOWS, chain).json().keys() == {"workflow"}
        assert ojs.post(JOBS, {"type": "t", "args": []}, headers=RUBY).json().keys() == {"job"}
        assert ojs.get("/ojs/v1/queues/default/stats", headers=RUBY).json()["queue"]["name"] == "default"
        assert ojs.get("/ojs/v1/health", headers=PYTHON)["Content-Type"] == MEDIA_TYPE
