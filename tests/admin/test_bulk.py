"""Actions on all jobs that match the list's filters: what is asked, a thousand per page, and how far it is."""

import re
from html import unescape

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from django_ojs_unique import UniquePolicy
from django_ojs_unique.admin import bulk
from django_ojs_unique.db import inserts
from django_ojs_unique.models import Job
from django_ojs_unique.operations import rows
from tests.admin.test_job_actions import complete, discard, enqueue, fresh
from tests.support.people import log_in

pytestmark = pytest.mark.django_db

PAGE = "admin:django_ojs_unique_job_changelist"


def send(client, action, job, query="", **fields):
    """Choose an action for all that match, with one row ticked as the browser does."""
    data = {"action": action, "_selected_action": job.pk, "select_across": "1", **fields}
    answer = client.post(reverse(PAGE) + query, data)
    assert answer.status_code == 200
    return answer


def form_of(answer):
    """Return the fields of the form that the page has, as the browser would send them; None if it has none."""
    page = answer.content.decode()
    form = page.partition('<form method="post"')[2].partition("</form>")[0]
    found = re.findall(r'<input type="(?:hidden|radio)" name="(\w+)" value="([^"]*)"( checked)?', form)
    radios = {"resolution"}
    return {name: unescape(value) for name, value, checked in found if name not in radios or checked} or None


def words(answer):
    text = re.sub(r"<[^>]+>", " ", answer.content.decode().partition("content-main")[2])
    return " ".join(unescape(text).split())


def carry_out(client, action, job, query="", **fields):
    """Answer yes, and go on until the last page; return all pages."""
    pages = [send(client, action, job, query)]
    while form := form_of(pages[-1]):
        pages.append(client.post(reverse(PAGE) + query, {**form, **fields}))
        assert len(pages) < 20
    return pages


@pytest.fixture
def two_per_page(monkeypatch):
    monkeypatch.setattr(inserts, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(rows, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(bulk, "ROWS_AT_ONCE", 2)


def test_the_first_page_says_how_many_of_which_state_and_changes_nothing(admin_client):
    jobs = [enqueue(), enqueue(), discard(enqueue()), enqueue("other")]
    page = words(send(admin_client, "cancel", jobs[0], "?type=email.send"))
    assert "available 2 Cancelled discarded 1 Nothing: they stay as they are" in page
    assert "No, take me back" in page
    assert [fresh(job).state for job in jobs] == ["available", "available", "discarded", "available"]
    assert not LogEntry.objects.exists()


@pytest.mark.slow
def test_all_that_match_are_changed_page_after_page_with_a_bar(admin_client, two_per_page):
    chosen, other = [enqueue() for _ in range(5)], enqueue("other")
    first, *steps, last = carry_out(admin_client, "cancel", chosen[0], "?type=email.send")
    bars = [re.search(r'<progress[^>]* max="(\d+)" value="(\d+)"', step.content.decode()).groups() for step in steps]
    assert bars == [("5", "2"), ("5", "4")]
    assert "Yes, cancel: 5 jobs" in first.content.decode()
    assert "Cancelled: 5 jobs." in words(last)
    assert {fresh(job).state for job in chosen} == {"cancelled"}
    assert fresh(other).state == "available"
    assert set(LogEntry.objects.values_list("object_id", "change_message")) == {
        (str(job.pk), "Cancelled.") for job in chosen
    }


def test_without_a_script_the_page_has_a_button_to_go_on_and_one_to_stop(admin_client, two_per_page):
    jobs = [enqueue() for _ in range(3)]
    asked = send(admin_client, "cancel", jobs[0])
    step = admin_client.post(reverse(PAGE), form_of(asked))
    assert 'type="submit" value="Continue"' in step.content.decode()
    assert 'value="Stop here"' in step.content.decode()
    assert "bulk.js" in step.content.decode()
    stopped = admin_client.post(reverse(PAGE), {**form_of(step), "stop": "Stop here"}, follow=True)
    assert [str(message) for message in stopped.context["messages"]] == ["Stopped. Cancelled: 2 of 3 jobs."]
    assert sorted(fresh(job).state for job in jobs) == ["available", "cancelled", "cancelled"]


def test_jobs_that_are_enqueued_after_the_question_are_not_changed(admin_client):
    job = enqueue()
    form = form_of(send(admin_client, "cancel", job))
    later = enqueue()
    admin_client.post(reverse(PAGE), form)
    assert (fresh(job).state, fresh(later).state) == ("cancelled", "available")


@pytest.mark.slow
@pytest.mark.parametrize("resolution", ["skip", "replace", "force"])
def test_a_retry_asks_once_what_to_do_about_live_duplicates(admin_client, two_per_page, resolution):
    dead = [discard(enqueue(f"t{number}", unique=UniquePolicy())) for number in range(3)]
    live = enqueue("t1", unique=UniquePolicy())
    pages = carry_out(admin_client, "retry", dead[0], resolution=resolution)
    assert "Where a live duplicate exists" in words(pages[0])
    assert all("Where a live duplicate" not in words(page) for page in pages[1:])
    became = {"skip": ("discarded", "available"), "replace": ("available", "cancelled")}
    assert (fresh(dead[1]).state, fresh(live).state) == became.get(resolution, ("available", "available"))
    assert [fresh(dead[0]).state, fresh(dead[2]).state] == ["available", "available"]
    refused = f"Cannot retry job {dead[1].pk}: job {live.pk} is a live duplicate (available)."
    assert (refused in words(pages[-1])) is (resolution == "skip")
    assert ("Refused: 1." in words(pages[-1])) is (resolution == "skip")


@pytest.mark.parametrize("action", ["enqueue_again", "delete_selected", "release_unique_key", "retry"])
def test_every_action_can_be_for_all_that_match(admin_client, action):
    job = discard(enqueue(unique=UniquePolicy()))
    if action == "retry":
        Job._base_manager.filter(pk=job.pk).update(state="retryable", finished_at=None)
    carry_out(admin_client, action, job)
    rows = Job.objects.order_by("created_at").values_list("state", "fingerprint")
    assert [(state, fingerprint is None) for state, fingerprint in rows] == {
        "enqueue_again": [("discarded", False), ("available", False)],
        "delete_selected": [],
        "release_unique_key": [("discarded", True)],
        "retry": [("available", False)],
    }[action]
    assert LogEntry.objects.count() == 1


def test_without_its_permission_nothing_is_asked_and_nothing_done(client):
    job = enqueue()
    log_in(client, "view_job", "retry_job")
    data = {"action": "cancel", "_selected_action": job.pk, "select_across": "1", "_confirmed": "yes"}
    answer = client.post(reverse(PAGE), data, follow=True)
    assert [str(message) for message in answer.context["messages"]] == ["No action selected."]
    assert fresh(job).state == "available"


@pytest.mark.parametrize("changed", [{"token": "x"}, {"token": ""}, {"action": "retry"}])
def test_a_form_that_somebody_has_changed_asks_again(admin_client, changed):
    job = enqueue()
    form = form_of(send(admin_client, "cancel", job))
    page = words(admin_client.post(reverse(PAGE), {**form, **changed}))
    assert "This is for all jobs that match" in page
    assert fresh(job).state == "available"


def test_the_answer_to_one_question_is_no_answer_to_another_list(admin_client):
    job = enqueue()
    form = form_of(send(admin_client, "cancel", job, "?state=discarded"))
    assert form is None
    discard(enqueue())
    form = form_of(send(admin_client, "retry", job, "?state=discarded"))
    page = words(admin_client.post(reverse(PAGE) + "?type=email.send", {**form, "resolution": "skip"}))
    assert "This is for all jobs that match" in page


@pytest.mark.slow
@pytest.mark.parametrize("step", ["", "7", "-1", "x" * 500])
def test_a_page_that_is_sent_twice_changes_nothing_twice(admin_client, two_per_page, step):
    jobs = [complete(enqueue()) for _ in range(3)]
    form = form_of(send(admin_client, "enqueue_again", jobs[0]))
    first = admin_client.post(reverse(PAGE), form)
    again = admin_client.post(reverse(PAGE), form)
    assert Job.objects.count() == 5
    assert (form_of(again)["step"], form_of(first)["step"]) == ("1", "1")
    admin_client.post(reverse(PAGE), {**form, "step": step})
    assert Job.objects.count() == 5
    last = admin_client.post(reverse(PAGE), form_of(again))
    assert "Enqueued again: 3 jobs." in words(last)
    assert Job.objects.count() == 6


@pytest.mark.parametrize("action", ["delete_selected", "cancel"])
def test_a_bulk_action_does_not_go_on_with_what_another_reading_of_the_search_finds(admin_client, two_per_page, action):
    held = [Job.objects.enqueue(f"t{number}", key="reports").job for number in range(2)]
    others = [enqueue(queue="reports") for _ in range(3)]
    first, *_, last = carry_out(admin_client, action, held[0], "?q=reports")
    assert "available 2" in words(first)
    assert ": 2 jobs." in words(last)
    assert {fresh(job).state for job in others} == {"available"}


def test_jobs_that_changed_after_the_question_are_counted_at_the_end(admin_client):
    jobs = [enqueue() for _ in range(3)]
    form = form_of(send(admin_client, "cancel", jobs[0]))
    complete(jobs[1])
    assert "Cancelled: 2 jobs. Changed meanwhile: 1." in words(admin_client.post(reverse(PAGE), form))


def test_the_page_says_why_some_of_a_state_stay_and_what_the_others_lose(admin_client):
    old = enqueue(unique=UniquePolicy())
    enqueue(unique=UniquePolicy(on_conflict="replace")).cancel()
    page = words(send(admin_client, "retry", old))
    assert "cancelled 1 Retried" in page
    assert "cancelled 1 Nothing: they were replaced or pruned" in page
    assert "windows that were promised end now" in words(send(admin_client, "delete_selected", old))


def test_it_says_that_the_list_has_not_looked_at_all_jobs(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.job_list.JobList.most_scanned", 2)
    jobs = [enqueue() for _ in range(3)]
    page = send(admin_client, "cancel", jobs[2], "?type=email.send")
    assert "the list looked at the newest jobs only" in words(page)
    carry_out(admin_client, "cancel", jobs[2], "?type=email.send")
    assert sorted(fresh(job).state for job in jobs) == ["available", "cancelled", "cancelled"]


def test_it_is_for_all_jobs_that_an_index_finds_even_if_the_list_shows_some_of_them(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.job_list.JobList.most_scanned", 2)
    monkeypatch.setattr("django_ojs_unique.admin.job_list.MOST_COUNTED", 1)
    jobs = [enqueue() for _ in range(4)]
    assert "the list looked at the newest" not in words(send(admin_client, "cancel", jobs[0], "?state=available"))
    carry_out(admin_client, "cancel", jobs[0], "?state=available")
    assert {fresh(job).state for job in jobs} == {"cancelled"}


def test_when_no_job_is_in_a_state_for_it_there_is_nothing_to_press(admin_client):
    job = complete(enqueue())
    answer = send(admin_client, "cancel", job)
    assert "completed 1 Nothing: they stay as they are" in words(answer)
    assert form_of(answer) is None


@pytest.mark.slow
def test_a_page_costs_the_same_for_any_number_of_jobs(admin_client):
    counts = []
    for number in (2, 50):
        jobs = [enqueue(f"t.n{number}") for _ in range(number)]
        form = form_of(send(admin_client, "cancel", jobs[0], f"?type=t.n{number}"))
        with CaptureQueriesContext(connection) as queries:
            admin_client.post(f"{reverse(PAGE)}?type=t.n{number}", form)
        counts.append(len(queries))
    assert counts[0] == counts[1]
    assert set(Job.objects.values_list("state", flat=True)) == {"cancelled"}


def test_the_list_offers_all_that_match_only_where_there_are_other_pages(admin_client, monkeypatch):
    enqueue()
    assert "Choose all that match" not in admin_client.get(reverse(PAGE)).content.decode()
    monkeypatch.setattr("django_ojs_unique.admin.jobs.JobAdmin.list_per_page", 1)
    enqueue()
    assert "Choose all that match" in admin_client.get(reverse(PAGE)).content.decode()
