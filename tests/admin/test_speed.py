"""The admin over big tables: each page makes the same few queries, and none reads a table from end to end."""

import re
from dataclasses import dataclass
from html import unescape
from urllib.parse import urlencode, urljoin

import pytest
from django.contrib.admin.templatetags.admin_list import result_headers
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from django_ojs_unique.models import CronJob, Job, LimitOverride, Queue, SuppressedEnqueue, WorkerProcess
from tests.support.big_table import disperse, gather

ON_POSTGRES = connection.vendor == "postgresql"
pytestmark = [
    pytest.mark.django_db,
    pytest.mark.every_database,
    pytest.mark.slow,
    pytest.mark.skipif(not ON_POSTGRES, reason="filling the tables takes long, and only PostgreSQL explains its plans"),
]

MOST_QUERIES = {
    "job list": 14,
    "attempt list": 6,
    "other lists": 8,
    "job page": 18,
    "duplicates": 12,
    "dashboard": 16,
}
"""How many queries a page of each part may make; two of them are those of the session and the user."""

COPIES = 101
JOBS, ATTEMPTS = (f"Seq Scan on {model._meta.db_table} " for model in (Job, SuppressedEnqueue))
FIRST_ROWS = re.compile(r"\bLimit .*\n +->  Seq Scan on .*")
READING = re.compile(rf"\(*(SELECT|WITH)\b.* \W?({Job._meta.db_table}|{SuppressedEnqueue._meta.db_table})\b", re.DOTALL)


@dataclass(frozen=True)
class Visit:
    """What a page answered, how many queries it made, and those that read a big table from end to end, with plans."""

    status: int
    queries: int
    scans: list[str]


@pytest.fixture(scope="module")
def visits(django_db_setup, django_db_blocker):
    """Visit the main pages over a small table, and every page over a large one: the visits by part and page, twice."""
    with django_db_blocker.unblock():
        staff = User.objects.create_superuser("speed")
        client = Client(raise_request_exception=False)
        client.force_login(staff)
        try:
            crowd = gather(1800)  # so that the hot job was met more often than its page shows
            small = visit_all(client, main_pages(crowd))
            disperse()
            crowd = gather(copies=COPIES) if ON_POSTGRES else gather(4000)
            large = visit_all(client, pages(client, crowd), explain=ON_POSTGRES)
            assert not ON_POSTGRES or scans(str(Job.objects.filter(attempt=7).query)), "scans are not seen"
        finally:
            disperse()
            client.logout()
            staff.delete()
    return small, large


def visit_all(client, pages, explain=False):
    """Visit every page of every part."""
    return {part: {name: visit(client, url, explain) for name, url in urls.items()} for part, urls in pages.items()}


def main_pages(crowd):
    """Return a page of each part, and those of some jobs."""
    lists = {"job list": Job, "attempt list": SuppressedEnqueue}
    return {
        **{part: {"all": list_url(model)} for part, model in lists.items()},
        "other lists": {model.__name__: list_url(model) for model in (Queue, WorkerProcess, CronJob, LimitOverride)},
        "job page": {
            name: reverse("admin:django_ojs_unique_job_change", args=[job.pk]) for name, job in vars(crowd).items()
        },
        **{part: {"all": reverse(f"admin:django_ojs_unique_{part}")} for part in ("duplicates", "dashboard")},
    }


def pages(client, crowd):
    """Return the pages of every part, under names that do not depend on the rows."""
    main, hot = main_pages(crowd), crowd.hot
    ids = {"id": hot.pk, "fingerprint": hot.fingerprint, "beginning": hot.fingerprint[:8]}
    words = {"key": crowd.keyed.key, "queue": hot.queue, "type": hot.type, "kind": hot.type[:5]}
    texts = {"args": "user_id=1", "text": "args:locale", "nothing": "no such job"}
    return main | {
        "job list": listing(client, main["job list"]["all"], ids | words | texts),
        "attempt list": listing(client, main["attempt list"]["all"], ids),
        "duplicates": linked(client, main["duplicates"]["all"]),
        "dashboard": linked(client, main["dashboard"]["all"]),
    }


def listing(client, page, terms):
    """Return the pages of a list: by each choice of each filter, each order, each term, and by dates."""
    answer = client.get(page)
    if answer.status_code != 200:
        return {"all": page}
    changes = answer.context["cl"]
    queries = {"all": "", "next": "?p=2"}
    for spec in changes.filter_specs:
        for choice in spec.choices(changes):
            if not choice["selected"]:
                queries[f"{spec.title}: {choice['display']}"] = choice["query_string"]
    orders = [header for header in result_headers(changes) if header.get("sortable")]
    queries |= {f"by {header['text']}": header["url_primary"] for header in orders}
    queries |= {f"search: {name}": "?" + urlencode({"q": term}) for name, term in terms.items()}
    if hasattr(changes, "dates") or changes.date_hierarchy:
        now = timezone.localtime()
        dates = [f"created_at__{part}={getattr(now, part)}" for part in ("year", "month", "day")]
        queries |= {f"date: {number}": "?" + "&".join(dates[:number]) for number in (1, 2, 3)}
    return {name: page + query for name, query in queries.items()}


def list_url(model):
    return reverse(f"admin:django_ojs_unique_{model._meta.model_name}_changelist")


def linked(client, page):
    """Return a page and one of each kind that it leads to below itself: spans, charts, details."""
    found = {"all": page}
    waiting = [page]
    while waiting:
        text = client.get(waiting.pop()).content.decode()
        for link in re.findall(rf'(?:href|src|data-[a-z-]+)="((?:\?|{page})[^"#]*)', text):
            url = urljoin(page, unescape(link))
            name = re.sub("[0-9a-f]{12,}", "...", url)
            if name not in found:
                found[name] = url
                waiting.append(url)
    return found


def visit(client, page, explain=True):
    """Visit a page; ``explain`` asks PostgreSQL how it reads for each of its queries."""
    WorkerProcess.objects.update(heartbeat_at=timezone.now())  # a slow machine must not let them fall silent meanwhile
    with CaptureQueriesContext(connection) as captured:
        status = client.get(page).status_code
    queries = [query["sql"] for query in captured] if explain and status == 200 else []
    return Visit(status, len(captured), [scan for query in queries if READING.match(query) for scan in scans(query)])


def scans(query):
    """Return the query with its plan if PostgreSQL would read the jobs as a whole, or has no other way to the attempts.

    A span can be most of the attempts; then it takes the table for good reasons.
    """
    scanned = JOBS in (plan := explained(query)) or (ATTEMPTS in plan and ATTEMPTS in explained(query, scan="off"))
    return [f"{query}\n{plan}"] if scanned else []


def explained(query, scan="on"):
    """Return how PostgreSQL would read, with ``scan`` off by indexes wherever it can.

    What takes the first rows of a table, whichever they are, is left out: it does so only where most of them will do.
    """
    with connection.cursor() as cursor:
        cursor.execute(f"SET enable_seqscan = {scan}")
        cursor.execute(f"EXPLAIN {query}")
        plan = "\n".join(line for (line,) in cursor.fetchall())
        cursor.execute("RESET enable_seqscan")
    return FIRST_ROWS.sub("", plan)


@pytest.mark.parametrize("kind", ["state: active", "by ", "search: nothing", "date: 3", "span=week", ".svg", "..."])
def test_the_visits_reach_filters_orders_searches_dates_spans_charts_and_details(visits, kind):
    assert [page for pages in visits[1].values() for page in pages if kind in page]


@pytest.mark.parametrize("part", MOST_QUERIES)
def test_every_page_answers(visits, part):
    for size in visits:
        assert {page: visit.status for page, visit in size[part].items() if visit.status != 200} == {}


@pytest.mark.parametrize("part", MOST_QUERIES)
def test_a_page_makes_few_queries_and_no_more_over_a_large_table(visits, part):
    small, large = ({page: visit.queries for page, visit in size[part].items()} for size in visits)
    assert {page: count for page, count in large.items() if count > MOST_QUERIES[part]} == {}
    assert {page: large[page] for page, count in small.items() if large[page] > count} == {}


@pytest.mark.skipif(not ON_POSTGRES, reason="only PostgreSQL says how it would read")
@pytest.mark.parametrize("part", MOST_QUERIES)
def test_no_page_reads_a_big_table_from_end_to_end(visits, part):
    scans = [f"{page}\n{scan}" for page, visit in visits[1][part].items() for scan in visit.scans]
    assert not scans, f"{len(scans)} scans, as in\n\n{scans[0]}"
