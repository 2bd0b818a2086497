"""People who read jobs over HTTP see no redacted member; who sent a job, and who runs it, see everything."""

import pytest

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.models import CronJob, Job
from django_ojs_unique.testing import run_jobs
from tests.support.secrets import ARGS, META, SECRET, assert_hidden

pytestmark = pytest.mark.django_db

POLICY = UniquePolicy(keys=["type", "args"], args_keys=["iban"], on_conflict="ignore")
BODY = {"type": "bank.pay", "args": ARGS, "meta": META, "own": {"iban": SECRET}}


@pytest.fixture
def pay(handlers):
    @job("bank.pay", redact=["iban"], unique=POLICY, retry={"max_attempts": 1, "on_exhaustion": "dead_letter"})
    def pay(iban, to, amount):
        if to:
            raise ValueError("no money")
        return {"iban": iban}

    return pay


def hidden(response, status=200):
    assert response.status_code == status, response.content
    assert_hidden(response.content.decode())
    return response.json()


def test_the_answer_to_a_new_enqueue_has_what_was_sent(ojs, pay):
    sent = ojs.enqueue(**BODY)
    assert (sent["args"], sent["meta"], sent["own"]) == (ARGS, META, {"iban": SECRET})
    assert "[redacted]" not in str(sent)


@pytest.mark.parametrize("path", ["batch", "bulk"])
def test_the_answer_to_many_new_enqueues_has_what_was_sent_and_not_what_was_met(ojs, pay, path):
    answers = [ojs.post(f"/ojs/v1/jobs/{path}", {"jobs": [BODY]}) for _ in range(2)]
    assert SECRET in answers[0].content.decode()
    assert_hidden(answers[1].content.decode())


def test_the_answer_to_a_replacing_enqueue_has_what_was_sent(ojs, pay):
    ojs.enqueue(**BODY)
    sent = ojs.enqueue(**BODY, unique={**POLICY.to_dict(), "on_conflict": "replace"})
    assert sent["args"] == ARGS


def test_the_answer_to_a_duplicate_does_not_tell_what_somebody_else_sent(ojs, pay):
    id = ojs.enqueue(**BODY)["id"]
    answer = hidden(ojs.post("/ojs/v1/jobs", BODY))
    assert answer["deduplicated"]
    assert answer["job"]["id"] == id
    rejected = ojs.post("/ojs/v1/jobs", {**BODY, "unique": {**POLICY.to_dict(), "on_conflict": "reject"}})
    assert rejected.status_code == 409
    assert SECRET[:4] not in rejected.content.decode()


def test_a_job_that_is_read_cancelled_retried_or_enqueued_again(ojs, pay):
    path = f"/ojs/v1/jobs/{ojs.enqueue(**BODY)['id']}"
    hidden(ojs.get(path))
    hidden(ojs.delete(path))
    hidden(ojs.post(f"{path}/retry"))
    hidden(ojs.delete(path))
    hidden(ojs.post(f"{path}/enqueue-again"), 201)
    assert [one.args for one in Job.objects.all()] == [ARGS, ARGS]


def test_a_pending_job_that_is_activated(ojs, pay):
    id = ojs.enqueue(**BODY, options={"pending": True})["id"]
    hidden(ojs.post(f"/ojs/v1/jobs/{id}/activate"))


def test_a_result(ojs, pay):
    id = ojs.enqueue(**{**BODY, "args": {**ARGS, "to": []}})["id"]
    run_jobs()
    assert hidden(ojs.get(f"/ojs/v1/jobs/{id}"))["job"]["result"] == {"iban": "[redacted]"}


def test_dead_letters(ojs, pay):
    id = ojs.enqueue(**BODY)["id"]
    run_jobs(raise_errors=False)
    Job._base_manager.update(errors=[{"type": "E", "code": "c", "message": "m", "details": {"iban": SECRET}}])
    hidden(ojs.get("/ojs/v1/dead-letter"))
    hidden(ojs.get(f"/ojs/v1/dead-letter/{id}"))
    hidden(ojs.post(f"/ojs/v1/dead-letter/{id}/retry"))


def test_an_explanation(ojs, pay):
    answer = hidden(ojs.post("/ojs/v1/jobs/explain", BODY))
    assert answer["explanation"]["canonical_text"] == '{"args":{"iban":"[redacted]"},"type":"bank.pay"}'


def test_a_worker_fetches_everything(ojs, pay):
    ojs.enqueue(**BODY)
    (fetched,) = ojs.fetch()
    assert (fetched["args"], fetched["meta"], fetched["own"]) == (ARGS, META, {"iban": SECRET})


def test_periodic_jobs(ojs, pay):
    body = {"name": "n", "expression": "@daily", "job_template": {"type": "bank.pay", "args": ARGS, "meta": META}}
    hidden(ojs.post("/ojs/v1/cron", body), 201)
    hidden(ojs.get("/ojs/v1/cron"))
    hidden(ojs.get("/ojs/v1/cron/n"))
    entry = CronJob.objects.get()
    assert (entry.args, entry.options["meta"]) == (ARGS, META)
    hidden(ojs.delete("/ojs/v1/cron/n"))


def test_events(ojs, pay, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    ojs.enqueue(**{**BODY, "args": {**ARGS, "to": []}})
    run_jobs()
    assert "job.completed" in str(hidden(ojs.get("/ojs/v1/events")))


@pytest.mark.parametrize(
    "body",
    [
        {"args": {"iban": f"{SECRET}\0"}},
        {"args": [f"{SECRET}\0"]},
        {"args": SECRET},
        {"args": {}, "meta": {"iban": f"{SECRET}\0"}},
        {"args": {}, "meta": [SECRET]},
        {"args": {}, "metadata": [SECRET]},
        {"args": {}, "own": {"iban": f"{SECRET}\0"}},
    ],
)
@pytest.mark.parametrize("path", ["jobs", "jobs/explain", "cron"])
def test_no_error_quotes_the_secret(ojs, pay, body, path):
    sent = {"type": "bank.pay", **body}
    if path == "cron":
        sent = {"name": "n", "expression": "@daily", "job_template": sent}
    hidden(ojs.post(f"/ojs/v1/{path}", sent), 400)


@pytest.mark.parametrize(
    "value", [{"iban": f"{SECRET}\0"}, [{"IBAN": [2**60, SECRET]}], {"to": {"iban": {"a": 2**60}}}]
)
def test_no_error_about_a_result_quotes_the_secret_and_none_about_the_details_of_a_failure_stores_it(ojs, pay, value):
    ojs.enqueue(**BODY)
    (fetched,) = ojs.fetch()
    refused = ojs.post("/ojs/v1/workers/ack", {"job_id": fetched["id"], "result": value})
    assert refused.status_code == 400
    assert SECRET[:4] not in refused.content.decode()
    assert str(2**60) not in refused.content.decode()
    ojs.post("/ojs/v1/workers/nack", {"job_id": fetched["id"], "error": {"code": "c", "details": value}})
    (error,) = Job.objects.get().errors
    assert "left_out" in error["details"]
    assert SECRET[:4] not in str(error)
    assert str(2**60) not in str(error)


def test_an_error_about_a_body_that_is_no_job_masks_the_names_for_all_types(ojs, settings):
    settings.OJS_UNIQUE = {"REDACT": ["iban"]}
    hidden(ojs.post("/ojs/v1/jobs/batch", {"jobs": [[{"iban": SECRET}]]}), 400)
    hidden(ojs.post("/ojs/v1/jobs", [{"iban": SECRET}]), 400)


def test_an_array_is_refused_without_a_quote(ojs, pay, settings):
    settings.OJS_UNIQUE = {"API": {"ARRAYS_ONLY": True}}
    hidden(ojs.post("/ojs/v1/jobs", BODY), 400)
