"""An admin of jobs that shows a team its own jobs only: no page names another one, and no form changes one."""

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib import admin
from django.contrib.admin.models import CHANGE, LogEntry
from django.test import override_settings
from django.urls import path, reverse
from django.utils import timezone

from django_ojs_unique import UniquePolicy, chain, group
from django_ojs_unique.admin import visibility
from django_ojs_unique.admin.cron import CronJobAdmin
from django_ojs_unique.admin.jobs import JobAdmin
from django_ojs_unique.admin.queues import QueueAdmin
from django_ojs_unique.admin.suppressed import SuppressedEnqueueAdmin
from django_ojs_unique.admin.workers import WorkerProcessAdmin
from django_ojs_unique.admin.workflows import WorkflowAdmin
from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import CronJob, Job, Queue, SuppressedEnqueue, WorkerProcess, Workflow
from tests.support.past import worker


class TeamJobAdmin(JobAdmin):
    def get_queryset(self, request):
        return super().get_queryset(request).filter(queue="ours")


site = admin.AdminSite()
site.register(Job, TeamJobAdmin)
site.register(Queue, QueueAdmin)
site.register(CronJob, CronJobAdmin)
site.register(WorkerProcess, WorkerProcessAdmin)
site.register(SuppressedEnqueue, SuppressedEnqueueAdmin)
site.register(Workflow, WorkflowAdmin)
urlpatterns = [path("admin/", site.urls)]

SECRET = "their-password"
HIDDEN = "a job that you may not see"
LIST, RESOLVE = "job_changelist", "resolve"


@pytest.fixture(autouse=True)
def _own_site(db):
    with override_settings(ROOT_URLCONF=__name__):
        yield


def policy(on_conflict="reject"):
    return UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict=on_conflict)


def ours(user=7, on_conflict="reject", **args):
    return Job.objects.enqueue("mail.send", {"user_id": user, **args}, queue="ours", unique=policy(on_conflict)).job


def theirs(user=7, on_conflict="reject"):
    args = {"user_id": user, "note": SECRET}
    return Job.objects.enqueue("mail.send", args, queue="theirs", unique=policy(on_conflict)).job


def change(job, **fields):
    Job._base_manager.filter(pk=job.pk).update(**fields)
    return Job.objects.get(pk=job.pk)


def discard(job, **fields):
    done = {"state": "discarded", "finished_at": timezone.now(), "unique_states": frozenset(), **fields}
    return change(job, **done)


def rivals(on_conflict="reject"):
    """Return our discarded job, and their live one of its fingerprint."""
    return discard(ours(on_conflict=on_conflict)), theirs(on_conflict=on_conflict)


def url(name, *args):
    return reverse(f"admin:django_ojs_unique_{name}", args=args)


def text_of(answer, status=200):
    assert answer.status_code == status, answer
    return " ".join(answer.content.decode().split())


def kept_secret(text, *jobs):
    """Return a page's text, once it names none of these jobs and shows none of their args."""
    assert SECRET not in text
    assert [job.pk for job in jobs if str(job.pk) in text] == []
    return text


def look(client, name, *args, hiding=(), **query):
    return kept_secret(text_of(client.get(url(name, *args), query)), *hiding)


def act(client, action, *jobs, **fields):
    """Use an action as its last page would; return the text of the answer."""
    form = {"action": action, "_selected_action": [job.pk for job in jobs], **fields}
    return text_of(client.post(url(LIST), form, follow=True))


# The pages


@pytest.mark.slow
def test_the_list_of_jobs_finds_no_hidden_job(admin_client):
    mine, hidden = ours(1), theirs(2)
    change(hidden, errors=[{"type": "Boom", "message": SECRET}])
    assert str(mine.pk) in look(admin_client, LIST, hiding=[hidden])
    for query in ({"state": "available"}, {"duplicates": "live"}, {"q": SECRET}, {"q": hidden.fingerprint}):
        answer = admin_client.get(url(LIST), query)
        assert hidden.pk not in {job.pk for job in answer.context["cl"].result_list}
    assert admin_client.get(url(LIST), {"q": str(hidden.pk)}).context["cl"].result_count == 0


@pytest.mark.parametrize("name", ["job_change", "job_history", "job_delete"])
def test_a_hidden_job_has_no_page(admin_client, name):
    hidden = theirs()
    answer, missing = (admin_client.get(url(name, id)) for id in (hidden.pk, new_id()))
    assert (answer.status_code, answer.url) == (missing.status_code, missing.url) == (302, reverse("admin:index"))
    assert admin_client.get(url("job_json", hidden.pk, "args")).status_code == 302


def test_the_page_of_a_job_names_no_hidden_relative(admin_client):
    mine, hidden = rivals()
    text = look(admin_client, "job_change", mine.pk, hiding=[hidden])
    assert f"Cannot be retried now, blocked by</dt><dd>{HIDDEN}" in text
    assert f'<th scope="row">{HIDDEN}</th>' in text


def test_the_page_of_a_replaced_job_names_neither_its_successor_nor_the_enqueue(admin_client):
    mine = ours()
    hidden = theirs(on_conflict="replace")
    text = look(admin_client, "job_change", mine.pk, hiding=[hidden])
    assert f"replaced by {HIDDEN}" in text
    assert f"Replaced by</dt><dd>{HIDDEN}" in text
    assert "No enqueue that met this job is on record." in text


def test_the_page_of_a_successor_does_not_name_the_job_that_it_replaced(admin_client):
    hidden = theirs()
    mine = ours(on_conflict="replace")
    text = look(admin_client, "job_change", mine.pk, hiding=[hidden])
    assert f"Replaces</dt><dd>{HIDDEN}" in text


def test_no_history_names_a_hidden_job(admin_client, admin_user):
    mine, hidden = ours(1), theirs(2)
    seen = ours(3)
    CronJob.objects.define("nightly", "0 3 * * *", "mail.send")
    for of, said in [(mine, f"Cancelled for job {hidden.pk}, which was retried."), (mine, f"As {seen.pk}.")]:
        LogEntry.objects.log_actions(admin_user.pk, [of], CHANGE, said)
    LogEntry.objects.log_actions(admin_user.pk, [CronJob.objects.get()], CHANGE, f"Ran now: created job {hidden.pk}.")
    for page in (("job_history", mine.pk), ("job_change", mine.pk)):
        text = look(admin_client, *page, hiding=[hidden])
        assert f"Cancelled for {HIDDEN}, which was retried." in text
        assert f"As {seen.pk}." in text
    assert f"Ran now: created {HIDDEN}." in look(admin_client, "cronjob_history", "nightly", hiding=[hidden])


def test_the_duplicates_name_no_hidden_job(admin_client):
    mine = ours()
    Job.objects.enqueue("mail.send", {"user_id": 7}, unique=policy("ignore"))
    discard(mine)
    alike = {"fingerprint": mine.fingerprint, "unique_states": frozenset()}
    hidden, another = (change(theirs(user), **alike) for user in (8, 9))
    text = look(admin_client, "duplicates", hiding=[hidden, another])
    assert "There are none: each fingerprint has one unfinished job at most." in text


def test_the_duplicates_do_not_name_the_hidden_job_that_holds_a_fingerprint(admin_client):
    mine = ours()
    assert Job.objects.enqueue("mail.send", {"user_id": 7}, unique=policy("ignore")).job == mine
    discard(mine)
    hidden = theirs()
    assert f"<td>{HIDDEN} <span" in look(admin_client, "duplicates", hiding=[hidden])


def test_the_page_of_a_fingerprint_names_no_hidden_job(admin_client):
    mine, hidden = rivals()
    change(mine, replaced_by_id=hidden.pk)
    text = look(admin_client, "duplicates_of", mine.fingerprint, hiding=[hidden])
    assert f"<td>{HIDDEN}</td>" in text
    assert str(mine.pk) in text


def test_a_look_up_of_a_hidden_job_finds_nothing(admin_client):
    hidden = theirs()
    for term in (str(hidden.pk), hidden.fingerprint[:8]):
        text = text_of(admin_client.get(url("duplicates"), {"q": term}))
        assert f"No job has {term} as its id or in its fingerprint." in text
        assert SECRET not in text
    assert "Nobody has this fingerprint" in look(admin_client, "duplicates_of", hidden.fingerprint, hiding=[hidden])


@pytest.mark.slow
def test_suppressed_enqueues_are_shown_if_their_job_is(admin_client):
    mine = ours(1)
    assert Job.objects.enqueue("mail.send", {"user_id": 1}, unique=policy("ignore")).job == mine
    replaced = theirs(2)
    admitted = ours(2, on_conflict="replace")
    successor = theirs(1, on_conflict="replace")  # replaces ours
    met = theirs(3)
    assert theirs(3, on_conflict="ignore") == met
    shown, over, *others = SuppressedEnqueue.objects.order_by("pk")
    text = look(admin_client, "suppressedenqueue_changelist", hiding=[replaced, successor, met])
    pages = [url("suppressedenqueue_change", each.pk) for each in (shown, over, *others)]
    assert [page in text for page in pages] == [True, True, False, False]
    assert HIDDEN in text
    assert [admin_client.get(page).status_code for page in pages] == [200, 200, 302, 302]
    text = look(admin_client, "suppressedenqueue_change", over.pk, hiding=[replaced])
    assert text.count(HIDDEN) == 2  # the met job, and the comparison with it
    assert str(admitted.pk) in text
    listed = look(admin_client, "suppressedenqueue_changelist", q=met.fingerprint, hiding=[met])
    assert "0 suppressed enqueues" in listed


def test_the_explanation_names_no_hidden_job(admin_client):
    hidden = theirs()
    unique = '{"keys": ["type", "args"], "args_keys": ["user_id"], "on_conflict": "reject"}'
    form = {"type": "mail.send", "args": '{"user_id": 7}', "unique": unique}
    text = kept_secret(text_of(admin_client.post(url("explain"), form)), hidden)
    assert "A job that you may not see is available, and on_conflict is reject." in text


def test_the_dashboard_is_refused_because_it_counts_all_jobs(admin_client):
    hidden = theirs()
    text = kept_secret(text_of(admin_client.get(url("dashboard")), 403), hidden)
    assert "you may not see all of them" in text
    assert admin_client.get(url("dashboard_now")).status_code == 403
    assert admin_client.get(url("chart", "jobs")).status_code == 403
    assert admin_client.post(url("dashboard"), {"pause": "theirs"}).status_code == 403
    assert not Queue.objects.exists()


def test_the_page_of_a_worker_names_no_hidden_job(admin_client):
    worker("w1", heard=timezone.now(), claimed=2)
    running = {"state": "active", "attempt": 1, "started_at": timezone.now(), "worker_id": "w1"}
    hidden = change(theirs(2), **running)
    look(admin_client, "workerprocess_changelist", hiding=[hidden])
    text = look(admin_client, "workerprocess_change", "w1", hiding=[hidden])
    assert "It has claimed no job that you may see." in text
    mine = change(ours(1), **running)
    assert str(mine.pk) in look(admin_client, "workerprocess_change", "w1", hiding=[hidden])


@pytest.mark.slow
def test_cron_jobs_name_no_hidden_job(admin_client):
    hidden = theirs()
    CronJob.objects.define("nightly", "0 3 * * *", "mail.send", {"user_id": 7}, unique=policy().to_dict())
    CronJob.objects.update(last_job_id=hidden.pk, last_run_at=timezone.now(), last_outcome="created")
    look(admin_client, "cronjob_changelist", hiding=[hidden])
    text = look(admin_client, "cronjob_change", "nightly", hiding=[hidden])
    assert f">{HIDDEN}</div>" in text
    assert "None of its last 20 occurrences has a job" in text
    form = {"action": "run_now", "_selected_action": ["nightly"]}
    answer = admin_client.post(url("cronjob_changelist"), form, follow=True)
    kept_secret(text_of(answer), hidden)
    (told,) = map(str, answer.context["messages"])
    assert told == f"Cron job nightly enqueued nothing: skipped, because of {HIDDEN}."


def flow(*queues):
    """Enqueue a group with a nested one, whose jobs are in these queues."""
    args = {"ours": {}, "theirs": {"note": SECRET}}
    steps = [{"type": "mail.send", "queue": queue, "args": args[queue]} for queue in queues]
    return group([steps[0], group(steps[1:])], name=SECRET).enqueue()


@pytest.mark.slow
def test_a_workflow_is_shown_if_each_of_its_jobs_is(admin_client):
    shown, hidden, half = flow("ours", "ours"), flow("theirs", "theirs"), flow("ours", "theirs")
    gone = flow("ours", "ours")
    Job.objects.get(pk=gone.members[0].job_id).remove()
    waits = chain({"type": "mail.send", "queue": "ours"}, {"type": "mail.send", "queue": "theirs"}).enqueue()
    rows = admin_client.get(url("workflow_changelist")).context["cl"].result_list
    assert [row.pk for row in rows] == [waits.pk, shown.pk]
    pages = [admin_client.get(url("workflow_change", each.pk)).status_code for each in (shown, hidden, half, gone)]
    assert pages == [200, 302, 302, 302]
    mine = Job.objects.get(pk=half.members[0].job_id)
    assert "Workflow</dt>" not in look(admin_client, "job_change", mine.pk)
    mine = Job.objects.get(pk=shown.members[0].job_id)
    assert "Workflow</dt>" in text_of(admin_client.get(url("job_change", mine.pk)))


def test_a_workflow_of_hidden_jobs_is_not_cancelled(admin_client):
    hidden = flow("ours", "theirs")
    form = {"action": "cancel", "_selected_action": [hidden.pk], "_confirmed": "yes"}
    admin_client.post(url("workflow_changelist"), form)
    hidden.refresh_from_db()
    assert hidden.state == "running"
    assert not Job.objects.filter(state="cancelled").exists()


def test_a_stand_in_does_not_name_the_workflow_of_others(admin_client):
    unique = {"keys": ["type"], "on_conflict": "ignore"}
    step = {"type": "mail.send", "queue": "ours", "unique": unique}
    chain(step, {"type": "mail.send", "queue": "theirs"}, name=SECRET).enqueue()
    mine = chain(step).enqueue()
    assert "a duplicate that stands in</span>" in look(admin_client, "workflow_change", mine.pk)


def test_queues_count_the_jobs_that_may_be_seen(admin_client):
    for user in range(3):
        theirs(user)
    ours(5)
    for name in ("ours", "theirs"):
        Queue.objects.limit(name, 3)
    rows = admin_client.get(url("queue_changelist")).context["cl"].result_list
    assert {row.name: row.unfinished for row in rows} == {"ours": 1, "theirs": 0}


# What would meet a hidden job


def test_the_preview_of_a_retry_says_that_there_is_a_hidden_rival(admin_client):
    mine, hidden = rivals()
    text = kept_secret(act(admin_client, "retry", mine), hidden)
    assert f"A live duplicate exists: <ul><li>{HIDDEN} <span" in text


@pytest.mark.parametrize("resolution", ["skip", "replace"])
def test_no_retry_replaces_a_hidden_job(admin_client, resolution):
    mine, hidden = rivals()
    text = kept_secret(act(admin_client, "retry", mine, resolution=resolution), hidden)
    assert f"Cannot retry job {mine.pk}: {HIDDEN} is a live duplicate (available)." in text
    assert (change(mine).state, change(hidden).state) == ("discarded", "available")


def test_a_retry_beside_a_hidden_job_does_not_name_it(admin_client):
    mine, hidden = rivals()
    assert HIDDEN in kept_secret(act(admin_client, "retry", mine, resolution="force"), hidden)
    assert (change(mine).state, change(hidden).state) == ("available", "available")


def test_a_retry_replaces_a_job_that_may_be_seen(admin_client):
    mine = discard(ours())
    other = ours()
    act(admin_client, "retry", mine, resolution="replace")
    assert (change(mine).state, change(other).state) == ("available", "cancelled")


def test_a_retry_that_meets_a_hidden_job_and_another_replaces_neither(admin_client):
    mine = discard(ours())
    other = change(ours(), unique_states=frozenset())
    hidden = change(theirs(9), fingerprint=mine.fingerprint)
    kept_secret(act(admin_client, "retry", mine, resolution="replace"), hidden)
    assert [change(job).state for job in (mine, other, hidden)] == ["discarded", "available", "available"]


@pytest.mark.slow
def test_nothing_that_is_enqueued_again_replaces_a_hidden_job(admin_client):
    mine, hidden = rivals("replace")
    asked = kept_secret(act(admin_client, "enqueue_again", mine), hidden)
    assert f"Nothing is enqueued: {HIDDEN} is available, and on_conflict is replace." in asked
    told = kept_secret(act(admin_client, "enqueue_again", mine, _confirmed="yes"), hidden)
    assert f"Did not enqueue job {mine.pk} again: {HIDDEN} is a duplicate (available)." in told
    assert change(hidden).state == "available"
    assert Job.objects.count() == 2


@pytest.mark.slow
def test_what_is_enqueued_again_replaces_a_job_that_may_be_seen(admin_client):
    mine = discard(ours(on_conflict="replace"))
    other = ours(on_conflict="replace")
    assert "A new job replaces others" in act(admin_client, "enqueue_again", mine)
    act(admin_client, "enqueue_again", mine, _confirmed="yes")
    assert change(other).state == "cancelled"


@pytest.mark.parametrize("action", ["retry", "enqueue_again"])
def test_a_bulk_action_names_no_hidden_rival(admin_client, action):
    _, hidden = rivals("replace")
    form = {"action": action, "select_across": "1", "_selected_action": ["0" * 32], "resolution": "replace"}
    form |= {"_confirmed": "yes"} if action == "enqueue_again" else {}
    asked = admin_client.post(url(LIST), form)
    kept_secret(text_of(asked), hidden)
    kept = dict(asked.context["kept"])
    text = kept_secret(text_of(admin_client.post(url(LIST), {**form, **kept})), hidden)
    assert (HIDDEN in text, change(hidden).state) == (True, "available")


# Forged forms


@pytest.mark.slow
@pytest.mark.parametrize("action", ["cancel", "retry", "enqueue_again", "release_unique_key", "delete_selected"])
def test_no_action_changes_a_hidden_job_or_tells_it_from_a_missing_one(admin_client, action):
    live, dead = theirs(1), discard(theirs(2))
    before = list(Job.objects.order_by("pk").values())
    steps = {"resolution": "replace"} if action == "retry" else {"_confirmed": "yes"}
    for fields in ({}, steps):
        for job in (live, dead):
            answers = [act(admin_client, action, each, **fields) for each in (job, Job(pk=new_id()))]
            assert SECRET not in answers[0]
            first, second = (re.sub(r"[0-9a-f-]{36}|csrfmiddlewaretoken[^>]*", "", answer) for answer in answers)
            assert first == second
    admin_client.post(url("job_delete", live.pk), {"_confirmed": "yes"})
    assert list(Job.objects.order_by("pk").values()) == before
    assert not LogEntry.objects.exists()


def test_duplicates_are_resolved_among_the_jobs_that_may_be_seen(admin_client):
    mine = change(ours(), unique_states=frozenset())
    hidden = change(theirs(9), fingerprint=mine.fingerprint, unique_states=frozenset())
    other = ours(8)
    change(other, fingerprint=mine.fingerprint, unique_states=frozenset())
    asked = admin_client.post(url(RESOLVE), {"keep": f"newest:{mine.fingerprint}"})
    kept_secret(text_of(asked), hidden)
    (plan,) = asked.context["plans"]
    kept_secret(text_of(admin_client.post(url(RESOLVE), {"decision": plan["value"]})), hidden)
    assert [change(job).state for job in (mine, other, hidden)] == ["cancelled", "available", "available"]


@pytest.mark.parametrize("keeps_ours", [True, False])
def test_a_forged_decision_cancels_no_hidden_job(admin_client, keeps_ours):
    mine = change(ours(), unique_states=frozenset())
    hidden = change(theirs(9), fingerprint=mine.fingerprint, unique_states=frozenset())
    keep, cancel = (mine, hidden) if keeps_ours else (hidden, mine)
    decision = f'{{"fingerprint": "{mine.fingerprint}", "keep": "{keep.pk}", "cancel": ["{cancel.pk}"]}}'
    text = text_of(admin_client.post(url(RESOLVE), {"decision": decision}))
    assert SECRET not in text
    assert f"{hidden.pk}" not in text or "is gone: it may have been pruned" in text
    assert [change(job).state for job in (mine, hidden)] == ["available", "available"]


# Who sees everything


def test_who_sees_all_jobs_pays_no_query_for_it(admin_client, django_assert_max_num_queries):
    with override_settings(ROOT_URLCONF="tests.urls"):
        for user in range(20):
            theirs(user)
            theirs(user, on_conflict="ignore")
        with django_assert_max_num_queries(6):
            admin_client.get(url("suppressedenqueue_changelist"))


def test_a_list_asks_once_about_all_its_jobs(admin_client, django_assert_max_num_queries):
    for user in range(20):
        ours(user)
        ours(user, on_conflict="ignore")
    with django_assert_max_num_queries(7):
        admin_client.get(url("suppressedenqueue_changelist"))


def test_a_site_without_an_admin_of_jobs_shows_none(admin_client):
    hidden = theirs()
    worker("w1", heard=timezone.now())
    change(hidden, state="active", attempt=1, started_at=timezone.now() - timedelta(seconds=1), worker_id="w1")
    site.unregister(Job)
    try:
        text = text_of(admin_client.get(url("workerprocess_change", "w1")))
    finally:
        site.register(Job, TeamJobAdmin)
    assert "It has claimed no job that you may see." in kept_secret(text, hidden)


def test_nothing_else_links_to_a_job():
    sources = {path.name: path.read_text() for path in Path(visibility.__file__).parent.glob("*.py")}
    # The dashboard is shown to those only who see all jobs.
    everywhere = {"display.py", "visibility.py", "dashboard_cells.py"}
    assert {name for name, source in sources.items() if "job_link" in source} == everywhere
    # Its own page is that of a job that was found by the queryset.
    links = {name for name, source in sources.items() if 'django_ojs_unique_job_change"' in source}
    assert links == {"display.py", "actions.py"}
