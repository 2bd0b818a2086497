"""What operators do with jobs: who may, what becomes of each job, and what is said when it has changed meanwhile."""

import html
import re
from datetime import timedelta

import pytest
from django.contrib.admin import site
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.db import connection
from django.db.models.signals import pre_delete
from django.test import override_settings
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy, lifecycle
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import Job
from django_ojs_unique.signals import job_cancelled
from tests.support.people import log_in

pytestmark = pytest.mark.django_db

PAGE = "admin:django_ojs_unique_job_changelist"
PERMISSIONS = {
    "cancel": "cancel_job",
    "retry": "retry_job",
    "enqueue_again": "enqueue_again_job",
    "release_unique_key": "release_job",
    "delete_selected": "delete_job",
}
ACTIONS = list(PERMISSIONS)
STEPS = {
    "retry": {"resolution": "skip"},
    "enqueue_again": {"_confirmed": "yes"},
    "release_unique_key": {"_confirmed": "yes"},
    "delete_selected": {"_confirmed": "yes"},
}
GONE = "00000000-0000-7000-8000-000000000000"


def enqueue(type="email.send", args=None, **options):
    return Job.objects.enqueue(type, args, **options).job


def row(job):
    return Job._base_manager.filter(pk=job.pk)


def fresh(job):
    return row(job).get()


def claim(job):
    token = new_id()
    assert lifecycle.claim(row(job), timezone.now(), worker_id="w", token=token, lease=timedelta(minutes=5))
    return token


def discard(job):
    assert lifecycle.discard(row(job), timezone.now(), token=claim(job), errors=[{"type": "e"}])
    return fresh(job)


def complete(job):
    assert lifecycle.complete(row(job), timezone.now(), token=claim(job))
    return fresh(job)


def post(client, action, jobs, query="", **fields):
    """Use an action as its last page would; return the answer."""
    ids = [getattr(job, "pk", job) for job in jobs]
    answer = client.post(
        reverse(PAGE) + query,
        {"action": action, "_selected_action": ids, **STEPS.get(action, {}), **fields},
        follow=True,
    )
    assert answer.status_code == 200
    return answer


def act(client, action, jobs, **options):
    """Use an action; return the messages."""
    return [str(message) for message in post(client, action, jobs, **options).context["messages"]]


def ask(client, action, jobs):
    """Open the page that asks before an action; return its text."""
    answer = client.post(reverse(PAGE), {"action": action, "_selected_action": [job.pk for job in jobs]})
    assert answer.status_code == 200
    return " ".join(answer.content.decode().split())


def logged():
    return {(entry.object_id, entry.action_flag, entry.get_change_message()) for entry in LogEntry.objects.all()}


# Who may


@pytest.mark.parametrize("permission", sorted({*PERMISSIONS.values()}))
def test_each_action_needs_its_permission(client, permission):
    log_in(client, "view_job", permission)
    choices = client.get(reverse(PAGE)).context["action_form"].fields["action"].choices
    assert [value for value, _ in choices] == ["", *(each for each in ACTIONS if PERMISSIONS[each] == permission)]


@pytest.mark.parametrize("action", ACTIONS)
def test_without_its_permission_an_action_does_nothing(client, action):
    live, dead = enqueue(unique=UniquePolicy()), discard(enqueue("other"))
    log_in(client, "view_job", "change_job", *({*PERMISSIONS.values()} - {PERMISSIONS[action]}))
    before = list(Job.objects.order_by("pk").values())
    assert act(client, action, [live, dead]) == ["No action selected."]
    assert list(Job.objects.order_by("pk").values()) == before
    assert not LogEntry.objects.exists()


def test_a_viewer_is_offered_no_actions(client):
    enqueue()
    log_in(client, "view_job")
    assert client.get(reverse(PAGE)).context["action_form"] is None


# Which rows


def test_a_job_that_has_left_the_filter_meanwhile_is_told_of(admin_client):
    job = discard(enqueue())
    (refused,) = act(admin_client, "cancel", [job], query="?state=available&q=nothing")
    assert refused == f"Refused: 1 job. Cannot cancel job {job.pk}: it is discarded."


@pytest.mark.parametrize("action", ["cancel", "retry", "release_unique_key", "delete_selected"])
def test_a_job_that_is_gone_is_told_of_beside_those_that_are_there(admin_client, action):
    job = enqueue(unique=UniquePolicy(), scheduled_at=timezone.now() + timedelta(days=1))
    done, refused = act(admin_client, action, [GONE, job], resolution="")
    assert done.endswith(": 1 job.")
    assert refused == f"Refused: 1 job. There is no job {GONE} in database 'default'. It may have been pruned."


@pytest.mark.parametrize("action", ACTIONS)
@pytest.mark.parametrize("id", ["x", "", "\0", "1" * 500, "😀"])
def test_what_is_no_id_is_refused(admin_client, action, id):
    job = enqueue()
    (message,) = act(admin_client, action, [job, id])
    assert message == "Nothing was done: a row that was chosen has no job's id."
    assert fresh(job).state == "available"


@pytest.fixture
def hiding(monkeypatch):
    """The jobs' admin of a project that hides the jobs of one type."""
    admin = site.get_model_admin(Job)
    everything = admin.get_queryset
    monkeypatch.setattr(admin, "get_queryset", lambda request: everything(request).exclude(type="hidden"))


@pytest.mark.parametrize("action", ACTIONS)
def test_of_a_hidden_job_nothing_is_told_but_that_there_is_none(admin_client, action, hiding):
    hidden, shown = enqueue("hidden"), enqueue("shown")
    for each in (hidden, shown):
        claim(each)
    text = html.unescape(post(admin_client, action, [hidden, shown]).content.decode())
    assert f"There is no job {hidden.pk} in database" in text
    assert f"There is no job {shown.pk}" not in text
    assert not re.search(f"{hidden.pk}(: it| takes)", text)
    assert fresh(hidden).state == "active"
    assert str(hidden.pk) not in {id for id, *_ in logged()}


@pytest.mark.parametrize("action", ["retry", "release_unique_key", "delete_selected"])
def test_asking_changes_nothing(admin_client, action):
    job, dead = enqueue(unique=UniquePolicy()), discard(enqueue("other"))
    before = list(Job.objects.order_by("pk").values())
    ask(admin_client, action, [job, dead])
    assert list(Job.objects.order_by("pk").values()) == before
    assert not LogEntry.objects.exists()


def test_a_page_that_asks_shows_html_and_control_characters_as_text(admin_client):
    job = discard(enqueue(unique=UniquePolicy()))
    row(job).update(type="<b>\x1b[31m")
    for action in ("retry", "release_unique_key", "delete_selected"):
        assert r"&lt;b&gt;\x1b[31m" in ask(admin_client, action, [job])


@pytest.mark.slow
def test_a_job_whose_policy_was_broken_manually_can_be_asked_about_and_is_refused_in_words(admin_client):
    job = discard(enqueue(unique=UniquePolicy()))
    row(job).update(unique={"keys": "nonsense"})
    for action in ("retry", "release_unique_key", "delete_selected"):
        ask(admin_client, action, [job])
    assert "unique.keys: must be a list of strings" in post(admin_client, "retry", [job]).content.decode()
    assert fresh(job).state == "discarded"
    post(admin_client, "retry", [job], resolution="force")
    assert fresh(job).state == "available"


# Cancel, retry


def test_cancelling_says_how_many_names_the_refused_and_is_logged(admin_client):
    waiting = [enqueue(), enqueue()]
    finished = [discard(enqueue()) for _ in range(5)]
    done, refused = act(admin_client, "cancel", [*waiting, *finished])
    assert done == "Cancelled: 2 jobs."
    assert refused.startswith("Refused: 5 jobs. Cannot cancel job ")
    assert refused.endswith("it is discarded. And 2 more.")
    assert Job.objects.filter(state="cancelled").count() == 2
    assert logged() == {(str(job.pk), CHANGE, "Cancelled.") for job in waiting}


# Retry


def test_a_retry_of_waiting_jobs_asks_nothing_and_makes_them_available(admin_client):
    later = timezone.now() + timedelta(days=1)
    scheduled, available = enqueue(scheduled_at=later), enqueue()
    done, refused = act(admin_client, "retry", [scheduled, available], resolution="")
    assert done == "Retried: 1 job."
    assert f"Cannot retry job {available.pk}: it is available." in refused
    assert fresh(scheduled).state == "available"
    assert logged() == {(str(scheduled.pk), CHANGE, "Retried.")}


def test_a_retry_asks_about_waiting_jobs_too_if_a_finished_one_is_among_them(admin_client):
    scheduled, dead = enqueue(scheduled_at=timezone.now() + timedelta(days=1)), discard(enqueue())
    text = ask(admin_client, "retry", [scheduled, dead])
    assert "It becomes available now." in text
    assert "No live duplicate exists: it is retried." in text
    assert (fresh(scheduled).state, fresh(dead).state) == ("scheduled", "discarded")
    assert "Retried: 2." in post(admin_client, "retry", [scheduled, dead], resolution="skip").content.decode()
    assert (fresh(scheduled).state, fresh(dead).state) == ("available", "available")


def test_a_retry_that_is_sent_twice_starts_no_job_whose_time_has_not_come(admin_client):
    tomorrow = timezone.now() + timedelta(days=1)
    early, waiting = discard(enqueue()), enqueue(scheduled_at=tomorrow)
    row(early).update(scheduled_at=tomorrow)
    finished = re.findall('name="_finished" value="(.+?)"', ask(admin_client, "retry", [early, waiting]))
    for done in ("Retried: 2. Not retried: 0.", "Retried: 0. Not retried: 2."):
        answer = post(admin_client, "retry", [early, waiting], resolution="skip", _finished=finished)
        assert done in " ".join(answer.content.decode().split())
        assert (fresh(early).state, fresh(waiting).state) == ("scheduled", "available")
    assert f"Did not retry job {early.pk}: it has changed meanwhile, and is scheduled." in answer.content.decode()


def pair(**options):
    """Make a discarded job and a live one of its key."""
    dead = discard(enqueue(unique=UniquePolicy()))
    return dead, enqueue(unique=UniquePolicy(), **options)


def test_the_page_before_a_retry_names_the_live_duplicates_and_what_cannot_be_retried(admin_client):
    dead, live = pair()
    alone, waiting = discard(enqueue("other")), enqueue("third")
    text = ask(admin_client, "retry", [dead, alone, waiting])
    assert "A live duplicate exists:" in text
    assert reverse("admin:django_ojs_unique_job_change", args=[live.pk]) in text
    assert "No live duplicate exists: it is retried." in text
    assert "It is available: nothing is to be retried." in text
    for resolution in ("skip", "replace", "force"):
        assert f'name="resolution" value="{resolution}"' in text


def test_skipping_leaves_a_job_with_a_live_duplicate_and_names_it(admin_client):
    dead, live = pair()
    alone = discard(enqueue("other"))
    answer = post(admin_client, "retry", [dead, alone, GONE], resolution="skip")
    text = " ".join(answer.content.decode().split())
    assert "Retried: 1. Not retried: 2." in text
    assert f"Cannot retry job {dead.pk}: job {live.pk} is a live duplicate (available)." in text
    assert f"There is no job {GONE}" in text
    assert [fresh(job).state for job in (dead, live, alone)] == ["discarded", "available", "available"]
    assert fresh(alone).attempt == 0
    assert logged() == {(str(alone.pk), CHANGE, "Retried.")}


@pytest.mark.slow
@pytest.mark.parametrize("running", [False, True])
def test_replacing_cancels_the_live_duplicate_for_the_retried_job(admin_client, running):
    dead, live = pair()
    if running:
        claim(live)
    heard = []

    def hear(job, replaced_by, **_):
        heard.append((job.pk, replaced_by))

    job_cancelled.connect(hear)
    text = post(admin_client, "retry", [dead], resolution="replace").content.decode()
    job_cancelled.disconnect(hear)
    assert "Retried, and cancelled:" in text
    assert (fresh(dead).state, fresh(live).state, fresh(live).replaced_by_id) == ("available", "cancelled", dead.pk)
    assert heard == [(live.pk, dead.pk)]
    assert logged() == {
        (str(dead.pk), CHANGE, "Retried; a live duplicate was cancelled."),
        (str(live.pk), CHANGE, f"Cancelled for job {dead.pk}, which was retried."),
    }


@override_settings(OJS_UNIQUE={"REPLACE_ACTIVE": False})
def test_replacing_is_refused_where_a_running_job_may_not_be_replaced(admin_client):
    dead, live = pair()
    claim(live)
    text = post(admin_client, "retry", [dead], resolution="replace").content.decode()
    assert f"job {live.pk} is a live duplicate that runs" in text
    assert (fresh(dead).state, fresh(live).state) == ("discarded", "active")
    assert not LogEntry.objects.exists()


def test_forcing_lets_both_go_on(admin_client):
    dead, live = pair()
    text = post(admin_client, "retry", [dead], resolution="force").content.decode()
    assert "Retried, beside:" in text
    assert reverse("admin:django_ojs_unique_job_change", args=[live.pk]) in text
    assert (fresh(dead).state, fresh(live).state) == ("available", "available")


@pytest.mark.parametrize("resolution", ["skip", "replace"])
def test_of_discarded_jobs_of_one_key_the_oldest_is_retried(admin_client, resolution):
    dead = [discard(enqueue(unique=UniquePolicy())) for _ in range(3)]
    assert "Another job that you chose is alike" in ask(admin_client, "retry", dead)
    answer = post(admin_client, "retry", dead[::-1], resolution=resolution).content.decode()
    assert "Retried: 1. Not retried: 2." in answer
    assert answer.count(f"job {dead[0].pk} is a live duplicate (available)") == 2
    assert [fresh(job).state for job in dead] == ["available", "discarded", "discarded"]


def test_a_duplicate_that_came_after_the_page_was_asked_is_told_of(admin_client):
    dead = discard(enqueue(unique=UniquePolicy()))
    assert "No live duplicate exists" in ask(admin_client, "retry", [dead])
    live = enqueue(unique=UniquePolicy())
    assert f"job {live.pk} is a live duplicate" in post(admin_client, "retry", [dead]).content.decode()
    assert fresh(dead).state == "discarded"


def test_a_job_that_was_retried_after_the_page_was_asked_is_told_of(admin_client):
    dead = discard(enqueue())
    ask(admin_client, "retry", [dead])
    dead.retry()
    assert f"Cannot retry job {dead.pk}: it is available." in post(admin_client, "retry", [dead]).content.decode()


def test_an_unknown_resolution_asks_again(admin_client):
    dead = discard(enqueue())
    assert "Where a live duplicate exists" in post(admin_client, "retry", [dead], resolution="all").content.decode()
    assert fresh(dead).state == "discarded"


@pytest.mark.slow
def test_the_page_before_a_retry_costs_the_same_for_any_number_of_jobs(admin_client):
    counts = []
    for number in (2, 10):
        dead = [discard(enqueue(f"t.n{number}x{n}", unique=UniquePolicy())) for n in range(number)]
        for n in range(number):
            enqueue(f"t.n{number}x{n}", unique=UniquePolicy())
        with CaptureQueriesContext(connection) as queries:
            assert ask(admin_client, "retry", dead).count("A live duplicate exists") == number
        counts.append(len(queries))
    assert counts[0] == counts[1]


# Release the unique key


def test_releasing_says_what_it_lets_in_and_lets_it_in(admin_client):
    job, outside = enqueue(unique=UniquePolicy(on_conflict="ignore")), enqueue("other")
    text = ask(admin_client, "release_unique_key", [job, outside])
    assert "The next enqueue of email.send that it keeps out is admitted, although this job goes on." in text
    assert "It takes no part in uniqueness." in text
    done, refused = act(admin_client, "release_unique_key", [job, outside])
    assert done == "Taken out of uniqueness: 1 job."
    assert refused == f"Refused: 1 job. Job {outside.pk} takes no part in uniqueness."
    assert (fresh(job).state, fresh(job).fingerprint) == ("available", None)
    assert Job.objects.enqueue("email.send", unique=UniquePolicy(on_conflict="ignore")).created
    assert logged() == {(str(job.pk), CHANGE, "Taken out of uniqueness.")}


# Delete

DAY = UniquePolicy(period="P1D", states=["available", "completed"], on_conflict="ignore")


def test_the_page_before_a_deletion_says_what_it_frees(admin_client):
    waiting, windowed = enqueue(unique=UniquePolicy()), complete(enqueue("daily", unique=DAY))
    running, idle = enqueue("running"), complete(enqueue("plain"))
    claim(running)
    text = ask(admin_client, "delete_selected", [waiting, windowed, running, idle])
    assert "It waits, and would never run." in text
    assert "Its key becomes free: the next enqueue of email.send that it keeps out is admitted." in text
    assert "Its window was promised until 20" in text
    assert "It is active: cancel it first." in text
    assert "It keeps nothing out." in text


def test_a_deleted_job_frees_its_key(admin_client):
    job = complete(enqueue("daily", unique=DAY))
    assert not Job.objects.enqueue("daily", unique=DAY).created
    assert act(admin_client, "delete_selected", [job]) == ["Deleted: 1 job."]
    assert Job.objects.enqueue("daily", unique=DAY).created
    assert logged() == {(str(job.pk), DELETION, "Deleted.")}


@pytest.mark.parametrize("listens", [False, True])
def test_a_job_that_a_worker_took_after_the_page_was_asked_is_not_deleted(admin_client, listens):
    job, other = enqueue(), enqueue()
    heard = []

    def hear(instance, **_):
        heard.append(instance.pk)

    if listens:
        pre_delete.connect(hear, sender=Job)
    ask(admin_client, "delete_selected", [job, other])
    claim(job)
    done, refused = act(admin_client, "delete_selected", [job, other])
    pre_delete.disconnect(hear, sender=Job)
    assert done == "Deleted: 1 job."
    assert refused == f"Refused: 1 job. Cannot delete job {job.pk}: it is active. Cancel it first."
    assert [job.pk for job in Job.objects.all()] == [job.pk]
    assert heard == [other.pk] * listens
    assert logged() == {(str(other.pk), DELETION, "Deleted.")}


def delete_page(job):
    return reverse("admin:django_ojs_unique_job_delete", args=[getattr(job, "pk", job)])


@pytest.mark.slow
def test_a_job_is_deleted_from_its_page_by_the_same_rules(admin_client):
    job, running = enqueue(unique=UniquePolicy()), enqueue("running")
    claim(running)
    assert "Its key becomes free" in admin_client.get(delete_page(job)).content.decode()
    assert "cancel it first" in admin_client.get(delete_page(running)).content.decode()
    for one in (job, running):
        admin_client.post(delete_page(one))  # unconfirmed
    assert Job.objects.count() == 2
    answer = admin_client.post(delete_page(job), {"_confirmed": "yes"}, follow=True)
    assert [str(message) for message in answer.context["messages"]] == ["Deleted: 1 job."]
    answer = admin_client.post(delete_page(running), {"_confirmed": "yes"}, follow=True)
    assert "it is active. Cancel it first." in str(next(iter(answer.context["messages"])))
    assert [job.pk for job in Job.objects.all()] == [running.pk]
    assert logged() == {(str(job.pk), DELETION, "Deleted.")}


def test_the_page_to_delete_needs_the_permission_and_bears_any_id(client, admin_client):
    job = enqueue()
    for id in (GONE, "x", "\0"):
        assert admin_client.get(delete_page(id), follow=True).status_code == 200
    log_in(client, "view_job")
    assert client.get(delete_page(job)).status_code == 403
    assert client.post(delete_page(job), {"_confirmed": "yes"}).status_code == 403
    assert Job.objects.count() == 1
