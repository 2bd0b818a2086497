"""Every text of every page is translated: in a language that brackets each translation, no word is outside brackets."""

import re
from datetime import timedelta
from html.parser import HTMLParser

import pytest
from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone, translation
from django.utils.translation import trans_real

from django_ojs_unique import JobState, RetryPolicy, UniquePolicy
from django_ojs_unique.admin.sentences import translate
from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import CronJob, Job, Workflow
from django_ojs_unique.reporting.text import full
from django_ojs_unique.reporting.uniqueness import uniqueness
from tests.admin import test_links

pytestmark = pytest.mark.django_db

ROWS = {
    "admin",
    "args",
    "ascii",
    "async",
    "chicken",
    "email",
    "send",
    "event",
    "process",
    "inbox",
    "user",
    "id",
    "user_id",
    "host",
    "ab",
    "reports",
    "default",
    "nightly",
    "spring",
    "handlers",
    "tests",
    "app",
    "jobs",
    "unknown",
    "type",
    "queue",
    "meta",
    "note",
    "new",
    "sum",
    "ValueError",
    "CET",
    "CEST",
    "UTC",
    "hostname",
    "key",
    "reject",
    "ignore",
    "replace",
    "replace_except_schedule",
    "replace_in_place",
    "unsafe_dedupe",
    "preserve_run_at",
    "skip",
    "allow",
    "cancel_previous",
    "GMT",
    "true",
    "null",
    "Europe",
    "Berlin",
    "ops",
    "global",
    "daily",
    "unused",
    "nobody",
    "hourly",
    "all",
    "no",
    "enqueue",
    "limited",
}
"""Words of rows, and names of options, that pages show as they are."""

DJANGOS_OWN = {"Search", "True", "False", "Tasks", "Database", "Backend"}
"""What Django's own templates, and an app without translations, do not translate."""

NAMED = re.compile(r"\S+ [0-9a-f-]{36} \(\w+\)|\S+ \w+ by [0-9a-f-]{36}")
"""A row as text: it stands in breadcrumbs, and the same in logs, where it is English."""

WORD = re.compile(r"[A-Za-z_]{2,}")
SPOKEN = {"aria-label", "title", "alt", "placeholder", "data-logged-out", "data-except", "data-error"}
SILENT = {"script", "style", "code", "pre", "textarea", "svg"}


class Page(HTMLParser):
    """Collects the words outside brackets of a page's texts, and of the attributes that people see or hear."""

    def __init__(self, html):
        super().__init__()
        self.texts, self.found, self.silent = [], [], 0
        self.feed(html)
        self.found += words("".join(self.texts))

    def handle_starttag(self, tag, attrs):
        given = dict(attrs)
        self.silent += tag in SILENT
        self.texts.append(" ")
        spoken = [given[name] for name in SPOKEN & given.keys()]
        spoken += [given.get("value") or ""] * (tag == "input" and given.get("type") == "submit")
        for text in spoken:
            self.found += words(text or "")

    def handle_endtag(self, tag):
        self.silent -= tag in SILENT
        self.texts.append(" ")

    def handle_data(self, text):
        # In a silent element only the brackets count: a translation may have begun before it.
        self.texts.append(re.sub(r"[^⟦⟧]", " ", text) if self.silent else text)


def words(text):
    depth, outside = 0, []
    for part in re.split("([⟦⟧])", text):
        depth += {"⟦": 1, "⟧": -1}.get(part, 0)
        outside.append(part if depth == 0 else " ")
    known = {*ROWS, *DJANGOS_OWN, *(word for type in registry for word in WORD.findall(type))}
    left = re.sub(r"[0-9a-f]{8}-[-0-9a-f]{27}|[0-9a-f]{12,64}", " ", NAMED.sub(" ", "".join(outside)))
    return [word for word in WORD.findall(left) if word not in known]


@pytest.fixture
def bracketed(monkeypatch):
    """Put brackets around each translation, Django's own, too."""

    def one(self, message):
        return f"⟦{message.rpartition(chr(4))[2]}⟧"

    monkeypatch.setattr(trans_real.DjangoTranslation, "gettext", one)
    monkeypatch.setattr(
        trans_real.DjangoTranslation, "ngettext", lambda self, one, many, n: f"⟦{(one if n == 1 else many)}⟧"
    )
    trans_real._default = None
    with translation.override("de"):
        yield
    trans_real._default = None


def fill():
    """Store jobs of all states and kinds, and something for each panel."""
    test_links.fill()
    now = timezone.now()
    for number, state in enumerate(JobState):
        by = {} if state in ("available", "scheduled", "retryable", "pending", "active") else {"finished_at": now}
        job = test_links.enqueue(100 + number, ("ignore", "reject", "replace", "replace_except_schedule")[number % 4])
        test_links.change(job, state=state, attempt=1, started_at=now, worker_id="host:1:ab", **by)
    timed = {"enqueued_at": None, "run_at": now + timedelta(hours=1), "started_at": None, "finished_at": None}
    test_links.change(test_links.enqueue(201), state="retryable", errors=failures(now), **timed)
    test_links.change(test_links.enqueue(202), state="scheduled", scheduled_at=now + timedelta(hours=1), **timed)
    test_links.change(test_links.enqueue(203), unique={"keys": 5}, retry_options={"max_attempts": "x"})
    test_links.change(test_links.enqueue(204), fingerprint=None)
    test_links.change(test_links.enqueue(205), unique_states=frozenset())
    test_links.change(
        test_links.enqueue(206), state="completed", finished_at=now, skipped="nobody", payload_pruned=True
    )
    test_links.change(test_links.enqueue(207), fingerprint="0" * 64)
    Job.objects.enqueue("email.send", {"user_id": 9})
    for number, strategy in enumerate(("constant", "linear", "polynomial", "exponential")):
        retry = RetryPolicy(max_attempts=9, backoff_strategy=strategy, non_retryable_errors=["ValueError"] * number)
        window = UniquePolicy(keys=["type", "args"], period="PT1H", states=list(JobState), on_conflict="ignore")
        job = Job.objects.enqueue("email.send", {"n": number}, unique=window, retry=retry).job
        test_links.change(
            job,
            state=("available", "completed", "active", "available")[number],
            finished_at=now if number == 1 else None,
        )
    for mode, state in enumerate(("completed", "active", "discarded", "available")):
        job = Job.objects.enqueue("email.send", {"user_id": mode}, key=f"inbox{mode}").job
        test_links.change(
            job, state=state, revision=mode, finished_at=now if state in ("completed", "discarded") else None
        )
    Job.objects.enqueue("unknown.type", {"user_id": 1})
    CronJob.objects.define("unused", "@daily", "email.send", enabled=False)
    CronJob.objects.filter(pk="unused").update(declared=True, description="")


def failures(now):
    common = {"type": "ValueError", "message": "", "occurred_at": now.isoformat()}
    return [
        {**common, "attempt": 1, "retryable": True, "retry_delay_ms": 1500},
        {**common, "attempt": 2, "retryable": False},
        {"occurred_at": now.isoformat(), "retryable": True},
    ]


def lists():
    names = ("job", "suppressedenqueue", "queue", "workerprocess", "cronjob", "workflow", "limitoverride")
    yield from (reverse(f"admin:django_ojs_unique_{name}_changelist") for name in names)


def seen(client):
    """Yield the name and the answer of every page."""
    home = reverse("admin:django_ojs_unique_job_changelist")
    for url in lists():
        yield url, client.get(url)
    yield from ((url, client.get(url)) for url in [reverse("admin:index"), test_links.HOME])
    for name in ("dashboard", "duplicates", "explain"):
        url = reverse(f"admin:django_ojs_unique_{name}")
        yield from ((f"{url}?span={span}", client.get(f"{url}?span={span}")) for span in ("hour", "day", "week"))
    ids = list(Job.objects.order_by("pk").values_list("pk", flat=True))
    for job in Job.objects.order_by("pk"):
        url = reverse("admin:django_ojs_unique_job_change", args=[job.pk])
        yield f"{url} {job.state}", client.get(url)
    for fingerprint in set(Job.objects.exclude(fingerprint=None).values_list("fingerprint", flat=True)):
        url = reverse("admin:django_ojs_unique_duplicates_of", args=[fingerprint])
        yield url, client.get(url)
    for model in ("queue", "workerprocess", "cronjob", "suppressedenqueue", "workflow"):
        url = reverse(f"admin:django_ojs_unique_{model}_changelist")
        rows = client.get(url).context_data["cl"].result_list
        for row in rows:
            change = reverse(f"admin:django_ojs_unique_{model}_change", args=[row.pk])
            yield change, client.get(change)
    for name in ("args.user_id", "send"):
        change = reverse("admin:django_ojs_unique_limitoverride_change", args=[quote(name)])
        yield change, client.get(change)
    yield "add", client.get(reverse("admin:django_ojs_unique_cronjob_add"))
    yield from asked(client, ids)
    yield from acted(client, ids, home)


def asked(client, ids):
    ask = reverse("admin:django_ojs_unique_explain")
    for query in (
        {"type": "email.send", "args": '{"user_id": 1}'},
        {"type": "unknown.type"},
        {"type": "email.send", "args": "{"},
        {"type": "email.send", "key": "inbox0"},
        {"type": "email.send", "key": "inbox3"},
        {"type": "email.send", "args": '{"user_id": 1}', "key": "inbox2", "key_mode": "unsafe_dedupe"},
    ):
        yield f"{ask} {query}", client.get(ask, query)
    for term in ("zz", "0" * 9, str(ids[0]), "0" * 64):
        yield term, client.get(reverse("admin:django_ojs_unique_duplicates"), {"q": term}, follow=True)


def acted(client, ids, home):
    for action in ("retry", "enqueue_again", "release_unique_key", "delete_selected"):
        for ticked in ({"_selected_action": ids}, {"_selected_action": ids[:1], "select_across": "1"}):
            yield action, client.post(home, {"action": action, **ticked})
    for change in (
        {"action": "retry", "resolution": "skip"},
        {"action": "cancel"},
        {"action": "retry"},
        {"action": "release_unique_key", "_confirmed": "yes"},
        {"action": "enqueue_again", "_confirmed": "yes"},
    ):
        yield str(change), client.post(home, {**change, "_selected_action": ids[::2]}, follow=True)
    crons, queues = (reverse(f"admin:django_ojs_unique_{name}_changelist") for name in ("cronjob", "queue"))
    for action in ("enable", "disable", "run_now", "delete_selected"):
        data = {"action": action, "_selected_action": ["nightly", "unused"]}
        yield action, client.post(crons, data, follow=True)
    flows, url = list(Workflow.objects.roots()), reverse("admin:django_ojs_unique_workflow_changelist")
    for more in ({}, {"_confirmed": "yes"}, {"_confirmed": "yes"}):
        data = {"action": "cancel", "_selected_action": [one.pk for one in flows], **more}
        yield f"cancel {more}", client.post(url, data, follow=True)
    yield "no id", client.post(url, {"action": "cancel", "_selected_action": ["x"]}, follow=True)
    for action in ("pause", "pause", "resume", "resume"):
        data = {"action": action, "_selected_action": ["default", "reports"]}
        yield action, client.post(queues, data, follow=True)
    acting = client.post(home, {"action": "cancel", "_selected_action": ids[:1], "select_across": "1"})
    yield "bulk action", acting
    kept = dict(acting.context_data["kept"])
    yield "done", client.post(home, {**kept, "_confirmed": "yes"})
    for url in lists():
        yield url, client.get(url)


@pytest.mark.slow
def test_every_word_of_every_page_is_marked_for_translation(admin_client, bracketed):
    fill()
    found = {}
    for name, response in seen(admin_client):
        assert response.status_code == 200, name
        for word in Page(response.content.decode()).found:
            found.setdefault(word, name)
    assert found == {}, "\n".join(f"{w} {n}" for w, n in found.items())


@pytest.mark.slow
def test_the_page_on_which_duplicates_are_resolved_is_marked(admin_client, bracketed):
    fill()
    url = reverse("admin:django_ojs_unique_resolve")
    group = admin_client.get(reverse("admin:django_ojs_unique_duplicates")).context_data["groups"][0]
    asked = admin_client.post(url, {"keep": f"newest:{group['value']}"})
    done = admin_client.post(url, {"decision": [plan["value"] for plan in asked.context_data["plans"]]})
    assert [Page(answer.content.decode()).found for answer in (asked, done)] == [[], []]


def test_a_sentence_of_a_floor_below_is_translated_with_its_parts():
    states = [JobState.COMPLETED, JobState.ACTIVE, JobState.AVAILABLE, JobState.SCHEDULED, JobState.RETRYABLE]
    policy = UniquePolicy(keys=["type", "args"], states=[*states, "pending"])
    job = Job.objects.enqueue("email.send", {"user_id": 1}, unique=policy).job
    english = uniqueness(job, timezone.now()).sentences[0]
    moment = full(job.created_at)
    assert english == f"Holds its key since {moment}, against type + args, until it is cancelled or discarded."
    with translation.override("de"):
        assert translate(english) == (
            f"Hält seinen Schlüssel seit {moment}, gegen type + args,"
            " bis sein Zustand so ist: abgebrochen oder verworfen."
        )
        assert translate("Nothing like this is known.") == "Nothing like this is known."
        assert translate("Search") == "Search"  # Django's own, which a name may be
    with translation.override("en-gb"):
        assert translate(english) == english


@pytest.fixture
def visitors_choose(settings):
    """Let the middleware choose the language of each answer, and none stay active."""
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, "django.middleware.locale.LocaleMiddleware"]
    with translation.override(translation.get_language()):
        yield


@pytest.mark.slow
def test_a_page_speaks_the_language_of_the_visitor(visitors_choose, admin_client):
    url = reverse("admin:django_ojs_unique_dashboard")
    german = admin_client.get(url, HTTP_ACCEPT_LANGUAGE="de").content.decode()
    assert "Warteschlangen" in german
    assert "Queues" not in german
    assert 'dir="rtl"' in admin_client.get(url, HTTP_ACCEPT_LANGUAGE="he").content.decode()


@pytest.mark.parametrize("path", ["jobs/nothing", "jobs?state=nothing", "queues", "nothing"])
def test_the_api_speaks_english(visitors_choose, client, admin_client, path):
    for visitor in (client, admin_client):
        english, german = (
            visitor.get(f"/ojs/v1/{path}", HTTP_ACCEPT_LANGUAGE=language).json().get("error", {})
            for language in ("en", "de")
        )
        assert {**english, "request_id": ""} == {**german, "request_id": ""}


def test_what_is_stored_stays_english():
    job = Job.objects.enqueue("email.send", {"user_id": 1}).job
    with translation.override("de"):
        assert (job.state, str(job).endswith("(available)")) == ("available", True)
