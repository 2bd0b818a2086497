"""Suppressed enqueues in the admin: what was asked, which job it met, and what became of it."""

from contextlib import suppress

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs_unique import UniquePolicy
from django_ojs_unique.exceptions import DuplicateJob
from django_ojs_unique.models import Job, SuppressedEnqueue
from tests.support.people import give, log_in

pytestmark = pytest.mark.django_db

LIST = "admin:django_ojs_unique_suppressedenqueue_changelist"


def policy(on_conflict):
    return UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict=on_conflict)


def meet(on_conflict, type="email.send", **args):
    """Let an enqueue meet a job; return the attempt."""
    first = Job.objects.enqueue(type, {"user_id": 7}, unique=policy("ignore")).job
    SuppressedEnqueue.objects.filter(existing_job=first, args={"user_id": 7}).delete()
    with suppress(DuplicateJob):
        Job.objects.enqueue(type, {"user_id": 7, **args}, unique=policy(on_conflict))
    return SuppressedEnqueue.objects.order_by("-pk")[0]


def listed(client, **query):
    response = client.get(reverse(LIST), query)
    assert response.status_code == 200, response
    return [attempt.pk for attempt in response.context["cl"].result_list]


def page(client, attempt):
    address = reverse("admin:django_ojs_unique_suppressedenqueue_change", args=[attempt.pk])
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


def test_the_list_tells_the_outcome_the_strategy_and_both_jobs(admin_client):
    attempt = meet("replace", n=1)
    text = admin_client.get(reverse(LIST)).content.decode()
    assert '<span class="ojs-badge ojs-replaced">replaced</span>' in text
    assert str(attempt.existing_job_id) in text
    assert str(attempt.job_id) in text
    assert '<span class="ojs-badge ojs-available">available</span>' in text


def test_the_list_reads_no_payload_and_asks_no_more_for_more_rows(admin_client):
    attempt = meet("ignore")
    with CaptureQueriesContext(connection) as few:
        listed(admin_client)
    attempt.pk = None
    for _ in range(5):
        attempt.pk = None
        attempt.save(force_insert=True)
    with CaptureQueriesContext(connection) as many:
        assert len(listed(admin_client)) == 6
    assert len(many) == len(few)
    assert not any("meta" in query["sql"].lower() for query in many if "suppressedenqueue" in query["sql"])


def test_a_number_that_was_not_counted_to_its_end_is_not_given(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.base.MOST_COUNTED", 1)
    meet("ignore", type="a"), meet("ignore", type="b")
    text = admin_client.get(reverse(LIST), {"q": "a"}).content.decode()
    assert "1 result " in text
    assert "More than" not in text
    text = admin_client.get(reverse(LIST), {"strategy": "ignore"}).content.decode()
    assert "More than 1 suppressed enqueues" in text
    assert "1 result " not in text


@pytest.mark.slow
def test_filters_tell_outcomes_and_strategies_apart(admin_client):
    ignored, rejected = meet("ignore", type="a"), meet("reject", type="b")
    Job.objects.enqueue("c", key="k")
    Job.objects.enqueue("c", key="k", key_mode="unsafe_dedupe")
    assert listed(admin_client, outcome__exact="rejected") == [rejected.pk]
    assert listed(admin_client, strategy="ignore") == [ignored.pk]
    assert len(listed(admin_client, strategy="unsafe_dedupe")) == 1
    assert listed(admin_client, strategy="nonsense") == []
    assert len(listed(admin_client, created_at__gte="2000-01-01 00:00:00+00:00")) == 3


@pytest.mark.slow
def test_an_attempt_is_found_by_either_job_by_its_fingerprint_and_by_its_type(admin_client):
    attempt = meet("replace", n=1)
    other = meet("ignore", type="other.type")
    for term in (attempt.existing_job_id, attempt.job_id, attempt.fingerprint[:8], attempt.fingerprint, "email."):
        assert listed(admin_client, q=str(term)) == [attempt.pk]
    assert listed(admin_client, q="other") == [other.pk]


def test_the_attempts_of_a_job_that_is_gone_are_found(admin_client):
    attempt = meet("ignore")
    Job.objects.all().delete()
    assert listed(admin_client, q=str(attempt.existing_job_id)) == [attempt.pk]
    assert "The job that it met is gone." in page(admin_client, attempt)


@pytest.mark.parametrize(
    "term",
    [
        "01890a5d-ac96-774b-bcce-b302099a8057",
        "f" * 64,
        "g" * 300,
        "%",
        "'",
        "\\",
        "<b>",
        "é",
        "deadbeef",
        "no-such-type",
    ],
)
def test_whatever_is_searched_for_gets_an_answer(admin_client, term):
    meet("ignore")
    assert listed(admin_client, q=term) == []


@pytest.mark.parametrize(
    "query",
    [
        {"created_at__gte": "never"},
        {"p": "x"},
        {"o": "9.x"},
        {"q": "\0"},
        {"q": "x" * 60_000},
        {"strategy": "\0"},
        {"outcome__exact": "\0"},
    ],
)
def test_a_malformed_query_gets_an_answer(admin_client, query):
    assert admin_client.get(reverse(LIST), query, follow=True).status_code == 200


@pytest.mark.parametrize(
    "lookup", ["args__x", "id__exact", "created_at__year", "type__regex", "fingerprint__startswith"]
)
def test_only_what_the_page_offers_can_be_asked(admin_client, lookup):
    assert admin_client.get(reverse(LIST), {lookup: "0"}).status_code == 400


def test_the_jobs_cannot_be_asked_about_through_their_attempts(client):
    meet("ignore")
    log_in(client, "view_suppressedenqueue")
    assert client.get(reverse(LIST), {"existing_job__args__contains": "7"}).status_code == 400
    assert client.get(reverse(LIST), {"existing_job__type__startswith": "e"}).status_code == 400


def test_the_page_shows_what_was_asked_and_compares_it_with_the_met_job(admin_client):
    text = page(admin_client, meet("ignore", note="<b>\x1b"))
    assert "<code>args.note</code>: <del>(none)</del> → <ins>&quot;&lt;b&gt;\\u001b&quot;</ins>" in text
    assert "answered with the existing job" in text
    assert 'name="_save"' not in text


def test_the_comparison_needs_the_permission_to_view_jobs(client):
    attempt = meet("ignore", note="x")
    Job.objects.filter(pk=attempt.existing_job_id).update(args={"user_id": 7, "note": "secret"})
    user = log_in(client, "view_suppressedenqueue")
    assert "secret" not in page(client, attempt)
    give(user, "view_job")
    assert "secret" in page(client, attempt)


def test_a_met_job_that_was_pruned_to_its_window_is_told(admin_client):
    attempt = meet("ignore")
    Job._base_manager.update(payload_pruned=True, args={})
    assert "The args of the job that it met were pruned." in page(admin_client, attempt)


def test_attempts_cannot_be_made_changed_or_deleted(admin_client):
    attempt = meet("ignore")
    name = "admin:django_ojs_unique_suppressedenqueue_"
    assert admin_client.get(reverse(f"{name}add")).status_code == 403
    assert admin_client.post(reverse(f"{name}change", args=[attempt.pk])).status_code == 403
    assert admin_client.post(reverse(f"{name}delete", args=[attempt.pk])).status_code == 403


@pytest.mark.parametrize("id", ["0", "nonsense", "99999999999999999999999"])
def test_an_attempt_that_is_not_there_is_told(admin_client, id):
    assert admin_client.get(f"{reverse(LIST)}{id}/change/").status_code == 302
