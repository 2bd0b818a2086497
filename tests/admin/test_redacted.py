"""No page of the admin shows a redacted member, and no form stores its mask."""

import json

import pytest
from django.contrib.messages import get_messages
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy, job
from django_ojs_unique.handlers.redaction import MASK
from django_ojs_unique.models import CronJob, Job, SuppressedEnqueue
from django_ojs_unique.testing import run_jobs
from tests.support.people import log_in
from tests.support.secrets import ARGS, META, SECRET, assert_hidden

pytestmark = pytest.mark.django_db

JOBS = reverse("admin:django_ojs_unique_job_changelist")
POLICY = UniquePolicy(keys=["type", "args", "meta"], args_keys=["/to/0/IBAN", "iban"], meta_keys=["iban"])
LOOK = ("view_job", "view_suppressedenqueue", "view_cronjob", "view_workerprocess")


@pytest.fixture(params=["setting", "job"])
def pay(request, handlers, settings):
    """A handler whose ``iban`` is redacted, by the setting or by its own declaration."""
    if request.param == "setting":
        settings.OJS_UNIQUE = {"REDACT": ["iban"]}

    @job("bank.pay", unique=POLICY, redact=["iban"] if request.param == "job" else [])
    def pay(iban, to=(), amount=0):
        return {"IBAN": iban, "amount": amount}

    return pay


@pytest.fixture
def looker(client):
    log_in(client, *LOOK)
    return client


def seen(client, path, *args, **query):
    response = client.get(reverse(f"admin:django_ojs_unique_{path}", args=args), query)
    assert response.status_code == 200
    return response.content.decode()


def enqueue(pay):
    return pay.using(meta=META).enqueue(**ARGS).job


def suppress(job, **changes):
    values = {"args": {**ARGS, "iban": SECRET[::-1]}, "meta": META, "type": job.type, "existing_job": job, **changes}
    return SuppressedEnqueue.objects.create(
        outcome="deduplicated",
        on_conflict="ignore",
        fingerprint=job.fingerprint,
        queue=job.queue,
        existing_state=job.state,
        **values,
    )


def test_the_list_of_jobs(looker, pay):
    enqueue(pay)
    assert_hidden(seen(looker, "job_changelist"))


def test_the_list_of_jobs_with_long_args(looker, pay):
    Job._base_manager.filter(pk=enqueue(pay).pk).update(args={"a": 5, **ARGS, "z": ["x" * 3000]})
    page = seen(looker, "job_changelist")
    assert SECRET[:4] not in page


def test_the_list_of_jobs_with_an_array(looker, pay):
    Job.objects.enqueue("bank.pay", [SECRET, [], 5], unique=None)
    assert_hidden(seen(looker, "job_changelist"))


def test_the_page_of_a_job_and_its_downloads(looker, pay):
    job = enqueue(pay)
    Job._base_manager.update(extra=META, errors=[{"details": {"iban": SECRET}, "iban": SECRET}])
    suppress(job)
    run_jobs()
    assert Job.objects.get().result["IBAN"] == SECRET
    page = seen(looker, "job_change", job.pk)
    assert_hidden(page)
    assert SECRET[::-1][:4] not in page
    assert "args.iban" in page  # that they differ is shown
    for member in ("args", "meta", "extra", "result", "errors"):
        assert_hidden(seen(looker, "job_json", job.pk, member))


@pytest.mark.slow
def test_the_pages_of_duplicates(looker, pay):
    job = enqueue(pay)
    suppress(job, args={**ARGS, "x": "x" * 600})
    assert SECRET[:4] not in seen(looker, "duplicates")
    assert SECRET[:4] not in seen(looker, "duplicates_of", job.fingerprint)
    SuppressedEnqueue.objects.update(args=ARGS)
    assert_hidden(seen(looker, "duplicates"))
    assert_hidden(seen(looker, "duplicates_of", job.fingerprint))


def test_a_suppressed_enqueue(looker, pay):
    attempt = suppress(enqueue(pay))
    page = seen(looker, "suppressedenqueue_change", attempt.pk)
    assert_hidden(page)
    assert SECRET[::-1][:4] not in page
    assert SECRET[:4] not in seen(looker, "suppressedenqueue_changelist")


def test_a_comparison_with_an_enqueue_of_another_type_hides_what_either_type_redacts(looker, pay, handlers):
    @job("bank.other", redact=["amount", "trace"])
    def other():
        pass

    attempt = suppress(enqueue(pay), type="bank.other", args={**ARGS, "iban": SECRET, "amount": "QZXWV"})
    assert_hidden(seen(looker, "suppressedenqueue_change", attempt.pk).split("compared")[-1])


def explain(client, **fields):
    sent = {"type": "bank.pay", **{name: json.dumps(value) for name, value in fields.items()}}
    return client.post(reverse("admin:django_ojs_unique_explain"), sent)


def test_the_answer_of_explain(looker, pay):
    enqueue(pay)
    response = looker.post(
        reverse("admin:django_ojs_unique_explain"),
        {"type": "bank.pay", "args": json.dumps(ARGS), "meta": json.dumps(META)},
    )
    page = response.content.decode()
    assert response.context["answer"]["duplicates"]
    assert response.context["link"] == ""
    assert_hidden(page.partition('id="answer"')[2].partition("<form")[0])
    assert "There is no link" in page


def test_an_explanation_that_is_refused(looker, pay):
    args = {"iban": f"{SECRET}\ud800"}
    response = explain(looker, args=args)
    (errors,) = response.context["form"].errors.values()
    assert_hidden(str(errors))


# Search


def told(client, term):
    """Return the ids that a search finds, and the messages of its page."""
    response = client.get(JOBS, {"q": term})
    assert response.status_code == 200
    return [each.pk for each in response.context["cl"].result_list], [
        str(one) for one in get_messages(response.wsgi_request)
    ]


@pytest.mark.parametrize("name", ["iban", "IBAN", "args.iban", "to.0.iban", "iban.x"])
def test_a_search_for_a_redacted_member_says_so_whether_or_not_it_was_guessed(looker, pay, name):
    enqueue(pay)
    answers = [told(looker, f"{name}={value}") for value in (SECRET, "another")]
    assert answers[0] == answers[1]
    found, (message,) = answers[0]
    assert found == []
    assert message == f"No job is searched by {'IBAN' if name.isupper() else 'iban'}: it is redacted."


@pytest.mark.slow
@pytest.mark.parametrize("term", [SECRET, f"args:{SECRET}", SECRET[:5], "args:iban", f'args:"iban": "{SECRET}'])
def test_a_search_for_a_text_does_not_confirm_a_guess(looker, pay, term):
    enqueue(pay)
    other = Job.objects.enqueue("t", {"note": term.removeprefix("args:")}).job
    found, (message,) = told(looker, term)
    assert found == [other.pk] if "iban" not in term else found in ([], [other.pk])
    assert message == "Jobs with a redacted member are left out of the search for a text in the args."


def test_a_search_does_not_confirm_a_guess_about_an_array(looker, pay):
    Job.objects.enqueue("bank.pay", [SECRET], unique=None)
    assert told(looker, f"args:{SECRET}")[0] == []
    assert told(looker, f"0={SECRET}")[0] == []


def test_a_text_is_not_searched_if_databases_differ_about_a_name(looker, settings):
    settings.OJS_UNIQUE = {"REDACT": ["GEHÄLTER"]}
    Job.objects.enqueue("t", {"gehälter": SECRET})
    found, (message,) = told(looker, f"args:{SECRET}")
    assert found == []
    assert "left out" in message


@pytest.mark.slow
def test_other_searches_find_jobs_with_a_redacted_member(looker, pay):
    job = enqueue(pay)
    for term in (str(job.pk), "bank.pay", "amount=5", job.fingerprint[:10]):
        assert told(looker, term) == ([job.pk], [])


def test_without_names_a_search_finds_what_it_found(looker):
    job = Job.objects.enqueue("t", {"iban": SECRET}).job
    for term in (f"iban={SECRET}", SECRET, f"args:{SECRET}"):
        assert told(looker, term) == ([job.pk], [])


# What is written


def test_enqueue_again_uses_the_stored_args(client, pay):
    log_in(client, "view_job", "enqueue_again_job")
    job = enqueue(pay)
    run_jobs()
    form = {"action": "enqueue_again", "_selected_action": [job.pk], "_confirmed": "yes"}
    client.post(JOBS, form)
    again = Job.objects.exclude(pk=job.pk).get()
    assert (again.args, again.meta["iban"]) == (ARGS, SECRET)


def define(**fields):
    values = {
        "expression": "0 3 * * *",
        "type": "bank.pay",
        "next_run_at": timezone.now(),
        "args": ARGS,
        "options": {"meta": META},
    }
    return CronJob.objects.create(name="nightly", **{**values, **fields})


def test_a_periodic_job_for_who_may_look(looker, pay):
    define()
    assert_hidden(seen(looker, "cronjob_change", "nightly"))
    assert SECRET[:4] not in seen(looker, "cronjob_changelist")


@pytest.fixture
def editor(client, pay):
    log_in(client, "view_cronjob", "change_cronjob", "add_cronjob")
    return client


def send(client, entry, **changes):
    """Send the form of a periodic job as a browser does, with some changes; return the errors by field."""
    page = reverse("admin:django_ojs_unique_cronjob_change", args=[entry.pk])
    form = client.get(page).context["adminform"].form
    assert_hidden(client.get(page).content.decode())
    sent = {name: form[name].value() for name in form.fields}
    sent["enabled"] = "on"
    response = client.post(page, {**sent, **changes})
    return dict(response.context["adminform"].form.errors) if response.status_code == 200 else {}


def test_a_form_that_is_sent_as_it_is_keeps_the_stored_values(editor):
    entry = define()
    assert send(editor, entry, description="changed") == {}
    entry.refresh_from_db()
    assert (entry.description, entry.args, entry.options) == ("changed", ARGS, {"meta": META})


@pytest.mark.slow
@pytest.mark.parametrize(
    "changes",
    [
        {"args": json.dumps({"iban": MASK, "amount": 6})},
        {"args": json.dumps({"note": MASK, "iban": "x"})},
        {"options": json.dumps({"meta": {"iban": MASK}})},
        {"type": "t"},
    ],
)
def test_a_form_never_stores_a_mask(editor, changes):
    entry = define()
    errors = send(editor, entry, **changes)
    assert set(errors) == ({"args", "options"} if "type" in changes else set(changes))
    assert all("in full" in str(each) for each in errors.values())
    entry.refresh_from_db()
    assert (entry.type, entry.args, entry.options) == ("bank.pay", ARGS, {"meta": META})


def test_a_form_stores_values_that_are_written_in_full(editor):
    entry = define()
    assert send(editor, entry, args=json.dumps({**ARGS, "iban": "new", "to": [{"IBAN": "x"}]})) == {}
    entry.refresh_from_db()
    assert (entry.args, entry.options) == ({**ARGS, "iban": "new", "to": [{"IBAN": "x"}]}, {"meta": META})
