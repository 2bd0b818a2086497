"""POST /ojs/v1/jobs."""

from django_ojs_unique.models import Job


def test_a_job_is_stored_and_returned(ojs):
    answer = ojs.post("/ojs/v1/jobs", {"type": "email.send", "args": ["ada"], "options": {"queue": "mail"}})
    job = answer.json()["job"]
    assert answer.status_code == 201
    assert answer["Location"] == f"/ojs/v1/jobs/{job['id']}"
    assert (job["type"], job["args"], job["queue"], job["state"]) == ("email.send", ["ada"], "mail", "available")
    assert Job.objects.get(pk=job["id"]).args == ["ada"]


def test_an_unknown_route_is_not_found(ojs, refused):
    refused(ojs.get("/ojs/v1/nothing"), 404, "not_found")


def test_another_method_is_not_allowed(ojs, refused):
    response = ojs.get("/ojs/v1/jobs/batch")
    refused(response, 405, "invalid_request")
    assert response["Allow"] == "POST"


def test_what_is_not_json_is_refused(ojs, refused):
    refused(ojs.post("/ojs/v1/jobs", b"{ invalid json }"), 400, "invalid_payload")
    refused(ojs.post("/ojs/v1/jobs", b'{"a": 1, "a": 2}'), 400, "invalid_payload")


def test_a_wrong_option_is_named_as_it_was_written(ojs, refused):
    error = refused(
        ojs.post("/ojs/v1/jobs", {"type": "t", "args": [], "options": {"priority": 101}}), 400, "invalid_request"
    )
    assert error["details"]["field"] == "options.priority"
    assert error["message"].startswith("options.priority: ")
