"""The dashboard: what it shows, who may see and do what, and that its pictures are nothing but pictures."""

import re
from datetime import timedelta
from html import unescape
from xml.etree import ElementTree

import pytest
from django.contrib.admin.models import LogEntry
from django.test import Client
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique import job as declare
from django_ojs_unique.admin.charts import draw, jobs_chart, scale, seconds, waits_chart
from django_ojs_unique.admin.dashboard_cells import _rate
from django_ojs_unique.models import Job, Queue
from django_ojs_unique.reporting.activity import activity
from django_ojs_unique.reporting.times import SPANS
from django_ojs_unique.reporting.waits import waits
from tests.support.past import NOW, ago, job, suppressed, worker
from tests.support.people import give, log_in

pytestmark = pytest.mark.django_db
EVIL = "<script>alert(1)</script>\x1b[31m"


def page(client, **query):
    return client.get(reverse("admin:django_ojs_unique_dashboard"), query)


def text(client, **query):
    """Return the page's text, without tags and in single spaces."""
    answer = page(client, **query)
    assert answer.status_code == 200
    body = answer.content.decode().partition('id="content-main"')[2]
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", body))


def post(client, **form):
    """Send the form; return the messages."""
    answer = client.post(reverse("admin:django_ojs_unique_dashboard") + "?span=day", form, follow=True)
    assert answer.redirect_chain[-1][0].endswith("dashboard/?span=day")
    return [str(message) for message in answer.context["messages"]]


def picture(client, name="jobs", **query):
    return client.get(reverse("admin:django_ojs_unique_chart", args=[name]), query)


# what it shows


def test_it_shows_queues_with_their_jobs_their_limits_and_their_pauses(admin_client):
    now = timezone.now()
    oldest = job(now - timedelta(minutes=7), queue="emails")
    job(now, queue="emails", state="active")
    for state in ("completed", "completed", "completed", "discarded"):
        job(now - timedelta(seconds=5), queue="emails", state=state)
    Queue.objects.limit("emails", 3)
    Queue.objects.pause("reports")
    body = page(admin_client).content.decode()
    assert f'href="{reverse("admin:django_ojs_unique_job_change", args=[oldest.pk])}"><code>7m</code>' in body
    shown = text(admin_client)
    assert " 1 of 3 " in shown
    assert re.search(r" 1 25\.0% ", shown)
    assert re.search(r"reports .* paused \ds ago", shown)
    assert f"{reverse('admin:django_ojs_unique_job_changelist')}?queue=emails&amp;state=available" in body


def test_it_shows_workers_and_warns_of_jobs_that_none_of_them_takes(admin_client):
    now = timezone.now()
    job(now, queue="emails")
    worker("w-running", heard=now, queues=["reports", "!old-*"], claimed=2)
    worker("w-stopping", heard=now, state="stopping")
    worker("w-silent", heard=now - timedelta(minutes=2))
    shown = text(admin_client)
    for part in [r"w-running running \ds ago", "w-stopping stopping", "w-silent silent 2m ago", r"reports, !old-\*"]:
        assert re.search(part, shown)
    assert "No worker takes these queues: emails . Jobs wait there, and no running worker takes them." in shown


def test_it_names_types_without_a_handler_and_the_names_that_were_meant(admin_client, handlers, monkeypatch):
    declare("email.sent")(lambda: None)
    worker("w", heard=timezone.now(), queues=["email"])
    job(timezone.now(), queue="emails")
    shown = text(admin_client)
    assert "No handler here: Jobs wait whose types no handler of this project runs: email.send (did you mean" in shown
    assert "in which there is no job: was &#x27;emails&#x27; meant?" in shown
    declare("email.send")(lambda: None)
    assert "No handler here" not in text(admin_client)
    cut = "The first waiting jobs have handlers here; not all were looked at."
    assert cut not in text(admin_client)
    monkeypatch.setattr("django_ojs_unique.reporting.unclaimed.MOST_IN_HEADS", 1)
    assert cut in text(admin_client)


@pytest.mark.slow
def test_failures_are_counted_by_type_and_last_error_and_each_count_links_to_those_jobs(admin_client):
    now = timezone.now()
    for error in ("ValueError", "ValueError", "<b>", ""):
        errors = [{"type": error, "message": "<i>why</i>"}] if error else []
        job(now - timedelta(minutes=1), state="discarded", errors=errors, queue="emails")
    job(now - timedelta(minutes=1), state="retryable", errors=[{"type": "ValueError"}])
    job(now - timedelta(days=2), state="discarded", errors=[{"type": "ValueError"}], queue="emails")
    job(now - timedelta(minutes=1), state="discarded", queue="emails", started_at=None)  # it expired
    body = page(admin_client).content.decode()
    told = body.partition('id="ojs-failures"')[2].partition("</section>")[0]
    assert "&lt;i&gt;why&lt;/i&gt;" in told
    links = {
        unescape(url): int(count) for url, count in re.findall(r'<td class="number"><a href="([^"]*)">(\d+)</a>', told)
    }
    assert sorted(links.values()) == [1, 1, 1, 2]
    queues = body.partition('id="ojs-queues"')[2].partition("</section>")[0]
    (failed,) = re.findall(r'href="([^"]*state=failed[^"]*)">4</a>', queues)
    for url, count in {**links, unescape(failed): 4}.items():
        assert len(admin_client.get(url).context["cl"].result_list) == count


def test_nothing_failed_is_said(admin_client):
    job(timezone.now(), state="completed")
    assert "No job has failed for good since" in text(admin_client)


def test_it_says_when_not_all_failures_were_looked_at(admin_client, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.reporting.failures.MOST_FAILED", 1)
    for _ in range(2):
        job(timezone.now() - timedelta(minutes=1), state="discarded")
        job(timezone.now() - timedelta(minutes=1), state="retryable")
    shown = text(admin_client)
    assert re.search(r"Of those that failed, the newest \d+ were looked at\.", shown)
    assert re.search(r"Of those that wait for a retry, \d+ were looked at\.", shown)


@pytest.mark.parametrize(("minutes", "paused", "long"), [(4, False, False), (6, False, True), (6, True, False)])
def test_long_waits_are_marked_by_a_rule_that_the_page_says(admin_client, minutes, paused, long):
    job(timezone.now() - timedelta(minutes=minutes), queue="emails")
    if paused:
        Queue.objects.pause("emails")
    body = page(admin_client).content.decode()
    assert "marked as long when a job has waited for more than 5 minutes in a queue that is not paused" in body
    assert ('<span class="ojs-badge ojs-retryable">long</span>' in body) == long
    assert ("Long waits:" in body) == long


@pytest.mark.slow
def test_it_shows_how_long_jobs_waited_and_ran_and_how_many_end_in_a_time(admin_client):
    now = timezone.now()
    for number in range(300):
        job(now - timedelta(seconds=70 - number / 10), state="completed", waited=1.5, ran=20, queue="emails")
    shown = text(admin_client)
    assert re.search(r"emails 0 0 0 0 none 1\.5 s 1\.5 s 300 \d", shown)
    assert re.search(r"/min|/s ", shown)
    assert re.search(r"email\.send [1-3]\d\d 20\.0 s 20\.0 s 20\.0 s", shown)


@pytest.mark.parametrize(
    ("count", "hours", "said"),
    [(7200, 1, "2.0/s"), (36_000, 0.5, "20/s"), (600, 1, "10/min"), (3, 24, "0.1/h"), (15, 4 / 3600, "")],
)
def test_a_rate_is_said_in_the_unit_that_suits(count, hours, said):
    assert _rate(count, timedelta(hours=hours)) == said


@pytest.mark.slow
def test_it_shows_what_each_worker_runs_now(admin_client):
    now = timezone.now()
    worker("w-busy", heard=now, claimed=5)
    worker("w-idle", heard=now)
    runs = [job(now - timedelta(minutes=9 - n), state="active", worker_id="w-busy", progress=0.5) for n in range(5)]
    body = page(admin_client).content.decode()
    for run in runs:
        assert (f'/job/{run.pk}/change/"><code>email.send' in body) == (run in runs[:3])
    assert re.search(r"w-busy running .*email\.send 8m, 50% .*and 2 more", text(admin_client))
    assert re.search(r"w-idle running \S+ ago \S+ ago nothing", text(admin_client))


@pytest.mark.slow
def test_it_says_when_not_all_running_jobs_were_looked_at(admin_client, monkeypatch):
    worker("w", heard=timezone.now())
    monkeypatch.setattr("django_ojs_unique.reporting.workers.MOST_RUNNING", 2)
    for running in range(3):
        assert ("Of the jobs that run now, 2 were looked at" in text(admin_client)) == (running == 2)
        job(timezone.now(), state="active", worker_id="w")


# what renews itself


def test_the_first_lines_come_alone_and_take_one_statement(admin_client, django_assert_num_queries):
    now = timezone.now()
    oldest = job(now - timedelta(minutes=7), queue="emails")
    job(now, state="active")
    job(now, state="pending")
    with django_assert_num_queries(3):  # two of them read the session and the user
        answer = admin_client.get(reverse("admin:django_ojs_unique_dashboard_now"))
    alone = answer.content.decode().strip()
    assert alone.startswith('<section id="ojs-now" data-refresh')
    assert str(oldest.pk) in alone
    assert re.findall(r">(\d)</a>", alone) == ["1", "1", "1"]
    assert alone in page(admin_client).content.decode()


def test_the_first_lines_are_for_those_who_may_view_jobs_and_to_be_looked_at(client):
    url = reverse("admin:django_ojs_unique_dashboard_now")
    assert client.get(url).status_code == 302
    user = log_in(client, "view_queue")
    assert client.get(url).status_code == 403
    give(user, "view_job")
    assert client.get(url).status_code == 200
    assert client.post(url).status_code == 405


def test_nothing_at_all_explains_itself(admin_client):
    shown = text(admin_client)
    assert "No job was ever enqueued here" in shown
    assert "No worker runs. Start one: manage.py runworker" in shown
    assert "No job that waited has completed" in page(admin_client).content.decode()
    job(timezone.now())
    assert "No job was ever enqueued here" not in text(admin_client)


@pytest.mark.parametrize("span", SPANS)
def test_the_time_span_is_chosen_by_a_link(admin_client, span):
    body = page(admin_client, span=span).content.decode()
    assert re.search(rf'href="\?span={span}" aria-current="true"', body)
    assert len(re.findall(r"aria-current=\"true\"", body)) == 1
    assert f"/dashboard/jobs.svg?span={span}&amp;v=" in body


@pytest.mark.slow
@pytest.mark.parametrize("span", ["", "year", "hour\0", "<b>", "hour,day"])
def test_an_unknown_time_span_shows_the_last_hour(admin_client, span):
    assert page(admin_client, span=span).context["span"] is SPANS["hour"]
    assert picture(admin_client, span=span).status_code == 200


def test_whatever_names_hold_is_shown_as_text(admin_client):
    now = timezone.now()
    job(now, queue=EVIL)
    job(now - timedelta(seconds=5), queue=EVIL, state="completed")
    Queue.objects.create(name=f"{EVIL}2", paused_at=now)
    worker(f"w{EVIL}", heard=now, queues=[EVIL])
    body = page(admin_client).content.decode()
    assert "<script>alert" not in body
    assert "&lt;script&gt;alert(1)&lt;/script&gt;\\x1b[31m" in body
    assert all(line.isprintable() for line in re.sub(r'value="[^"]*"', "", body).splitlines())


def test_it_has_neither_scripts_nor_styles_nor_handlers_of_its_own(admin_client):
    job(timezone.now(), queue="emails")
    Queue.objects.pause("emails")
    body = page(admin_client).content.decode().partition('id="content-main"')[2]
    assert not re.search(r"<script|<style|\sstyle=|\son[a-z]+=", body.partition("</main>")[0])


@pytest.mark.slow
def test_the_number_of_statements_does_not_grow(admin_client, django_assert_num_queries):
    now = timezone.now()
    for number in range(3):
        job(now, queue=f"q{number}")
        worker(f"w{number}", heard=now)
        Queue.objects.limit(f"q{number}", 1)
        with django_assert_num_queries(14):  # two of them read the session and the user
            page(admin_client)


# who may see what


def test_who_may_not_view_jobs_sees_nothing(client):
    log_in(client, "view_queue", "view_workerprocess", "pause_queue")
    assert page(client).status_code == 403
    assert picture(client).status_code == 403
    assert client.post(reverse("admin:django_ojs_unique_dashboard"), {"pause": "emails"}).status_code == 403
    assert not Queue.objects.exists()


def test_who_is_not_logged_in_is_sent_to_the_login(client):
    assert page(client).status_code == 302
    assert picture(client).status_code == 302


def test_workers_are_shown_to_those_who_may_view_them(client):
    job(timezone.now(), queue="emails")
    worker("w-secret", queues=["secret-queue"])
    user = log_in(client, "view_job")
    shown = text(client)
    assert not re.search("w-secret|secret-queue|Workers|no worker", shown, re.IGNORECASE)
    give(user, "view_workerprocess")
    assert "w-secret" in text(client)


def test_queues_are_paused_by_those_who_may(client):
    job(timezone.now(), queue="emails")
    log_in(client, "view_job")
    assert b"<button form" not in page(client).content
    assert client.post(reverse("admin:django_ojs_unique_dashboard"), {"pause": "emails"}).status_code == 403
    assert not Queue.objects.exists()


# pause and resume


@pytest.mark.slow
def test_pausing_and_resuming_says_what_happened_and_is_logged(client):
    log_in(client, "view_job", "pause_queue")
    assert post(client, pause="emails") == ["Paused emails."]
    assert Queue.objects.get().paused_at
    assert post(client, pause="emails") == ["Was paused already: emails."]
    assert post(client, resume="emails") == ["Resumed emails."]
    assert Queue.objects.get().paused_at is None
    assert post(client, resume="emails") == ["Was not paused: emails."]
    logged = LogEntry.objects.order_by("pk").values_list("object_id", "content_type__model", "change_message")
    assert list(logged) == [("emails", "queue", "Paused."), ("emails", "queue", "Resumed.")]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", "*", "No Queue", EVIL, "x\0", "q" * 129])
def test_what_is_no_queue_is_refused_with_the_hint(admin_client, name):
    for action in ("pause", "resume"):
        (message,) = post(admin_client, **{action: name})
        assert re.search("Write lower-case letters|Did you mean|Shorten it", message)
        assert message.isprintable()
    assert not Queue.objects.exists()
    assert not LogEntry.objects.exists()


def test_a_form_that_says_nothing_changes_nothing(admin_client):
    assert post(admin_client) == []


def test_the_form_is_protected_against_other_sites(admin_user):
    client = Client(enforce_csrf_checks=True)
    client.force_login(admin_user)
    assert client.post(reverse("admin:django_ojs_unique_dashboard"), {"pause": "emails"}).status_code == 403
    assert not Queue.objects.exists()


def test_looking_changes_nothing(admin_client):
    assert admin_client.get(reverse("admin:django_ojs_unique_dashboard"), {"pause": "emails"}).status_code == 200
    assert not Queue.objects.exists()


# charts


def charts():
    return [
        jobs_chart(activity("default", SPANS["hour"], NOW), SPANS["hour"]),
        waits_chart(waits("default", SPANS["hour"], NOW), SPANS["hour"]),
    ]


def test_a_chart_says_its_numbers_in_a_sentence_and_in_a_table():
    for _ in range(3):
        job(ago(minutes=9), state="completed", waited=1.5)
    job(ago(minutes=9), state="discarded")
    job(ago(minutes=1))
    suppressed(ago(minutes=1))
    jobs, waited = charts()
    assert jobs.sentence == (
        "Jobs since 14:05: 5 enqueued, 1 suppressed, 3 completed, 1 failed. Most were enqueued from 14:50 to 14:55: 4."
    )
    assert jobs.rows[0] == ("15:00 to 15:05", ["1", "1", "0", "0"])
    assert jobs.rows[2] == ("14:50 to 14:55", ["4", "0", "3", "1"])
    assert waited.sentence.startswith(
        "Of the jobs that completed from 14:50 to 14:55, half had waited up to 1.5 s, and 95 of 100 up to 1.5 s."
    )
    assert waited.rows[2] == ("14:50 to 14:55", ["1.5 s", "1.5 s"])
    assert waited.rows[0] == ("15:00 to 15:05", ["-", "-"])


def test_the_address_of_a_picture_changes_with_its_numbers():
    before = [chart.version for chart in charts()]
    assert before == [chart.version for chart in charts()]
    job(ago(minutes=9), state="completed")
    assert not set(before) & {chart.version for chart in charts()}


@pytest.mark.parametrize(
    ("number", "said"),
    [(None, "-"), (0, "0 ms"), (0.0421, "42 ms"), (1, "1.0 s"), (90, "1.5 min"), (7200, "2.0 h"), (360_000, "100.0 h")],
)
def test_seconds_are_said_in_the_unit_that_suits(number, said):
    assert seconds(number) == said


@pytest.mark.parametrize("name", ["jobs", "waits"])
@pytest.mark.parametrize("span", SPANS)
def test_a_picture_is_svg_and_nothing_runs_or_loads_in_it(admin_client, name, span):
    now = timezone.now()
    for number in range(12):
        job(now - timedelta(minutes=5 * number), state="completed", waited=number / 7)
    answer = picture(admin_client, name, span=span)
    assert answer.headers["Content-Type"] == "image/svg+xml"
    assert "private" in answer.headers["Cache-Control"]
    root = ElementTree.fromstring(answer.content)
    assert {element.tag.rpartition("}")[2] for element in root.iter()} <= {
        *("svg", "defs", "style", "title", "g", "rect", "path", "text")
    }
    text = answer.content.decode()
    assert not re.search(r"script|\son[a-z]+=|@import|url\(|href=", text.replace("http://www.w3.org/", ""))
    assert "prefers-color-scheme" in text


def test_the_lines_of_a_picture_differ_without_colour():
    for state in ("completed", "discarded"):
        job(ago(minutes=9), state=state)
    svg = draw(charts()[0]).decode()
    assert len(set(re.findall(r"stroke-dasharray:([^}]*)", svg))) == 4
    shapes = {at: re.findall(rf'<g class="color-{at}">.*?<path d="M[\d. -]+([^"M]*)', svg) for at in range(4)}
    assert len({shape[0] for shape in shapes.values()}) == 4


def test_a_part_without_a_number_interrupts_the_line():
    for minutes in (9, 14, 29):
        job(ago(minutes=minutes), state="completed", waited=1)
    svg = draw(charts()[1]).decode()
    (line, _) = re.findall(r'<g class="color-\d"><path class="line" d="([^"]*)"', svg)
    assert re.sub(r"[\d. ]", "", line) == "MML"
    assert "Nothing to show" not in svg


def test_a_picture_without_numbers_says_so():
    assert "Nothing to show" in draw(charts()[1]).decode()


@pytest.mark.parametrize(
    ("highest", "is_counted", "lines"),
    [
        (1, True, [0, 1]),
        (3, True, [0, 1, 2, 3]),
        (7, True, [0, 2, 4, 6, 8]),
        (12, True, [0, 5, 10, 15]),
        (35_714, True, [0, 10_000, 20_000, 30_000, 40_000]),
        (0.8, False, [0, 0.2, 0.4, 0.6, 0.8]),
    ],
)
def test_the_scale_has_a_few_round_numbers(highest, is_counted, lines):
    assert scale(highest, is_counted) == pytest.approx(lines)


@pytest.mark.parametrize("name", ["nothing", "Jobs", "jobs-jobs"])
def test_there_is_no_other_picture(admin_client, name):
    assert picture(admin_client, name).status_code == 404


def test_a_picture_is_only_looked_at(admin_client):
    assert admin_client.post(reverse("admin:django_ojs_unique_chart", args=["jobs"])).status_code == 405


def test_the_tables_are_folded_and_the_picture_is_described(admin_client):
    Job.objects.enqueue("email.send")
    body = page(admin_client).content.decode()
    assert re.search(r'<img [^>]*alt="Jobs since \d\d:\d\d: 1 enqueued, 0 suppressed, 0 completed, 0 failed\.', body)
    assert 'id="ojs-numbers-jobs">' in body
    assert "<caption>Jobs in the last hour</caption>" in body
