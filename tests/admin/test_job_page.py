"""A job's own page tells everything about it, changes nothing, and bears whatever a row holds."""

import json
import re
from datetime import timedelta
from uuid import uuid4

import pytest
from django.contrib.admin.models import LogEntry
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy
from django_ojs_unique.models import Event, Job, Queue, SuppressedEnqueue, WorkerProcess
from django_ojs_unique.reporting.duplicates import MOST_RELATIVES
from django_ojs_unique.reporting.suppressed import MOST_ATTEMPTS, MOST_MET
from tests.support.people import give, log_in
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db

IGNORE = UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict="ignore")
REPLACE = UniquePolicy(on_conflict="replace")


def enqueue(args=None, type="email.send", **options):
    return Job.objects.enqueue(type, args or {"user_id": 7}, **options).job


def change(job, **fields):
    Job._base_manager.filter(pk=job.pk).update(**fields)
    job.refresh_from_db()
    return job


def discard(job, **fields):
    return change(job, state="discarded", finished_at=timezone.now(), unique_states=frozenset(), **fields)


def url(job):
    return reverse("admin:django_ojs_unique_job_change", args=[job.pk])


def show(client, job):
    """Return the response of a job's page, and its text without tags and doubled spaces."""
    response = client.get(url(job))
    assert response.status_code == 200
    return response, " ".join(re.sub(r"<[^>]*>", " ", response.content.decode()).split())


def attempts(job, count):
    SuppressedEnqueue.objects.bulk_create(
        SuppressedEnqueue(
            outcome="deduplicated",
            on_conflict="ignore",
            fingerprint=job.fingerprint,
            type=job.type,
            queue=job.queue,
            args={"user_id": 7, "n": number},
            meta={},
            existing_job=job,
            existing_state="available",
        )
        for number in range(count)
    )


def copies(job, count, state="completed"):
    now = timezone.now()
    insert_all(
        Job(
            type=job.type,
            queue=job.queue,
            state=state,
            finished_at=now,
            fingerprint=job.fingerprint,
            created_at=now - timedelta(hours=number),
        )
        for number in range(count)
    )


def test_the_envelope_is_told_in_words(admin_client):
    job = enqueue(
        {"user_id": 7},
        type="tests.add",
        tags=["spring", "sale"],
        priority=3,
        timeout="PT90S",
        retry={"max_attempts": 5, "on_exhaustion": "dead_letter"},
        meta={"tenant": "acme"},
    )
    _, text = show(admin_client, job)
    for said in (
        "State: available",
        "Handler tests.app.jobs.add",
        "Priority 3",
        "Tags spring, sale",
        "Attempts 0 of 5",
        "Up to 5 attempts, the first wait 1 s, each one 2 times as long, up to 5 min, with jitter.",
        "it is kept as a dead letter",
        "Timeout 90 s",
        "acme",
    ):
        assert said in text


def test_a_type_without_a_handler_is_told(admin_client):
    _, text = show(admin_client, enqueue())
    assert "No handler is registered here for &#x27;email.send&#x27;: such jobs wait for workers that have one." in text


def test_a_running_job_shows_its_worker_its_lease_and_its_progress(admin_client):
    now = timezone.now()
    job = change(
        enqueue(),
        state="active",
        attempt=1,
        started_at=now,
        worker_id="host:1:ab",
        lease_expires_at=now + timedelta(minutes=1),
        progress=0.4,
        progress_note="half of <it>",
    )
    response, text = show(admin_client, job)
    assert '<progress max="1" value="0.4000" aria-label="Progress">' in response.content.decode()
    assert "40% half of &lt;it&gt;" in text
    assert "Attempt 1 started by worker host:1:ab" in text
    assert "to come: The lease ends" in text


def test_how_a_job_ended_is_told(admin_client):
    now = timezone.now()
    skipped = change(enqueue(), state="completed", finished_at=now, skipped="no rows", result={"sum": 3})
    _, text = show(admin_client, skipped)
    assert "Nothing to do no rows" in text
    assert "Completed: it had nothing to do (no rows)" in text
    assert "Result" in text
    _, text = show(admin_client, discard(enqueue(), dead_letter=True))
    assert "Dead letter yes" in text


def test_uniqueness_is_told_with_its_text_and_its_fingerprint(admin_client):
    job = enqueue(unique=IGNORE)
    response, text = show(admin_client, job)
    assert "against type + args.user_id, until it is completed, cancelled or discarded." in text
    assert "{&quot;args&quot;:{&quot;user_id&quot;:7},&quot;type&quot;:&quot;email.send&quot;}" in text
    assert reverse("admin:django_ojs_unique_duplicates_of", args=[job.fingerprint]) in response.content.decode()


@pytest.mark.parametrize(
    "fields",
    [
        {"unique": {"keys": ["colour"]}},
        {"unique": [1]},
        {"fingerprint": "", "unique_states": frozenset()},
        {"fingerprint": "\x1b[31m<b>", "unique": None},
        {"args": [1, 2]},
        {"args": {}, "payload_pruned": True},
        {"retry_options": {"max_attempts": "many"}},
        {"errors": {"not": "a list"}},
        {"errors": ["text", None, 7, [], {}, {"occurred_at": "never"}, {"details": 5, "attempt": [1], "message": {}}]},
        {"tags": "text", "meta": [1], "extra": 7, "result": False},
        {"key": "in\x1bbox", "unique": None},
        {"fingerprint": None, "unique_states": frozenset()},
        {"worker_id": "a/b\x1b?c", "progress": 7.5},
        {"scheduled_at": "9999-12-31T23:30:00Z"},
    ],
    ids=str,
)
def test_a_row_that_was_changed_manually_is_shown_all_the_same(admin_client, fields):
    show(admin_client, change(enqueue(unique=IGNORE), **fields))


def test_markup_and_control_characters_are_shown_and_never_rendered(admin_client):
    evil = "<script>alert(1)</script>\x1b[31m\u202e"
    error = {
        "type": evil,
        "message": evil,
        "attempt": 1,
        "occurred_at": timezone.now().isoformat(),
        "details": {"traceback": f"File\n  {evil}"},
    }
    job = enqueue({"user_id": evil, evil: evil}, unique=IGNORE, meta={"x": evil})
    Job.objects.enqueue("email.send", {"user_id": evil, "other": evil}, unique=IGNORE)
    change(job, errors=[error], result=evil, skipped=evil, progress=0.5, progress_note=evil, tags=[evil], key=None)
    response, _ = show(admin_client, job)
    page = response.content.decode()
    assert "<script>alert" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m\\u202e" in page


def test_the_page_has_nothing_inline_and_nothing_to_save(admin_client):
    response, _ = show(admin_client, enqueue(unique=IGNORE))
    page = response.content.decode().partition('id="content-main"')[2]
    assert not re.search(r"<script(?![^>]*src=)|<style|\sstyle=|\son[a-z]+=", page)
    assert 'name="_save"' not in page
    assert admin_client.post(url(response.context["original"]), {"type": "other"}).status_code == 403


def test_errors_come_newest_first_with_what_followed(admin_client):
    now = timezone.now()
    errors = [
        {
            "type": "ValueError",
            "message": f"bad {number}",
            "attempt": number,
            "occurred_at": (now + timedelta(seconds=number)).isoformat(),
            "details": {"traceback": "Traceback"},
            "retryable": number == 1,
            "retry_delay_ms": 1500,
        }
        for number in (1, 2)
    ]
    _, text = show(admin_client, discard(enqueue(), errors=errors))
    told = text.partition("Download all errors")[2]
    assert told.index("Attempt 2: ValueError") < told.index("Attempt 1: ValueError")
    assert "Tried again after 1.5 s." in told
    assert "Not tried again." in told
    assert "Attempt 2 failed: ValueError: bad 2" in text


@pytest.mark.parametrize(("state", "begins"), [("discarded", True), ("retryable", True), ("active", False)])
def test_the_page_of_a_failed_job_begins_with_its_last_error(admin_client, state, begins):
    errors = [{"attempt": 1, "type": "OSError"}, {"attempt": 2, "type": "ValueError", "message": "<b>twice</b>"}]
    text = admin_client.get(url(change(enqueue(), state=state, errors=errors))).content.decode()
    first = text.partition('id="content-main"')[2].partition('id="ojs-summary"')[0]
    assert ("Failed: <code>ValueError</code>" in first and "&lt;b&gt;twice&lt;/b&gt;" in first) == begins
    assert "OSError" not in first


def test_a_large_value_is_cut_and_can_be_had_as_a_whole(admin_client):
    job = enqueue({"user_id": 7, "text": "x" * 900_000, "grüße": "😀"})
    response, text = show(admin_client, job)
    assert "… cut after 10,000 characters" in text
    assert len(response.content) < 60_000
    link = reverse("admin:django_ojs_unique_job_json", args=[job.pk, "args"])
    assert link in response.content.decode()
    whole = admin_client.get(link)
    assert json.loads(whole.content) == job.args
    assert whole["Content-Type"] == "application/json"
    assert whole["X-Content-Type-Options"] == "nosniff"
    assert whole["Content-Disposition"] == f'attachment; filename="job-{job.pk}-args.json"'


def test_only_who_may_view_a_job_gets_its_page_and_its_downloads(client):
    job = enqueue()
    log_in(client, "view_queue")
    for address in (url(job), reverse("admin:django_ojs_unique_job_json", args=[job.pk, "args"])):
        assert client.get(address).status_code == 403
        assert client.get(address.replace(str(job.pk), str(uuid4()))).status_code == 403
    client.logout()
    assert client.get(reverse("admin:django_ojs_unique_job_json", args=[job.pk, "args"])).status_code == 302


@pytest.mark.parametrize("id", ["01890a5d-ac96-774b-bcce-b302099a8057", "nonsense", "_00", "a/b", "%00", "7"])
@pytest.mark.parametrize("page", ["{}/change/", "{}/args.json"])
def test_a_job_that_is_not_there_is_told(admin_client, id, page):
    list_url = reverse("admin:django_ojs_unique_job_changelist")
    response = admin_client.get(list_url + page.format(id), follow=True)
    assert response.redirect_chain
    assert "doesn’t exist. Perhaps it was deleted?" in str(*response.context["messages"])


def test_a_member_that_is_no_payload_is_not_handed_out(admin_client):
    address = reverse("admin:django_ojs_unique_job_json", args=[enqueue().pk, "lease_token"])
    assert admin_client.get(address).status_code == 404


def test_duplicates_are_listed_in_the_order_of_time_with_what_replaced_what(admin_client):
    first, second, third = (enqueue({"n": n}, unique=REPLACE) for n in range(3))
    response, text = show(admin_client, second)
    family = response.context["family"]
    assert [row["itself"] for row in family] == [False, True, False]
    assert "Replaced by " + str(third.pk) + " available" in text
    assert "Replaces " + str(first.pk) + " cancelled" in text
    assert "replaced by this job" in text
    assert f"replaced by job {third.pk}" in text


def test_the_job_that_replaced_it_may_be_gone(admin_client):
    first, second = (enqueue({"n": n}, unique=REPLACE) for n in range(2))
    Job.objects.filter(pk=second.pk).delete()
    assert f"Replaced by {second.pk} (gone by now)" in show(admin_client, first)[1]


@pytest.mark.parametrize("end", [discard, Job.cancel])
def test_what_keeps_a_finished_job_from_a_retry_is_named(admin_client, end):
    job = enqueue(unique=IGNORE)
    end(job)
    assert "Cannot be retried" not in show(admin_client, job)[1]
    live = enqueue(unique=IGNORE)
    assert f"Cannot be retried now, blocked by {live.pk}" in show(admin_client, job)[1]


def test_of_jobs_that_are_never_retried_no_live_duplicate_is_named(admin_client):
    replaced, _ = (enqueue({"n": n}, unique=REPLACE) for n in range(2))
    done = change(enqueue(unique=IGNORE), state="completed", finished_at=timezone.now(), unique_states=frozenset())
    enqueue(unique=IGNORE)
    for job in (replaced, done):
        assert "Cannot be retried" not in show(admin_client, job)[1]


def test_a_policy_that_cannot_be_read_names_no_rival(admin_client):
    dead = discard(enqueue(unique=IGNORE), unique={"keys": ["colour"]})
    enqueue(unique=IGNORE)
    assert "Cannot be retried" not in show(admin_client, dead)[1]


def test_attempts_tell_what_they_asked_for_otherwise(admin_client):
    job = enqueue({"user_id": 7, "note": "a", "flag": True}, unique=IGNORE)
    Job.objects.enqueue("email.send", {"user_id": 7, "note": "b", "flag": 1, "new": [1]}, unique=IGNORE, meta={"m": 1})
    _, text = show(admin_client, job)
    assert "1 enqueue met this job" in text
    for said in (
        "args.note : &quot;a&quot; → &quot;b&quot;",
        "args.flag : true → 1",
        "args.new : (none) → [1]",
        "meta.m : (none) → 1",
    ):
        assert said in text
    assert "args.user_id" not in text.partition("What differed")[2]


def test_an_attempt_with_the_same_args_says_so(admin_client):
    job = enqueue(unique=IGNORE)
    enqueue(unique=IGNORE)
    assert "the same args" in show(admin_client, job)[1]


def test_of_an_attempt_that_is_too_large_only_the_size_is_shown(admin_client):
    job = enqueue({"user_id": 7}, unique=IGNORE)
    enqueue({"user_id": 7, "text": "x" * 30_000}, unique=IGNORE)
    assert "30,023 bytes, which are not kept" in show(admin_client, job)[1]


def test_attempts_are_kept_from_who_may_not_view_them(client):
    job = enqueue({"user_id": 7, "note": "a"}, unique=IGNORE)
    enqueue({"user_id": 7, "note": "secret"}, unique=IGNORE)
    user = log_in(client, "view_job")
    _, text = show(client, job)
    assert "you need the permission “Can view suppressed enqueue” ( view_suppressedenqueue )" in text
    assert "secret" not in text
    give(user, "view_suppressedenqueue")
    assert "secret" in show(client, job)[1]


def test_attempts_are_still_found_after_the_job_left_uniqueness(admin_client):
    job = enqueue(unique=IGNORE)
    enqueue(unique=IGNORE)
    job.release_unique_key()
    _, text = show(admin_client, job)
    assert "Taken out of uniqueness manually" in text
    assert "1 enqueue met this job" in text


@pytest.mark.slow
def test_long_lists_are_cut(admin_client):
    job = enqueue(unique=IGNORE)
    copies(job, MOST_RELATIVES + 5)
    attempts(job, MOST_MET + 1)
    response, text = show(admin_client, job)
    assert len(response.context["family"]) == MOST_RELATIVES + 1
    assert "the fingerprint above leads to all" in text
    assert f"more than 1,000 enqueues met this job; the newest {MOST_ATTEMPTS} are shown" in text
    assert f"?q={job.pk}" in response.content.decode()


@pytest.mark.slow
def test_the_number_of_queries_does_not_grow(admin_client):
    job = enqueue(unique=IGNORE)
    enqueue({"user_id": 7, "n": 1}, unique=IGNORE)
    copies(job, 1)
    show(admin_client, job)
    with CaptureQueriesContext(connection) as few:
        show(admin_client, job)
    copies(job, 200)
    attempts(job, 200)
    with CaptureQueriesContext(connection) as many:
        show(admin_client, job)
    # Two more: how many attempts there are beyond those that are shown, and which of many finished jobs it replaced.
    assert len(many) <= len(few) + 2 <= 20


def test_with_events_the_timeline_tells_of_a_run_that_was_requeued(admin_client, settings):
    settings.OJS_UNIQUE = {"EVENTS": True}
    job = enqueue()
    about = {"subject": str(job.pk), "time": job.created_at}
    Event.objects.create(type="job.started", data={"attempt": 1}, **about)
    Event.objects.create(type="job.enqueued", data={"reason": "requeued"}, **about)
    Event.objects.create(type="job.enqueued", data={}, **about)
    texts = [event["text"] for event in show(admin_client, job)[0].context["timeline"]]
    assert [text for text in texts if "ttempt" in text] == [
        "Attempt 1 started",
        "Requeued by its worker: the attempt does not count",
    ]


def test_the_timeline_tells_who_did_what(admin_client, admin_user):
    job = enqueue(unique=IGNORE, scheduled_at=timezone.now() + timedelta(hours=1))
    job.cancel()
    LogEntry.objects.log_actions(admin_user.pk, [job], 2, change_message="Cancelled.", single_object=True)
    events = [event["text"] for event in show(admin_client, job)[0].context["timeline"]]
    assert events == ["Created", "Cancelled", "admin: Cancelled."]


def test_actions_are_offered_to_who_may_use_them_and_where_they_fit(client):
    job = enqueue()
    user = log_in(client, "view_job")
    assert client.get(url(job)).context["page_actions"] == []
    give(user, "cancel_job", "retry_job")
    assert client.get(url(job)).context["page_actions"] == [("cancel", "Cancel")]
    assert client.get(url(discard(job))).context["page_actions"] == [("retry", "Retry")]


def test_an_action_leads_back_to_the_page(client):
    job = enqueue()
    log_in(client, "view_job", "cancel_job")
    page = client.get(url(job)).content.decode()
    assert page.count('value="cancel"') == 1
    form = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)">', page))
    response = client.post(reverse("admin:django_ojs_unique_job_changelist"), {**form, "action": "cancel"})
    assert (response.status_code, response["Location"]) == (302, url(job))
    job.refresh_from_db()
    assert job.state == "cancelled"


@pytest.mark.parametrize("id", ["nonsense", "", "%00", "../../"])
def test_an_action_with_a_malformed_id_does_nothing(admin_client, id):
    job = enqueue()
    form = {"action": "cancel", "_selected_action": id, "_from_page": "1"}
    answer = admin_client.post(reverse("admin:django_ojs_unique_job_changelist"), form, follow=True)
    assert answer.status_code == 200
    assert "Nothing was done" in str(*answer.context["messages"])
    job.refresh_from_db()
    assert job.state == "available"


def test_an_action_that_asks_first_leads_back_to_the_page(admin_client):
    job = enqueue(unique=IGNORE)
    form = {"action": "release_unique_key", "_selected_action": str(job.pk), "_from_page": "1"}
    asked = admin_client.post(reverse("admin:django_ojs_unique_job_changelist"), form)
    assert asked.status_code == 200
    hidden = dict(re.findall(r'<input type="hidden" name="([^"]+)" value="([^"]+)">', asked.content.decode()))
    response = admin_client.post(reverse("admin:django_ojs_unique_job_changelist"), hidden)
    assert (response.status_code, response["Location"]) == (302, url(job))
    job.refresh_from_db()
    assert job.fingerprint is None


def test_the_history_is_linked_once(admin_client):
    job = enqueue()
    response, _ = show(admin_client, job)
    history = reverse("admin:django_ojs_unique_job_history", args=[job.pk])
    assert response.content.decode().count(f'href="{history}"') == 1


def test_the_page_of_a_job_that_waits_says_that_nobody_takes_it(admin_client, client):
    job = enqueue(queue="letters")
    assert "Taken by nobody No worker runs: `manage.py runworker` starts one." in show(admin_client, job)[1]
    now = timezone.now()
    other = WorkerProcess.objects.create(id="w", hostname="h", queues=["letter"], started_at=now, heartbeat_at=now)
    said = "Taken by nobody No running worker says that it takes letters. One takes &#x27;letter&#x27;"
    assert said in show(admin_client, job)[1]
    log_in(client, "view_job")
    assert "Taken by nobody" not in show(client, job)[1]
    other.queues = ["letters"]
    other.save()
    assert "Taken by nobody" not in show(admin_client, job)[1]


def test_the_page_of_a_job_that_waits_says_that_its_queue_is_paused(admin_client):
    job = enqueue(queue="letters")
    Queue.objects.pause("letters")
    assert "Waits Queue letters is paused: no worker claims its jobs." in show(admin_client, job)[1]
