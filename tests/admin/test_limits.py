"""The page of limits, and what the pages of jobs, explain and the dashboard say about them."""

from __future__ import annotations

import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import translation

from django_ojs_unique import Limit, job
from django_ojs_unique.admin.jobs import JobAdmin
from django_ojs_unique.models import Job, LimitOverride
from tests.support.limits import ONE, enqueue, take
from tests.support.people import log_in
from tests.support.secrets import SECRET, assert_hidden

pytestmark = pytest.mark.django_db(transaction=True)

LIST = reverse("admin:django_ojs_unique_limitoverride_changelist")
DASHBOARD = reverse("admin:django_ojs_unique_dashboard")


def page_of(name):
    return reverse("admin:django_ojs_unique_limitoverride_change", args=[quote(name)])


def job_page(id):
    return reverse("admin:django_ojs_unique_job_change", args=[id])


def seen(client, url, **query):
    answer = client.get(url, query)
    assert answer.status_code == 200
    return unescape(re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.content.decode())))


def save(client, name, **numbers):
    """Save the form as it was shown; ``numbers`` may name what was shown."""
    row = LimitOverride.objects.filter(pk=name).first()
    shown = {f"shown_{field}": getattr(row, field, None) or "" for field in ("running", "rate")}
    return client.post(page_of(name), {**shown, **numbers})


@pytest.fixture
def waiting():
    """Three jobs of one key, of which one runs, and one job of another key that runs."""
    found = [enqueue(n) for n in (1, 1, 1, 2)]
    take(), take()
    return found


def test_the_list_has_each_limit_with_its_numbers_and_what_runs_and_waits(admin_client, waiting):
    LimitOverride.objects.set("later", rate=7)
    text = seen(admin_client, LIST)
    assert "args.n 1 at once no 2 2 2 1 " in text
    assert "later 7 per time of the limit yes; in the code: not known here 0 0 0 0 " in text


def test_without_limits_the_list_says_how_to_declare_one(admin_client):
    assert 'Limit(key=["args.customer_id"], running=1)' in seen(admin_client, LIST)


@pytest.mark.slow
def test_the_page_of_a_limit_shows_its_partitions(admin_client, waiting):
    text = seen(admin_client, page_of("args.n"))
    assert "running: 2, waiting: 2, partitions with waiting jobs: 1" in text
    assert f"args.n 1: running: 1, waiting: 2 {waiting[1]}" in text
    assert admin_client.get(page_of("args.m")).status_code == 302


def test_numbers_are_set_and_taken_back(admin_client, waiting):
    assert save(admin_client, "args.n", running="3", rate="").status_code == 302
    row = LimitOverride.objects.get()
    assert (row.name, row.running, row.rate) == ("args.n", 3, None)
    assert len(take()) == 2
    assert "args.n 3 at once yes; in the code: 1 at once " in seen(admin_client, LIST)
    assert save(admin_client, "args.n", running="", rate="").status_code == 302
    assert not LimitOverride.objects.exists()
    assert [entry.change_message for entry in LogEntry.objects.order_by("pk")] == [
        "Limited to 3 at once.",
        "Let the code say how many are at once.",
    ]


@pytest.mark.parametrize("number", ["0", "-1", "x", "1000001"])
def test_a_number_that_cannot_be_is_refused(admin_client, waiting, number):
    assert save(admin_client, "args.n", running=number).status_code == 200
    assert not LimitOverride.objects.exists()


def test_a_number_that_somebody_else_has_set_meanwhile_is_not_overwritten(admin_client, waiting):
    LimitOverride.objects.set("args.n", running=9)
    answer = save(admin_client, "args.n", running="3", shown_running="")
    assert "somebody else has changed it meanwhile to 9" in answer.content.decode()
    assert LimitOverride.objects.get().running == 9


def test_numbers_are_changed_by_permission_only(client, waiting):
    assert client.get(LIST).status_code == 302
    log_in(client, "view_limitoverride")
    text = seen(client, page_of("args.n"))
    assert "1 at once" in text
    assert save(client, "args.n", running="3").status_code == 403
    assert not LimitOverride.objects.exists()


def test_the_list_is_for_those_with_permission(client, waiting):
    log_in(client, "view_job")
    assert client.get(LIST).status_code == 403
    assert "Limits" not in client.get(DASHBOARD).content.decode()


def test_a_jobs_page_says_what_it_waits_for(admin_client, waiting):
    first, second, *_ = waiting
    said = f"Waits for a slot of args.n 1: 1 of 1 in use. Held by {first}. No job waits before it."
    assert said in seen(admin_client, job_page(second))
    assert "Waits for" not in seen(admin_client, job_page(first))


def test_explain_says_whether_a_job_would_wait(admin_client, waiting, handlers):
    job("u", limit=ONE)(lambda n: None)
    text = seen(admin_client, reverse("admin:django_ojs_unique_explain"), type="u", args='{"n": 1}')
    assert "Would wait for a slot of args.n 1: 1 of 1 in use. 2 jobs wait before it." in text


@pytest.mark.slow
def test_sentences_are_said_in_the_language_of_the_visitor(admin_client, waiting, handlers):
    first, second, *_ = waiting
    job("u", limit=Limit(key=["args.n"], running=1, per_minute=9))(lambda n: None)
    with translation.override("de"):
        text = seen(admin_client, job_page(second))
        assert f"Wartet auf einen Platz von args.n 1: 1 von 1 belegt. Belegt durch {first}. Kein Job wartet vor" in text
        text = seen(admin_client, reverse("admin:django_ojs_unique_explain"), type="u", args='{"n": 1}')
        numbers = "1 von 1 belegt, 0 von 9 in der letzten Minute begonnen. 2 Jobs warten vor ihm."
        assert f"Würde auf einen Platz von args.n 1 warten: {numbers}" in text
        assert "args.n 1 gleichzeitig / 1 gleichzeitig, 9 je Minute nein" in seen(admin_client, LIST)


@pytest.mark.slow
def test_the_dashboard_shows_the_partitions_with_waiting_jobs_only_if_there_are_any(admin_client):
    _, second = enqueue(1), enqueue(1)
    assert "Partitions with waiting jobs" not in seen(admin_client, DASHBOARD)
    take(), take()
    text = seen(admin_client, DASHBOARD)
    assert "Partitions with waiting jobs" in text
    assert re.search(rf"args\.n 1 args\.n 1 \d+s ago {second}", text)
    Job.objects.get(pk=second).cancel()
    assert "Partitions with waiting jobs" not in seen(admin_client, DASHBOARD)


def test_who_may_see_some_jobs_only_sees_neither_partitions_nor_counts(admin_client, waiting, monkeypatch):
    seen_only = Job.objects.filter(pk__in=waiting[1:2])
    monkeypatch.setattr(JobAdmin, "get_queryset", lambda self, request: seen_only)
    assert "args.n 1 at once no - - - - " in seen(admin_client, LIST)
    text = seen(admin_client, page_of("args.n"))
    assert "Only who may see all jobs may see the partitions." in text
    assert "args.n 1" not in text
    page = seen(admin_client, job_page(waiting[1]))
    assert str(waiting[0]) not in page
    assert "Held by a job that you may not see." in page


@pytest.mark.slow
def test_redacted_values_are_on_no_page(admin_client, handlers):
    @job("bank.pay", redact=["iban"], limit=Limit(key=["args.iban"], running=1))
    def pay(iban):
        pass

    ids = [pay.enqueue(iban=SECRET).job.id for _ in range(2)]
    take(), take()
    for url in (page_of("args.iban"), DASHBOARD, job_page(ids[1])):
        assert_hidden(seen(admin_client, url))
