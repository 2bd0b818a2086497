"""The page of duplicates: what is suppressed most, which live jobs share a fingerprint, and how to keep one of them."""

import json
import re
import urllib.parse
from datetime import timedelta
from threading import Thread

import pytest
from django.contrib.admin.models import LogEntry
from django.db import OperationalError, connection, transaction
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import DuplicateJob, UniquePolicy
from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.ojs.states import INCOMPLETE
from django_ojs_unique.reporting import duplicates as report
from django_ojs_unique.signals import job_cancelled
from tests.support.jobs import row
from tests.support.people import log_in

pytestmark = pytest.mark.django_db

PAGE = "admin:django_ojs_unique_duplicates"
RESOLVE = "admin:django_ojs_unique_resolve"
ONE = "admin:django_ojs_unique_duplicates_of"
BY_ARGS = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
HTML = "<script>alert(1)</script>"


def enqueue(number=1, type="email.send", **options):
    return Job.objects.enqueue(type, {"user": number}, unique=BY_ARGS, **options)


def live_twice(number=1, count=2, type="email.send"):
    """Make several live jobs of one fingerprint, the oldest first; only the newest holds it."""
    jobs, fingerprint = [], f"{number:064x}"
    for age in range(count, 0, -1):
        Job._base_manager.filter(fingerprint=fingerprint).update(unique_states=frozenset())
        job = Job.objects.get(pk=Job.objects.enqueue(type, {"user": number}).job.pk)
        created_at = timezone.now() - timedelta(minutes=age)
        row(job).update(fingerprint=fingerprint, unique_states=INCOMPLETE, created_at=created_at)
        job.refresh_from_db()
        jobs.append(job)
    return jobs


def suppress(number=1, times=1, **options):
    for _ in range(times):
        enqueue(number, **options)


def finish(job):
    Job._base_manager.filter(pk=job.pk).update(state="completed", finished_at=timezone.now(), unique_states=frozenset())


def states(jobs):
    return [Job.objects.get(pk=job.pk).state for job in jobs]


def text(answer):
    assert answer.status_code == 200
    return answer.content.decode()


def said(answer):
    return [str(message) for message in answer.context["messages"]]


# What was suppressed


def test_the_most_suppressed_come_first_with_their_outcomes_and_the_job_that_holds_them(admin_client):
    first = enqueue(1).job
    suppress(1, times=3)
    enqueue(2)
    suppress(2)
    with pytest.raises(DuplicateJob):
        Job.objects.enqueue("email.send", {"user": 1}, unique=UniquePolicy(keys=["type", "args"]))
    rows = admin_client.get(reverse(PAGE)).context["met"]["rows"]
    assert [(row["count"], row["rejected"], row["deduplicated"], row["replaced"]) for row in rows] == [
        (4, 1, 3, 0),
        (1, 0, 1, 0),
    ]
    assert rows[0]["args"] == '{"user": 1}'
    assert str(first.pk) in rows[0]["holder"]
    assert "available" in rows[0]["holder"]
    assert first.fingerprint in rows[0]["attempts"]


def test_a_replacement_is_counted_as_one_and_the_new_job_holds_the_fingerprint(admin_client):
    enqueue(1)
    replacing = UniquePolicy(keys=["type", "args"], on_conflict="replace")
    new = Job.objects.enqueue("email.send", {"user": 1}, unique=replacing).job
    (row,) = admin_client.get(reverse(PAGE)).context["met"]["rows"]
    assert row["replaced"] == 1
    assert str(new.pk) in row["holder"]


def test_a_fingerprint_whose_job_has_finished_is_held_by_nobody(admin_client):
    job = enqueue().job
    suppress()
    finish(job)
    assert "nobody holds it now" in text(admin_client.get(reverse(PAGE)))


def test_a_finished_job_holds_its_fingerprint_until_its_window_ends():
    now = timezone.now()
    policy = UniquePolicy(keys=["type"], period="PT1H", states=["available", "completed"])
    job = Job.objects.enqueue("report", unique=policy).job
    Job._base_manager.filter(pk=job.pk).update(state="completed", finished_at=now)
    assert report.holders(Job.objects.all(), [job.fingerprint], now)[job.fingerprint].pk == job.pk
    assert report.holders(Job.objects.all(), [job.fingerprint], now + timedelta(hours=2)) == {}


def test_a_live_job_without_the_unique_key_is_named_as_the_holder():
    old, new = live_twice()
    Job._base_manager.update(unique_states=frozenset())
    holders = report.holders(Job.objects.all(), [old.fingerprint], timezone.now())
    assert holders[old.fingerprint].pk == new.pk


@pytest.mark.parametrize(("span", "count"), [("hour", 0), ("day", 1), ("week", 1), ("nonsense", 1)])
def test_only_the_chosen_span_counts(admin_client, span, count):
    enqueue()
    suppress()
    SuppressedEnqueue.objects.update(created_at=timezone.now() - timedelta(hours=2))
    answer = admin_client.get(reverse(PAGE), {"span": span})
    assert len(answer.context["met"]["rows"]) == count
    assert ("Nothing was suppressed in the last hour" in text(answer)) == (not count)


def test_no_more_attempts_are_counted_than_a_page_can_bear(admin_client, monkeypatch):
    monkeypatch.setattr(report, "MOST_ATTEMPTS_COUNTED", 2)
    enqueue()
    suppress(times=5)
    answer = admin_client.get(reverse(PAGE))
    assert answer.context["met"]["rows"][0]["count"] == 2
    assert "Counted are the newest 2 attempts only" in text(answer)


def test_args_are_shortened_readable_and_never_rendered(admin_client):
    args = {"text": f"ü{HTML}\x1b[31m" + "x" * 1_000_000}
    for _ in range(2):
        Job.objects.enqueue("email.send", args, unique=BY_ARGS)
    shown = text(admin_client.get(reverse(PAGE)))
    assert HTML not in shown
    assert "\x1b" not in shown
    assert len(shown) < 30_000


def test_a_whole_value_is_shown_without_escapes_of_its_letters(admin_client):
    for _ in range(2):
        Job.objects.enqueue("email.send", {"text": "Grüße"}, unique=BY_ARGS)
    assert admin_client.get(reverse(PAGE)).context["met"]["rows"][0]["args"] == '{"text": "Grüße"}'


def test_without_the_permission_attempts_are_neither_shown_nor_found(client):
    job = enqueue().job
    suppress()
    Job.objects.all().delete()
    log_in(client, "view_job")
    page = text(client.get(reverse(PAGE)))
    assert "view_suppressedenqueue" in page
    assert job.fingerprint[:12] not in page
    assert "has" in said(client.get(reverse(PAGE), {"q": job.fingerprint}))[0]
    one = text(client.get(reverse(ONE, args=[job.fingerprint])))
    assert "Nobody has this fingerprint" in one
    assert "no enqueue met it" not in one


def test_who_may_not_view_jobs_sees_no_page(client):
    log_in(client, "view_suppressedenqueue", "cancel_job")
    assert client.get(reverse(PAGE)).status_code == 403
    assert client.get(reverse(ONE, args=["a" * 64])).status_code == 403
    assert client.post(reverse(RESOLVE), {}).status_code == 403


# Looking up


def test_a_fingerprint_is_found_by_itself_its_beginning_and_a_jobs_id(admin_client):
    job = enqueue().job
    for term in (job.fingerprint, job.fingerprint[:8], f" {job.fingerprint[:9].upper()} ", str(job.pk), job.pk.hex):
        answer = admin_client.get(reverse(PAGE), {"q": term})
        assert answer.url == reverse(ONE, args=[job.fingerprint])


def test_a_fingerprint_that_only_suppressed_enqueues_have_is_found(admin_client):
    job = enqueue().job
    suppress()
    Job.objects.all().delete()
    answer = admin_client.get(reverse(PAGE), {"q": job.fingerprint[:10]}, follow=True)
    assert "answered with the existing job" in text(answer)
    assert "No job has this fingerprint any more" in text(answer)


def test_several_fingerprints_of_one_beginning_are_listed(admin_client):
    live_twice(1), live_twice(2)
    answer = admin_client.get(reverse(PAGE), {"q": "0" * 8})
    assert len(answer.context["matches"]) == 2


@pytest.mark.parametrize(
    ("term", "answer"),
    [
        ("0123456789", "No job has 0123456789"),
        ("00000000-0000-7000-8000-000000000000", "No job has 00000000-"),
        ("abc", "at least 8 characters"),
        (HTML, "at least 8 characters"),
        ("\x00" * 9, "at least 8 characters"),
        ("é" * 5000, "at least 8 characters"),
    ],
)
def test_a_term_that_nobody_has_gets_a_friendly_answer(admin_client, term, answer):
    enqueue()
    page = admin_client.get(reverse(PAGE), {"q": term})
    assert answer in said(page)[0]
    assert HTML not in text(page)


def test_a_job_without_a_fingerprint_is_said_to_have_none(admin_client):
    job = Job.objects.enqueue("email.send").job
    assert "takes no part in uniqueness" in said(admin_client.get(reverse(PAGE), {"q": str(job.pk)}))[0]


# Live duplicates


def test_a_page_without_rows_explains_itself(admin_client):
    page = text(admin_client.get(reverse(PAGE)))
    assert "Nothing was suppressed in the last day" in page
    assert "There are none: each fingerprint has one unfinished job at most." in page


def test_live_duplicates_are_grouped_the_oldest_first_and_say_which_holds_the_key(admin_client):
    enqueue(99)
    old, new = live_twice(1)
    finished, alone = live_twice(2)
    finish(finished)
    (group,) = admin_client.get(reverse(PAGE)).context["groups"]
    assert [(job["id"], job["holds"]) for job in group["jobs"]] == [(old.pk, False), (new.pk, True)]
    assert group["count"] == 2
    assert alone.pk not in [job["id"] for job in group["jobs"]]


def test_a_job_retried_by_force_beside_a_live_one_is_a_duplicate(admin_client):
    dead = enqueue().job
    Job._base_manager.filter(pk=dead.pk).update(
        state="discarded", finished_at=timezone.now(), unique_states=frozenset(), created_at=dead.created_at
    )
    enqueue()
    Job.objects.get(pk=dead.pk).retry(force=True)
    (group,) = admin_client.get(reverse(PAGE)).context["groups"]
    assert [(job["id"] == dead.pk, job["holds"]) for job in group["jobs"]] == [(True, False), (False, True)]


@pytest.mark.slow
def test_a_large_group_shows_its_oldest_its_newest_and_how_many_there_are_between(admin_client):
    jobs = live_twice(count=23)
    answer = admin_client.get(reverse(PAGE))
    (group,) = answer.context["groups"]
    assert [job["id"] for job in group["jobs"]] == [job.pk for job in [*jobs[:19], jobs[-1]]]
    assert "… and 3 more" in text(answer)


def test_groups_are_paged_by_their_fingerprints(admin_client, monkeypatch):
    monkeypatch.setattr(report, "MOST_GROUPS", 2)
    for number in (1, 2, 3):
        live_twice(number)
    first = admin_client.get(reverse(PAGE))
    assert [group["value"][-1] for group in first.context["groups"]] == ["1", "2"]
    url = re.search(r'href="(\?span=day&amp;after=[^"#]+)', text(first)).group(1).replace("&amp;", "&")
    second = admin_client.get(reverse(PAGE) + url)
    assert [group["value"][-1] for group in second.context["groups"]] == ["3"]
    assert "First page" in text(second)
    assert "Next page" not in text(second)


def test_a_page_that_looked_at_enough_jobs_says_that_the_search_goes_on(admin_client, monkeypatch):
    monkeypatch.setattr(report, "MOST_RELEASED_LOOKED_AT", 1)
    for number in (1, 2, 3):
        finish(live_twice(number)[1])
    assert "the search goes on with the next page" in text(admin_client.get(reverse(PAGE)))
    fingerprint = f"{3:064x}"
    assert "There are no more." in text(admin_client.get(reverse(PAGE), {"after": fingerprint}))


@pytest.mark.parametrize("after", ["\x00", HTML, "z" * 10_000, "é"])
def test_a_malformed_place_to_go_on_from_is_borne(admin_client, after):
    assert HTML not in text(admin_client.get(reverse(PAGE), {"after": after}))


@pytest.mark.slow
def test_the_queries_do_not_grow_with_the_rows(admin_client):
    def queries(url):
        with CaptureQueriesContext(connection) as captured:
            assert admin_client.get(url).status_code == 200
        return len(captured)

    live_twice(1), enqueue(100), suppress(100)
    one, of_one = queries(reverse(PAGE)), queries(reverse(ONE, args=[f"{1:064x}"]))
    for number in range(2, 9):
        live_twice(number, count=4), enqueue(100 + number), suppress(100 + number, times=3)
    live_twice(1, count=5)
    assert queries(reverse(PAGE)) == one
    assert queries(reverse(ONE, args=[f"{1:064x}"])) == of_one


@pytest.mark.slow
def test_types_queues_and_fingerprints_with_html_are_escaped(admin_client):
    for job in live_twice():
        Job._base_manager.filter(pk=job.pk).update(type=HTML, queue=HTML, fingerprint=f"{HTML}/\n\x1b")
    fingerprint = f"{HTML}/\n\x1b"
    page = text(admin_client.get(reverse(PAGE)))
    assert HTML not in page
    assert "\x1b" not in page
    url = admin_client.get(reverse(PAGE)).context["groups"][0]["link"].split('"')[1]
    one = admin_client.get(url)
    assert HTML not in text(one)
    assert len(one.context["jobs"]) == 2
    confirmation = admin_client.post(reverse(RESOLVE), {"keep": f"newest:{urllib.parse.quote(fingerprint)}"})
    assert len(confirmation.context["plans"]) == 1
    assert HTML not in text(confirmation)
    assert "\x1b" not in text(confirmation)


# The page of one fingerprint


def test_the_page_of_a_fingerprint_tells_its_history(admin_client):
    enqueue(1)
    replacing = UniquePolicy(keys=["type", "args"], on_conflict="replace")
    new = Job.objects.enqueue("email.send", {"user": 1}, unique=replacing).job
    suppress(1)
    answer = admin_client.get(reverse(ONE, args=[new.fingerprint]))
    first, second = answer.context["jobs"]
    assert (second["id"], second["holds"], first["holds"]) == (new.pk, True, False)
    assert str(new.pk) in first["replaced_by"]
    assert [attempt["outcome"] for attempt in answer.context["attempts"]] == [
        "answered with the existing job",
        "the existing job was cancelled for the new one",
    ]
    assert "on_conflict" in answer.context["policy"]


def test_a_long_history_keeps_what_lives_and_what_finished_last(admin_client, monkeypatch):
    monkeypatch.setattr(report, "MOST_IN_HISTORY", 3)
    jobs = live_twice(count=5)
    for job in jobs[1:]:
        finish(job)
    answer = admin_client.get(reverse(ONE, args=[jobs[0].fingerprint]))
    assert [job["id"] for job in answer.context["jobs"]] == [jobs[0].pk, jobs[3].pk, jobs[4].pk]
    assert "All of them" in text(answer)


def test_a_broken_policy_is_shown_as_it_is_stored(admin_client):
    job = enqueue().job
    Job._base_manager.filter(pk=job.pk).update(unique={"keys": 7, "html": HTML})
    page = admin_client.get(reverse(ONE, args=[job.fingerprint]))
    assert HTML not in text(page)
    assert "keys" in page.context["policy"]


@pytest.mark.parametrize("fingerprint", ["f" * 64, "nobody", "_00", "\x00", "a/b", "é"])
def test_a_fingerprint_that_nobody_has_gets_a_page_that_says_so(admin_client, fingerprint):
    assert "Nobody has this fingerprint" in text(admin_client.get(reverse(ONE, args=[fingerprint])))


# Resolving


def confirm(client, form):
    """Send the form of the page of duplicates; return the confirmation and what it would post."""
    answer = client.post(reverse(RESOLVE), form)
    assert answer.status_code == 200
    return answer, {"decision": [plan["value"] for plan in answer.context["plans"]]}


@pytest.mark.parametrize(("rule", "kept"), [("newest", 2), ("oldest", 0)])
def test_all_but_the_newest_or_the_oldest_are_cancelled_after_a_confirmation(admin_client, rule, kept):
    jobs = live_twice(count=3)
    heard = []

    def listener(job, **kwargs):
        heard.append(job.pk)

    job_cancelled.connect(listener)
    confirmation, form = confirm(admin_client, {"keep": f"{rule}:{jobs[0].fingerprint}"})
    assert states(jobs) == ["available"] * 3
    (plan,) = confirmation.context["plans"]
    assert str(jobs[kept].pk) in plan["keep"]
    assert len(plan["cancel"]) == 2
    done = admin_client.post(reverse(RESOLVE), form)
    job_cancelled.disconnect(listener)
    assert said(done) == ["Cancelled: 2 jobs."]
    others = [job for job in jobs if job != jobs[kept]]
    assert states(others) == ["cancelled"] * 2
    assert states([jobs[kept]]) == ["available"]
    assert set(heard) == {job.pk for job in others}
    entries = LogEntry.objects.all()
    assert {entry.object_id for entry in entries} == {str(job.pk) for job in others}
    assert {entry.get_change_message() for entry in entries} == {f"Cancelled as a duplicate of {jobs[kept].pk}."}


def test_all_but_the_chosen_one_are_cancelled(admin_client):
    jobs = live_twice(count=3)
    fingerprint = jobs[0].fingerprint
    _, form = confirm(
        admin_client, {"keep": f"chosen:{fingerprint}", f"chosen:{fingerprint}": str(jobs[1].pk), "group": "x"}
    )
    admin_client.post(reverse(RESOLVE), form)
    assert states(jobs) == ["cancelled", "available", "cancelled"]


def test_several_selected_groups_are_resolved_together(admin_client):
    groups = [live_twice(number) for number in (1, 2, 3)]
    selected = [jobs[0].fingerprint for jobs in groups[:2]]
    confirmation, form = confirm(admin_client, {"each": "oldest", "group": selected})
    assert confirmation.context["count"] == 2
    assert said(admin_client.post(reverse(RESOLVE), form)) == ["Cancelled: 2 jobs."]
    assert [states(jobs) for jobs in groups] == [["available", "cancelled"]] * 2 + [["available"] * 2]


def test_the_confirmation_says_what_happens_to_a_running_job_and_to_the_unique_key(admin_client):
    old, new = live_twice()
    Job._base_manager.filter(pk=old.pk).update(state="active")
    page = text(confirm(admin_client, {"keep": f"newest:{old.fingerprint}"})[0])
    assert "it is told to stop, and its result is refused" in page
    assert "The job that is kept holds the unique key" in page
    page = text(confirm(admin_client, {"keep": f"oldest:{old.fingerprint}"})[0])
    assert "does not hold the unique key, and never will again" in page
    assert states([old, new]) == ["active", "available"]


def test_the_kept_job_still_answers_enqueues_although_it_does_not_hold_the_key(admin_client):
    first = enqueue().job
    Job._base_manager.update(unique_states=frozenset())
    second = Job.objects.get(pk=Job.objects.enqueue("email.send", {"user": 1}).job.pk)
    row(second).update(fingerprint=first.fingerprint, unique_states=INCOMPLETE)
    _, form = confirm(admin_client, {"keep": f"oldest:{first.fingerprint}"})
    admin_client.post(reverse(RESOLVE), form)
    assert states([first, second]) == ["available", "cancelled"]
    assert enqueue().job.pk == first.pk


def test_a_large_group_is_resolved_in_parts_and_says_so(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.resolve.MOST_OF_ONE", 3)
    jobs = live_twice(count=5)
    confirmation, form = confirm(admin_client, {"keep": f"newest:{jobs[0].fingerprint}"})
    assert "2 more unfinished jobs of this fingerprint stay for now" in text(confirmation)
    done = admin_client.post(reverse(RESOLVE), form)
    assert "2 more unfinished jobs of this fingerprint were not on the page" in text(done)
    assert states(jobs) == ["cancelled", "cancelled", "available", "available", "available"]


def test_if_the_kept_job_finished_meanwhile_nothing_is_cancelled(admin_client):
    jobs = live_twice(count=3)
    _, form = confirm(admin_client, {"keep": f"newest:{jobs[0].fingerprint}"})
    finish(jobs[2])
    done = admin_client.post(reverse(RESOLVE), form)
    assert "is completed by now. Nothing of this fingerprint was cancelled." in text(done)
    assert said(done) == ["Cancelled: 0 jobs."]
    assert states(jobs) == ["available", "available", "completed"]


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda job: Job.objects.filter(pk=job.pk).delete(), "is gone"),
        (lambda job: Job.objects.get(pk=job.pk).release_unique_key(), "has left this fingerprint"),
    ],
)
def test_if_the_kept_job_is_gone_or_left_nothing_is_cancelled(admin_client, change, reason):
    old, new = live_twice()
    _, form = confirm(admin_client, {"keep": f"newest:{old.fingerprint}"})
    change(new)
    assert reason in text(admin_client.post(reverse(RESOLVE), form))
    assert states([old]) == ["available"]


def test_what_changed_since_the_confirmation_is_told_and_what_was_not_seen_stays(admin_client):
    jobs = live_twice(count=5)
    _, form = confirm(admin_client, {"keep": f"newest:{jobs[0].fingerprint}"})
    finish(jobs[0])
    Job._base_manager.filter(pk=jobs[1].pk).update(fingerprint="e" * 64)
    Job.objects.filter(pk=jobs[2].pk).delete()
    Job._base_manager.filter(pk=jobs[3].pk).update(state="active")
    (late,) = live_twice(count=1)
    done = admin_client.post(reverse(RESOLVE), form)
    page = text(done)
    assert f"Job {jobs[0].pk} is completed by now." in page
    assert f"Job {jobs[1].pk} has left this fingerprint." in page
    assert f"Job {jobs[2].pk} is gone: it may have been pruned." in page
    assert "it is told to stop, and its result is refused" in page
    assert "1 more unfinished job of this fingerprint was not on the page that you confirmed, and stays" in page
    assert said(done) == ["Cancelled: 1 job."]
    assert states([jobs[3], jobs[4], late]) == ["cancelled", "available", "available"]


@pytest.mark.every_database
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.django_db(transaction=True)
def test_the_kept_job_cannot_finish_while_the_others_are_cancelled(admin_client):
    old, new = live_twice()
    _, form = confirm(admin_client, {"keep": f"newest:{old.fingerprint}"})
    outcomes = []

    def is_held():
        try:
            with transaction.atomic():
                Job.objects.select_for_update(nowait=True).get(pk=new.pk)
        except OperationalError:
            outcomes.append("held")
        finally:
            connection.close()

    def listener(**kwargs):
        thread = Thread(target=is_held)
        thread.start()
        thread.join()

    job_cancelled.connect(listener)
    try:
        admin_client.post(reverse(RESOLVE), form)
    finally:
        job_cancelled.disconnect(listener)
    assert outcomes == ["held"]
    assert states([old, new]) == ["cancelled", "available"]


def test_sending_the_confirmation_twice_cancels_nothing_more(admin_client):
    jobs = live_twice()
    _, form = confirm(admin_client, {"keep": f"newest:{jobs[0].fingerprint}"})
    admin_client.post(reverse(RESOLVE), form)
    again = admin_client.post(reverse(RESOLVE), form)
    assert said(again)[-1] == "Cancelled: 0 jobs."
    assert "is cancelled by now" in text(again)
    assert LogEntry.objects.count() == 1


def test_a_job_of_another_fingerprint_cannot_be_smuggled_in(admin_client):
    old, new = live_twice()
    stranger = enqueue(7).job
    decision = {"fingerprint": old.fingerprint, "keep": str(new.pk), "cancel": [str(stranger.pk), str(new.pk)]}
    admin_client.post(reverse(RESOLVE), {"decision": json.dumps(decision)})
    assert states([old, new, stranger]) == ["available"] * 3


@pytest.mark.slow
@pytest.mark.parametrize(
    "form",
    [
        {},
        {"keep": "newest:"},
        {"keep": "newest:nobody"},
        {"keep": "\x00:\x00"},
        {"keep": "nonsense:" + "0" * 64},
        {"keep": "chosen:{fingerprint}"},
        {"keep": "chosen:{fingerprint}", "chosen:{fingerprint}": "7"},
        {"keep": "chosen:{fingerprint}", "chosen:{fingerprint}": "00000000-0000-7000-8000-000000000000"},
        {"each": "newest"},
        {"each": "nonsense", "group": "{fingerprint}"},
        {"each": "newest", "group": ["nobody", HTML]},
        {"decision": ""},
        {"decision": "7"},
        {"decision": "[]"},
        {"decision": '{"fingerprint": 7, "keep": "x", "cancel": []}'},
        {"decision": '{"fingerprint": "\\ud800", "keep": "{id}", "cancel": []}'},
        {"decision": '{"fingerprint": "{fingerprint}", "keep": "{id}", "cancel": [7]}'},
        {"decision": '{"fingerprint": "{fingerprint}", "keep": "{id}", "cancel": "{id}"}'},
        {"decision": "[" * 100_000},
        {"decision": "9" * 5000},
    ],
)
def test_a_malformed_form_is_told_and_cancels_nothing(admin_client, form):
    old, new = live_twice()

    def filled(value):
        if isinstance(value, list):
            return value
        return value.replace("{fingerprint}", old.fingerprint).replace("{id}", str(new.pk))

    answer = admin_client.post(
        reverse(RESOLVE), {filled(name): filled(value) for name, value in form.items()}, follow=True
    )
    assert said(answer)
    assert HTML not in text(answer)
    assert states([old, new]) == ["available"] * 2


def test_looking_changes_nothing_and_resolving_by_link_does_not_exist(admin_client):
    jobs = live_twice()
    answer = admin_client.get(reverse(RESOLVE), {"keep": f"newest:{jobs[0].fingerprint}"})
    assert answer.url == reverse(PAGE)
    assert states(jobs) == ["available"] * 2


def test_a_viewer_sees_the_groups_but_cannot_resolve_them(client):
    old, new = live_twice()
    log_in(client, "view_job")
    page = text(client.get(reverse(PAGE)))
    assert str(old.pk) in page
    assert "cancel_job" in page
    assert "Keep the newest" not in page
    decision = {"fingerprint": old.fingerprint, "keep": str(new.pk), "cancel": [str(old.pk)]}
    for form in ({"keep": f"newest:{old.fingerprint}"}, {"decision": json.dumps(decision)}):
        assert client.post(reverse(RESOLVE), form).status_code == 403
    assert states([old, new]) == ["available"] * 2


def test_who_may_cancel_and_view_can_resolve(client):
    old, new = live_twice()
    log_in(client, "view_job", "cancel_job")
    _, form = confirm(client, {"keep": f"newest:{old.fingerprint}"})
    client.post(reverse(RESOLVE), form)
    assert states([old, new]) == ["cancelled", "available"]
