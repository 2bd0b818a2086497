"""The list of jobs: what it shows, finds and refuses, and what that costs."""

import re
from datetime import UTC, datetime, timedelta
from html import unescape
from urllib.parse import parse_qs, urlencode, urlsplit
from uuid import UUID

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy, lifecycle
from django_ojs_unique.admin import base, dates, job_list
from django_ojs_unique.admin.filters import ErrorFilter
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.integrity import Kind, verify
from django_ojs_unique.models import Job, Queue
from tests.support.people import log_in

pytestmark = pytest.mark.django_db

PAGE = "admin:django_ojs_unique_job_changelist"
IGNORE = UniquePolicy(keys=["args"], on_conflict="ignore")


def enqueue(type="email.send", args=None, **options):
    return Job.objects.enqueue(type, args, **options).job


def row(job):
    return Job._base_manager.filter(pk=job.pk)


def claim(job, lease=timedelta(minutes=5)):
    assert lifecycle.claim(row(job), timezone.now(), worker_id="w", token=new_id(), lease=lease)
    return job


def discard(job):
    row(job).update(state="discarded", finished_at=timezone.now(), unique_states=frozenset(), run_at=None)
    return job


def at(job, *date):
    row(job).update(created_at=datetime(*date, tzinfo=UTC))
    return job


def see(client, **parameters):
    """Open the list; return its context and its text."""
    answer = client.get(reverse(PAGE), parameters)
    assert answer.status_code == 200, (parameters, answer)
    return answer.context["cl"], answer.content.decode()


def found(client, **parameters):
    return {job.pk for job in see(client, **parameters)[0].result_list}


# What a row shows


def test_a_row_shows_state_attempt_progress_and_how_many_enqueues_met_it(admin_client):
    job = enqueue(args={"user_id": 1}, unique=IGNORE)
    for _ in range(3):
        enqueue(args={"user_id": 1}, unique=IGNORE)
    claim(job)
    row(job).update(progress=0.25, progress_note="a <b>quarter</b>")
    listed, text = see(admin_client)
    assert [job.met for job in listed.result_list] == [3]
    assert '<progress class="ojs-progress" max="1" value="0.250" aria-label="Progress of email.send">25%' in text
    assert "a &lt;b&gt;quarter&lt;/b&gt;" in text
    assert "1 of 3" in text
    attempts = reverse("admin:django_ojs_unique_suppressedenqueue_changelist")
    assert f'href="{attempts}?q={job.pk}"' in text


def test_an_enqueue_counts_for_the_one_job_that_it_met(admin_client):
    first = enqueue(args={"n": 1}, unique=IGNORE)
    enqueue(args={"n": 1}, unique=IGNORE)
    discard(first)
    second = enqueue(args={"n": 1}, unique=IGNORE)
    for _ in range(2):
        enqueue(args={"n": 1}, unique=IGNORE)
    assert {job.pk: job.met for job in see(admin_client)[0].result_list} == {first.pk: 1, second.pk: 2}


def test_who_may_not_see_suppressed_enqueues_gets_no_link_to_them(client):
    job = enqueue(unique=UniquePolicy(on_conflict="ignore"))
    enqueue(unique=UniquePolicy(on_conflict="ignore"))
    log_in(client, "view_job")
    listed, text = see(client)
    assert listed.result_list[0].met == 1
    assert f"?q={job.pk}" not in text


def test_html_and_control_characters_of_a_job_are_shown_as_text(admin_client):
    job = enqueue(queue="q", key="k")
    row(job).update(type="<script>alert(1)</script>", key="<i>\x1b[31mred")
    _, text = see(admin_client)
    assert "<script>alert" not in text
    assert "\x1b" not in text
    assert r"&lt;i&gt;\x1b[31mred" in text


@pytest.mark.every_database
@pytest.mark.slow
def test_the_list_reads_the_beginnings_of_payloads_only_and_costs_the_same_for_any_number_of_rows(admin_client):
    counts = []
    for more in (5, 95):
        for number in range(more):
            claim(enqueue(args={"n": f"{more}-{number}"}, unique=IGNORE))
        with CaptureQueriesContext(connection) as queries:
            assert len(see(admin_client)[0].result_list) >= more
        for column in ("args", "meta", "errors"):
            whole = re.compile(rf"(SELECT |, )[^ (]*[\"`]{column}[\"`]")
            assert [sql["sql"] for sql in queries if whole.search(sql["sql"])] == []
        counts.append(len(queries))
    assert counts[0] == counts[1]


def test_rows_are_told_apart_by_args_key_and_last_error(admin_client):
    policy = UniquePolicy(keys=["type", "args"], args_keys=["user_id"])
    job = enqueue(args={"user_id": 5, "longer_ü": "<b>ü</b>\x1b"}, unique=policy)
    row(job).update(errors=[{"type": "OSError", "message": "old"}, {"type": "E", "message": "<i>new</i>"}])
    enqueue("other.job")
    text = see(admin_client)[1]
    assert "user_id=5, longer_ü=&quot;&lt;b&gt;ü&lt;/b&gt;\\u001b&quot;" in text
    assert ">type + args.user_id=5</span>" in text
    assert '<span class="ojs-below ojs-error">E: &lt;i&gt;new&lt;/i&gt;</span>' in text
    assert "OSError" not in text
    assert text.count("not unique</span>") == 1


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{"state": "available"}, {"q": "args:needle"}, {"type": "email.send"}])
def test_filters_and_searches_cost_the_same_for_any_number_of_rows(admin_client, parameters):
    counts = []
    for more in (5, 95):
        for _ in range(more):
            enqueue(args={"text": "needle"})
        with CaptureQueriesContext(connection) as queries:
            see(admin_client, **parameters)
        counts.append(len(queries))
    assert counts[0] == counts[1]


# Filters


@pytest.mark.slow
def test_jobs_are_filtered_by_when_they_finished(admin_client):
    now = timezone.now()
    jobs = {hours: discard(enqueue()) for hours in (0, 3, 100, 1000)}
    for hours, job in jobs.items():
        row(job).update(finished_at=now - timedelta(hours=hours))
    enqueue()
    for span, count in {"hour": 1, "day": 2, "week": 3}.items():
        assert found(admin_client, finished=span) == {job.pk for job in list(jobs.values())[:count]}
    assert found(admin_client, finished="hour", state="completed") == set()
    assert found(admin_client, finished="year") == set()


@pytest.mark.slow
def test_jobs_are_filtered_by_the_type_of_their_last_error(admin_client):
    errors = {"A": [{"type": "B"}, {"type": "A"}], "B": [{"code": "B"}], "none recorded": []}
    jobs = {error: discard(enqueue()) for error in errors}
    for error, job in jobs.items():
        row(job).update(errors=errors[error])
        assert "By last error" not in see(admin_client)[1]
    for error, job in jobs.items():
        assert found(admin_client, error=error, state="discarded") == {job.pk}


def test_a_search_by_the_last_error_looks_at_fewer_jobs(admin_client, monkeypatch):
    monkeypatch.setattr(ErrorFilter, "most", 2)
    old, *_ = (discard(enqueue()) for _ in range(3))
    row(old).update(errors=[{"type": "A"}])
    listed, text = see(admin_client, error="A")
    assert list(listed.result_list) == []
    assert "looked at 2 jobs only" in text


@pytest.mark.slow
def test_each_state_has_a_filter_and_so_have_finished_and_unfinished(admin_client):
    waiting, running, dead = enqueue(), claim(enqueue()), discard(enqueue())
    assert found(admin_client, state="available") == {waiting.pk}
    assert found(admin_client, state="active") == {running.pk}
    assert found(admin_client, state="discarded") == {dead.pk}
    assert found(admin_client, state="unfinished") == {waiting.pk, running.pk}
    assert found(admin_client, state="finished") == {dead.pk}
    for state in ("scheduled", "retryable", "pending", "completed", "cancelled"):
        assert found(admin_client, state=state) == set()


@pytest.mark.slow
def test_queues_and_types_are_offered_without_reading_the_table(admin_client, handlers):
    from django_ojs_unique import job

    @job("report.daily", queue="reports")
    def report():
        pass

    Queue.objects.pause("paused")
    live, dead = enqueue(queue="emails"), discard(enqueue(queue="gone"))
    text = see(admin_client)[1]
    for choice in ("?queue=emails", "?queue=reports", "?queue=paused", "?type=report.daily"):
        assert choice in text
    assert "?queue=gone" not in text
    assert found(admin_client, queue="emails") == {live.pk}
    assert found(admin_client, queue="gone") == {dead.pk}
    assert found(admin_client, type="email.send", queue="gone") == {dead.pk}
    assert found(admin_client, type="email") == set()


@pytest.mark.slow
def test_jobs_that_enqueues_met_and_jobs_beside_a_live_duplicate_can_be_filtered(admin_client):
    met = enqueue(args={"n": 1}, unique=IGNORE)
    enqueue(args={"n": 1}, unique=IGNORE)
    dead = discard(enqueue(args={"n": 2}, unique=IGNORE))
    beside = enqueue(args={"n": 2}, unique=IGNORE)
    alone = enqueue(args={"n": 3}, unique=IGNORE)
    assert found(admin_client, duplicates="met") == {met.pk}
    assert found(admin_client, duplicates="live") == set()
    dead.refresh_from_db()
    dead.retry(force=True)
    assert found(admin_client, duplicates="live") == {dead.pk, beside.pk}
    assert alone.pk not in found(admin_client, duplicates="live")


@pytest.mark.slow
@pytest.mark.every_database
def test_jobs_that_do_not_go_on_are_stuck(admin_client):
    claim(enqueue()), enqueue()
    late, lost = claim(enqueue()), claim(enqueue())
    row(late).update(lease_expires_at=timezone.now() - timedelta(minutes=1))
    row(lost).update(lease_expires_at=None)
    untimed = [enqueue(scheduled_at=timezone.now() + timedelta(hours=1)) for state in ("scheduled", "retryable")]
    for state, job in zip(("scheduled", "retryable"), untimed, strict=True):
        enqueue(scheduled_at=timezone.now() + timedelta(hours=1))
        row(job).update(state=state, run_at=None)
    assert found(admin_client, stuck="yes") == {late.pk, lost.pk}
    assert found(admin_client, stuck="untimed") == {job.pk for job in untimed}
    broken = verify(Job.objects.all()).named
    assert {*broken[Kind.LEASE], *broken[Kind.DUE]} == {lost.pk, *(job.pk for job in untimed)}


@pytest.mark.slow
def test_unique_and_dead_letter_jobs_can_be_filtered(admin_client):
    claim(enqueue())
    fine = claim(enqueue(unique=IGNORE))
    dead = discard(enqueue())
    row(dead).update(dead_letter=True)
    discard(enqueue())
    assert found(admin_client, unique="yes") == {fine.pk}
    assert fine.pk not in found(admin_client, unique="no")
    assert found(admin_client, dead_letter="yes") == {dead.pk}


@pytest.mark.parametrize("name", ["state", "queue", "type", "duplicates", "stuck", "unique", "dead_letter"])
@pytest.mark.parametrize("value", ["nonsense", "\0", "'; DROP TABLE", "%", "x" * 5000, "😀"])
def test_a_choice_that_there_is_not_finds_nothing(admin_client, name, value):
    enqueue()
    assert found(admin_client, **{name: value}) == set()


# Search


@pytest.mark.slow
def test_a_job_is_found_by_id_fingerprint_key_queue_and_type(admin_client):
    job = enqueue("email.send", {"n": 1}, queue="emails", unique=IGNORE)
    keyed = enqueue("event.process", key="inbox", queue="events")
    for term in (
        str(job.pk),
        job.pk.hex,
        job.fingerprint,
        job.fingerprint[:6].upper(),
        "emails",
        "email.s",
        f" {job.pk} ",
    ):
        assert found(admin_client, q=term) == {job.pk}, term
    for term in ("inbox", "events", "event.process"):
        assert found(admin_client, q=term) == {keyed.pk}, term


@pytest.mark.slow
def test_a_job_is_found_by_a_member_of_its_args(admin_client):
    number = enqueue(args={"user_id": 42, "address": {"town": "Köln"}, "urgent": True})
    text = enqueue(args={"user_id": "42"})
    positional = enqueue(args=["first", 7])
    enqueue(args={"user_id": 420})
    assert found(admin_client, q="user_id=42") == {number.pk, text.pk}
    assert found(admin_client, q="args.user_id = 42") == {number.pk, text.pk}
    assert found(admin_client, q="address.town=Köln") == {number.pk}
    assert found(admin_client, q="urgent=true") == {number.pk}
    assert found(admin_client, q="1=7") == {positional.pk}
    assert found(admin_client, q="user_id=4") == set()


@pytest.mark.slow
@pytest.mark.every_database
@pytest.mark.parametrize(
    "text", ["100%", "a_b", 'say "hi"', "back\\slash", "O'Neill", "Köln", "😀", "a\nb", "x{y}[z]", "$.a", "%s"]
)
def test_a_text_is_found_in_the_args_as_it_is(admin_client, text):
    job = enqueue(args={"text": f"before {text} after"})
    enqueue(args={"text": "100 ab back slash x y z"})
    assert found(admin_client, q=f"args:{text}") == {job.pk}
    assert found(admin_client, q=text) == {job.pk}


def test_a_piece_of_json_is_found_in_the_args(admin_client):
    job = enqueue(args={"user_id": 42})
    assert found(admin_client, q='"user_id": 42') == {job.pk}


@pytest.mark.slow
@pytest.mark.every_database
@pytest.mark.parametrize(
    "term",
    [
        *("'", '"', "%", "_", "\\", "%%", "--", ";", "x" * 10_240, "😀" * 600, "😀" * 500, "a" + "\\" * 500),
        *("args:", "args:%", "=", "a=", "=b", "a.b.c.d.e.f.g.h.i=1", "a." * 300 + "a=1", "99999999999=1", "9999=1"),
        *("a=1e999", "a=" + "9" * 400, "a=NaN", "a=null", "a=[1]", "a={", "a__gt=1", 'a"b=1', "$=1", "é=1", "args.=1"),
        *("00000000-0000-0000-0000-000000000000", "{00000000000000000000000000000000}", "ffffff", "f" * 65, "\ufffd"),
    ],
)
def test_no_search_fails(admin_client, term):
    enqueue(args={"text": "x", "list": [1]})
    enqueue(args=["x", 1])
    see(admin_client, q=term)


def test_a_null_character_in_a_search_is_refused_in_words(admin_client):
    assert "Null characters are not allowed" in see(admin_client, q="a\0b")[1]


# The newest only


@pytest.fixture
def small(monkeypatch):
    """Let questions without an index look at the newest three jobs only."""
    monkeypatch.setattr(job_list.JobList, "most_scanned", 3)


CUT = "looked at 3 jobs only, the newest first"


def many(count=5, **options):
    return [at(enqueue(args={"n": n}, **options), 2026, 3, 1 + n) for n in range(count)]


@pytest.mark.parametrize(
    "parameters", [{"type": "email.send"}, {"q": "email.send"}, {"queue": "default"}, {"q": "args:n"}]
)
def test_a_question_without_an_index_looks_at_the_newest_and_says_so(admin_client, small, parameters):
    jobs = many()
    listed, text = see(admin_client, **parameters)
    assert [job.pk for job in listed.result_list] == [job.pk for job in reversed(jobs[2:])]
    assert CUT in text


@pytest.mark.slow
@pytest.mark.parametrize("parameters", [{"type": "email.send"}, {"q": "email.send"}, {"q": "args:n"}])
def test_a_link_looks_further_back_and_another_one_at_the_newest_again(admin_client, small, parameters):
    jobs, seen, url = many(count=8), [], f"{reverse(PAGE)}?{urlencode(parameters)}"
    for _ in range(3):
        answer = admin_client.get(url)
        seen += [job.pk for job in answer.context["cl"].result_list]
        links = re.findall(r'<a href="([^"]+)">Look at (older|the newest)', answer.content.decode())
        older = {kind: reverse(PAGE) + unescape(link) for link, kind in links}
        if "older" in older:
            url = older["older"]
    assert seen == [job.pk for job in reversed(jobs)]
    assert older.keys() == {"the newest"}
    assert "There are no older ones" in answer.content.decode()
    again = admin_client.get(older["the newest"]).context["cl"].result_list
    assert [job.pk for job in again] == [job.pk for job in reversed(jobs[5:])]


def test_three_jobs_that_fit_exactly_are_all(admin_client, small):
    many(count=3)
    assert "Look at older" not in see(admin_client, type="email.send")[1]


@pytest.mark.parametrize("value", ["x", "", "1", "\0"])
def test_what_is_no_id_of_an_older_job_is_refused(admin_client, value):
    answer = admin_client.get(reverse(PAGE), {"older_than": value, "type": "t"})
    assert (answer.status_code, answer.url) == (302, f"{reverse(PAGE)}?e=1")


@pytest.mark.slow
def test_what_an_index_finds_is_found_however_old_it_is_and_nothing_need_be_said(admin_client, small):
    jobs = many(unique=IGNORE)
    for term in (str(jobs[0].pk), jobs[0].fingerprint[:10]):
        listed, text = see(admin_client, q=term)
        assert [job.pk for job in listed.result_list] == [jobs[0].pk]
        assert CUT not in text
    assert CUT not in see(admin_client)[1]
    assert len(found(admin_client, state="available")) == 5


def test_of_a_state_with_many_jobs_the_list_shows_the_newest(admin_client, small, monkeypatch):
    monkeypatch.setattr(job_list, "MOST_COUNTED", 2)
    jobs = many(count=7)
    for job in jobs[:4]:
        discard(job)
    listed, text = see(admin_client, state="discarded")
    assert ([job.pk for job in listed.result_list], CUT in text) == ([], True)
    (link,) = re.findall(r'<a href="([^"]+)">Look at older', text)
    older = admin_client.get(reverse(PAGE) + unescape(link)).context["cl"].result_list
    assert [job.pk for job in older] == [job.pk for job in reversed(jobs[1:4])]
    assert CUT not in see(admin_client, state="available")[1], "the newest three fill all pages"


def test_of_jobs_without_a_time_the_list_looks_at_the_newest_and_says_so(admin_client, small):
    jobs = many(count=7, scheduled_at=timezone.now() + timedelta(hours=1))
    Job._base_manager.update(run_at=None)
    listed, text = see(admin_client, stuck="untimed")
    assert ({job.pk for job in listed.result_list}, CUT in text) == ({job.pk for job in jobs[-3:]}, True)


def test_what_an_index_finds_is_searched_as_a_whole(admin_client, small):
    jobs = many()
    discard(jobs[0])
    assert found(admin_client, state="discarded", q="args:n") == {jobs[0].pk}


def test_a_day_and_other_filters_reach_further_back(admin_client, small):
    jobs = many()
    day = {"created_at__year": 2026, "created_at__month": 3, "created_at__day": 1}
    listed, text = see(admin_client, q="n=0", **day)
    assert [job.pk for job in listed.result_list] == [jobs[0].pk]
    assert CUT not in text
    discard(jobs[0])
    assert found(admin_client, type="email.send", state="discarded") == {jobs[0].pk}


def test_a_small_table_is_searched_as_a_whole(admin_client, small):
    jobs = many(3)
    listed, text = see(admin_client, q="n=0")
    assert ([job.pk for job in listed.result_list], CUT in text) == ([jobs[0].pk], False)


# Dates


def links(client, **parameters):
    """Return what each date above the list leads to."""
    above = see(client, **parameters)[0].dates
    return {
        choice["title"]: {
            name: int(value) for name, (value,) in parse_qs(urlsplit(choice.get("link", "")).query).items()
        }
        for choice in above["choices"]
    }


@pytest.mark.slow
def test_the_dates_lead_from_years_to_days_that_have_jobs(admin_client):
    first = at(enqueue(), 2024, 12, 31, 12)
    at(enqueue(), 2026, 2, 1, 12)
    at(enqueue(), 2026, 2, 28, 12)
    assert list(links(admin_client)) == ["2024", "2026"]
    assert list(links(admin_client, created_at__year=2026)) == ["February 2026"]
    days = links(admin_client, created_at__year=2026, created_at__month=2)
    assert list(days) == ["February 1", "February 28"]
    assert days["February 28"] == {"created_at__year": 2026, "created_at__month": 2, "created_at__day": 28}
    assert found(admin_client, **links(admin_client, created_at__year=2024, created_at__month=12)["December 31"]) == {
        first.pk
    }


@pytest.mark.slow
def test_the_dates_of_a_large_table_lead_from_the_first_job_to_the_last(admin_client, monkeypatch):
    monkeypatch.setattr(dates, "MOST_LOOKED_AT", 2)
    at(enqueue(), 2026, 2, 3, 12)
    for _ in range(3):
        job = at(enqueue(), 2026, 2, 5, 12)
    at(enqueue(), 2026, 2, 6, 12)
    assert list(links(admin_client)) == ["February 3", "February 4", "February 5", "February 6"]
    at(job, 2020, 2, 5, 12)
    at(enqueue(), 2027, 1, 1, 12)
    assert list(links(admin_client)) == ["2026", "2027"]
    assert list(links(admin_client, created_at__year=2026)) == [
        f"{datetime(2026, month, 1):%B} 2026" for month in range(2, 13)
    ]
    assert links(admin_client, created_at__year=2025) == {}


@pytest.mark.parametrize("order", ["5", "-5"])
def test_a_day_has_its_jobs_in_both_orders_and_on_all_pages(admin_client, monkeypatch, order):
    monkeypatch.setattr("django_ojs_unique.admin.jobs.JobAdmin.list_per_page", 2)
    jobs = [job.pk for job in many(3)]
    _, later, _ = (at(enqueue(), 2026, 3, date, 1) for date in (1, 2, 3))
    own = at(Job.objects.enqueue("email.send", id=UUID(int=7)).job, 2026, 3, 2, 2)
    expected = [own.pk, jobs[1], later.pk]
    day = {"created_at__year": 2026, "created_at__month": 3, "created_at__day": 2, "o": order}
    shown = [job.pk for page in (1, 2) for job in see(admin_client, p=page, **day)[0].result_list]
    assert shown == (expected if order == "5" else expected[::-1])


def test_a_day_is_one_of_the_time_zone_of_the_project(admin_client):
    job = at(enqueue(), 2026, 3, 28, 23, 30)  # in Berlin half past midnight, on the 29th, which has 23 hours
    last = at(enqueue(), 2026, 3, 29, 21, 59)
    at(enqueue(), 2026, 3, 29, 22, 0)
    days = links(admin_client)  # all are of one month
    assert list(days) == ["March 29", "March 30"]
    assert found(admin_client, **days["March 29"]) == {job.pk, last.pk}


def test_without_jobs_there_are_no_dates(admin_client):
    assert links(admin_client) == {}


@pytest.mark.parametrize(
    "parameters",
    [
        {"created_at__year": "abc"},
        {"created_at__year": "0"},
        {"created_at__year": "1"},
        {"created_at__year": "9999"},
        {"created_at__year": "9" * 5000},
        {"created_at__month": "5"},
        {"created_at__year": "2026", "created_at__day": "5"},
        {"created_at__year": "2026", "created_at__month": "13"},
        {"created_at__year": "2026", "created_at__month": "2", "created_at__day": "30"},
        {"created_at__year": "2026", "created_at__month": "\0"},
    ],
)
def test_a_date_that_there_is_not_leads_to_the_whole_list(admin_client, parameters):
    enqueue()
    answer = admin_client.get(reverse(PAGE), parameters)
    assert (answer.status_code, answer.headers["Location"]) == (302, f"{reverse(PAGE)}?e=1")


# What may not be asked


@pytest.mark.parametrize(
    "lookup",
    [
        *("result__startswith", "args__contains", "lease_token", "worker_id", "id__gt", "created_at__gte", "errors"),
        *("created_at__week_day", "suppressed_enqueues__args", "replaced_by__result", "state__exact", "nonsense"),
    ],
)
def test_no_other_column_can_be_asked_about(admin_client, lookup):
    assert admin_client.get(reverse(PAGE), {lookup: "1"}).status_code == 400


@pytest.mark.slow
@pytest.mark.parametrize("order", [*"123478", "-1", "99", "x", "1.2.-3", "\0"])
def test_no_column_but_the_age_gives_an_order(admin_client, order):
    jobs = many(3)
    listed, _ = see(admin_client, o=order)
    assert [job.pk for job in listed.result_list] == [job.pk for job in reversed(jobs)]


@pytest.mark.slow
def test_the_age_gives_both_orders(admin_client):
    jobs = [job.pk for job in many(3)]
    assert [job.pk for job in see(admin_client, o="5")[0].result_list] == jobs
    assert [job.pk for job in see(admin_client, o="-5")[0].result_list] == jobs[::-1]
    assert see(admin_client)[1].count("sortable") == 1


@pytest.mark.parametrize("page", ["0", "-1", "2", "x", "9" * 5000])
def test_a_page_that_there_is_not_fails_nowhere(admin_client, page):
    enqueue()
    assert admin_client.get(reverse(PAGE), {"p": page}).status_code in (200, 302)


def test_nobody_sees_the_list_without_permission(client):
    enqueue()
    log_in(client, "cancel_job")
    assert client.get(reverse(PAGE)).status_code == 403


# Numbers


@pytest.mark.slow
def test_a_number_that_was_not_counted_to_its_end_is_not_given(admin_client, monkeypatch):
    for module in (base, job_list):
        monkeypatch.setattr(module, "MOST_COUNTED", 3)
    for parameters in ({}, {"state": "available"}):
        Job.objects.all().delete()
        for _ in range(3):
            enqueue()
        listed, text = see(admin_client, **parameters)
        assert (listed.result_count, "More than" in text) == (3, False)
        enqueue()
        listed, text = see(admin_client, **parameters)
        assert (listed.result_count, "More than 3 jobs" in text, "3 results" in text) == (3, True, False)
