"""Every link of every page leads somewhere: a walk through the admin with something in each panel."""

from collections import deque
from contextlib import suppress
from datetime import timedelta
from html.parser import HTMLParser
from urllib.parse import urldefrag, urljoin, urlsplit

import pytest
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import DuplicateJob, Limit, UniquePolicy, batch, chain, group
from django_ojs_unique.models import CronJob, Job, LimitOverride, Queue, SuppressedEnqueue, Workflow
from tests.support.limits import take
from tests.support.past import worker
from tests.support.workflows import advance

pytestmark = pytest.mark.django_db

HOME = "/admin/django_ojs_unique/"


def policy(on_conflict):
    return UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict=on_conflict)


def enqueue(user, on_conflict="ignore", type="email.send", **args):
    """Enqueue a unique job; return the one that answers for it."""
    with suppress(DuplicateJob):
        return Job.objects.enqueue(type, {"user_id": user, **args}, unique=policy(on_conflict)).job
    return None


def change(job, **fields):
    Job._base_manager.filter(pk=job.pk).update(**fields)
    return Job.objects.get(pk=job.pk)


def fill():
    """Store something for each panel of each page to show."""
    now = timezone.now()
    met = enqueue(1)
    for strategy in ("ignore", "reject", "replace"):
        enqueue(1, strategy, note="new")
    failed = change(
        enqueue(2), state="discarded", finished_at=now, unique_states=frozenset(), dead_letter=True,
        errors=[{"type": "ValueError", "message": "no", "details": {"traceback": "line 1"}}],
    )  # fmt: skip
    enqueue(2)
    failed.retry(force=True)
    blocked = change(enqueue(3), state="discarded", finished_at=now, unique_states=frozenset())
    enqueue(3)
    worker("host:1:ab", heard=now, queues=["reports"], claimed=1)
    lease = {"worker_id": "host:1:ab", "lease_expires_at": now - timedelta(seconds=1)}
    change(enqueue(4), state="active", attempt=1, started_at=now, progress=0.5, **lease)
    change(enqueue(5), state="completed", started_at=now, finished_at=now, result={"sum": 3}, meta={"a": 1})
    change(enqueue(6), created_at=now - timedelta(days=400))
    Job.objects.enqueue("event.process", {"all": [1]}, key="inbox/ä &?#", tags=["spring"])
    Queue.objects.limit("default", 3)
    Queue.objects.pause("reports")
    CronJob.objects.define("nightly", "0 3 * * *", "email.send")
    CronJob.objects.update(last_job_id=blocked.pk, last_run_at=now, last_outcome="created")
    flows()
    limited()
    assert SuppressedEnqueue.objects.filter(existing_job=met).count() == 3


def flows():
    """Store workflows of each kind and state, with members of each state, and a stand-in."""
    step = {"type": "email.send", "args": {"user_id": 30}, "unique": policy("ignore")}
    other = {"type": "email.send", "args": {"user_id": 31}}
    inner = batch([step, other, other], on_complete=other, on_success=other, on_failure=other, name="new")
    first, second, *_ = [flow.enqueue() for flow in (inner, chain(step, inner, other), group([step]), group([other]))]
    ends = ({"state": "completed", "result": {"sum": 3}}, {"state": "discarded"}, {"state": "cancelled"})
    for member, end in zip(first.members, ends, strict=True):
        now = timezone.now()
        values = {"started_at": now, "finished_at": now, "attempt": 1, "unique_states": frozenset(), **end}
        Job._base_manager.filter(pk=member.job_id).update(**values)
    advance()
    due = {"state": "retryable", "run_at": timezone.now() + timedelta(hours=1)}
    nested = Workflow.objects.get(root=second)
    Job._base_manager.filter(pk=nested.members[1].job_id).update(**due)
    Job._base_manager.filter(pk=nested.members[2].job_id).update(state="active", started_at=timezone.now())


def limited():
    """Store jobs with limits that run and wait for a slot, for a rate, for a look, and for a turn."""
    one = Limit(key=["args.user_id"], running=1)
    soon = Limit(key=["args.user_id"], per_minute=2, running=5, weight=2, name="send")
    for _ in range(2):
        for limit in (one, soon):
            Job.objects.enqueue("email.send", {"user_id": 40}, queue="limited", limit=limit)
    for _ in range(2):
        take(queues=["limited"])
    Job._base_manager.filter(worker_id="w").update(worker_id="host:1:ab")
    LimitOverride.objects.set("send", running=4)
    ids = [Job.objects.enqueue("email.send", {"user_id": 41}, queue="limited", limit=one).job.pk for _ in range(4)]
    Job._base_manager.filter(pk=ids[1]).update(blocked_by="k" + "0" * 32)
    Job._base_manager.filter(pk__in=ids[2:]).update(blocked_by="f" + "0" * 32)


class Links(HTMLParser):
    """What a page leads to: its links and its pictures."""

    def __init__(self, text):
        super().__init__()
        self.found = []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        if tag in ("a", "img"):
            self.found += [value for name, value in attributes if name in ("href", "src")]


def links(url, answer):
    """Return the addresses of the app's pages that an answer leads to."""
    if not answer.headers["Content-Type"].startswith("text/html"):
        return []
    others = (link for link in Links(answer.content.decode()).found if not link.startswith("#"))
    found = (urldefrag(urljoin(url, link)).url for link in others)
    return [link for link in found if urlsplit(link).path.startswith(HOME)]


def walk(client, urls):
    """Open each page once, and return how each answered; one whose address asks a question leads no further."""
    answers, waiting = {}, deque(urls)
    while waiting:
        if (url := waiting.popleft()) not in answers:
            answer = client.get(url)
            answers[url] = answer.status_code
            waiting += [] if urlsplit(url).query else links(url, answer)
    return answers


def refused(answers):
    return {url: status for url, status in answers.items() if status != 200}


@pytest.mark.slow
def test_every_link_of_every_page_is_answered(admin_client):
    fill()
    answers = walk(admin_client, [HOME])
    assert refused(answers) == {}
    opened = {urlsplit(url).path for url in answers}
    names = [
        "dashboard",
        "duplicates",
        "explain",
        *(f"{name}_changelist" for name in ("job", "queue", "cronjob", "workflow")),
    ]
    rows = [(type(row)._meta.model_name, row.pk) for row in (*Job.objects.all(), *Workflow.objects.roots())]
    rows += [("workerprocess", "host_3A1_3Aab"), ("queue", "reports")]
    assert opened >= {
        *(reverse(f"admin:django_ojs_unique_{name}") for name in names),
        *(reverse(f"admin:django_ojs_unique_{name}_change", args=[id]) for name, id in rows),
        *(reverse("admin:django_ojs_unique_chart", args=[name]) for name in ("jobs", "waits")),
        reverse("admin:django_ojs_unique_job_json", args=[rows[0][1], "args"]),
    }


@pytest.mark.slow
def test_every_link_of_a_page_that_asks_or_answers_is_answered(admin_client):
    fill()
    jobs, ids = reverse("admin:django_ojs_unique_job_changelist"), [job.pk for job in Job.objects.all()]
    explain, page = (reverse(f"admin:django_ojs_unique_{name}") for name in ("explain", "resolve"))
    fingerprint = Job.objects.filter(args={"user_id": 2}).first().fingerprint
    asked = {"unique": '{"keys": ["type", "args"], "args_keys": ["user_id"]}', "args": '{"user_id": 2}'}
    leads_to = set()
    for url, form in [
        *(
            (jobs, {"action": name, "_selected_action": ids})
            for name in ("retry", "release_unique_key", "delete_selected")
        ),
        (explain, {"type": "email.send", **asked}),
        (page, {"keep": f"newest:{fingerprint}"}),
        (jobs, {"action": "retry", "resolution": "force", "_selected_action": ids}),
    ]:
        answer = admin_client.post(url, form)
        found = links(url, answer)
        assert (answer.status_code, len(found) > 7) == (200, True)
        leads_to.update(found)
    assert refused({link: admin_client.get(link).status_code for link in leads_to}) == {}
