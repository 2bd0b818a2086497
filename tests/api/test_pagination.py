"""Lists in pages: dead letters, queues and periodic jobs."""

from datetime import UTC, datetime, timedelta
from urllib.parse import urlencode

import pytest
from django.core.signing import Signer
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique.db.fields import new_id
from django_ojs_unique.models import CronJob, Job, Queue
from django_ojs_unique.reporting import bounded
from tests.support.rows import insert_all

pytestmark = [pytest.mark.django_db, pytest.mark.every_database]

NOON = datetime(2026, 2, 12, 12, tzinfo=UTC)


def dead_letters(count, queue="default", noon=NOON):
    """Make jobs of which each three finished at the same moment."""
    jobs = [
        Job(
            id=new_id(),
            type="t",
            queue=queue,
            state="discarded",
            dead_letter=True,
            finished_at=noon + timedelta(microseconds=number // 3),
        )
        for number in range(count)
    ]
    return [str(job.pk) for job in insert_all(jobs)]


def queues(count):
    names = [f"q-{number:02}" for number in range(count)]
    Queue.objects.bulk_create(Queue(name=name) for name in names)
    return names


def crons(count):
    names = [f"c-{number:02}" for number in range(count)]
    CronJob.objects.bulk_create(CronJob(name=name, expression="@daily", type="t") for name in names)
    return names


def jobs(count):
    return [str(job.pk) for job in insert_all([Job(id=new_id(), type="t") for _ in range(count)])]


LISTS = [
    pytest.param(jobs, "/ojs/v1/jobs", "jobs", "id", id="jobs"),
    pytest.param(dead_letters, "/ojs/v1/dead-letter", "jobs", "id", id="dead-letter"),
    pytest.param(queues, "/ojs/v1/queues", "queues", "name", id="queues"),
    pytest.param(crons, "/ojs/v1/cron", "crons", "name", id="cron"),
]
every_list = pytest.mark.parametrize(("make", "path", "member", "key"), LISTS)


def walk(ojs, path, member, key, between=lambda: None, **query):
    """Follow the cursors; return the keys of all entries, and the paginations."""
    seen, paginations, cursor = [], [], {}
    while True:
        answer = ojs.get(f"{path}?{urlencode({**query, **cursor})}")
        assert answer.status_code == 200, answer.content
        page = answer.json()
        seen += [entry[key] for entry in page[member]]
        paginations.append(page["pagination"])
        if not page["pagination"]["has_more"]:
            assert "next_cursor" not in page["pagination"]
            return seen, paginations
        cursor = {"cursor": page["pagination"]["next_cursor"]}
        between()


@every_list
def test_an_empty_list_is_one_page(ojs, make, path, member, key):
    page = ojs.get(path).json()
    assert page.pop("cron_jobs", []) == []
    assert page == {member: [], "pagination": {"total": 0, "has_more": False, "limit": 50, "offset": 0}}


@pytest.mark.slow
@every_list
def test_the_cursors_lead_through_all_of_a_list_once(ojs, make, path, member, key):
    made = make(10)
    seen, paginations = walk(ojs, path, member, key, limit=3)
    assert sorted(seen) == sorted(made)
    assert [(each["total"], each["limit"], each["has_more"]) for each in paginations] == [(10, 3, True)] * 3 + [
        (10, 3, False)
    ]
    assert walk(ojs, path, member, key)[0] == seen


@pytest.mark.slow
@every_list
def test_offsets_lead_through_the_same_list(ojs, make, path, member, key):
    make(7)
    whole = [entry[key] for entry in ojs.get(path).json()[member]]
    assert len(whole) == 7
    page = ojs.get(f"{path}?limit=3&offset=2").json()
    assert [entry[key] for entry in page[member]] == whole[2:5]
    assert (page["pagination"]["offset"], page["pagination"]["has_more"]) == (2, True)
    page = ojs.get(f"{path}?offset=6").json()
    assert ([entry[key] for entry in page[member]], page["pagination"]["has_more"]) == (whole[6:], False)
    assert ojs.get(f"{path}?offset=7").json()[member] == []
    assert ojs.get(f"{path}?offset=10000").json()[member] == []


@pytest.mark.parametrize("most", [1, 4, 5, 20])
@pytest.mark.parametrize(("make", "path"), [(jobs, "/ojs/v1/jobs"), (dead_letters, "/ojs/v1/dead-letter")])
def test_the_cursors_lead_through_what_a_filter_selects_once(ojs, monkeypatch, make, path, most):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", most)
    made = make(10)
    Job._base_manager.update(queue="default")
    Job._base_manager.filter(pk__in=made[::3]).update(queue="other")
    seen, _ = walk(ojs, path, "jobs", "id", queue="default", limit=3)
    whole = ojs.get(path).json()["jobs"]
    assert seen == [each["id"] for each in whole if each["queue"] == "default"]
    assert len(seen) == 6


def test_an_offset_counts_among_the_rows_that_a_page_looks_at_and_is_refused_behind_them(ojs, refused, monkeypatch):
    monkeypatch.setattr(bounded, "MOST_LOOKED_AT", 6)
    first, *_, last = jobs(8)
    path = "/ojs/v1/jobs?type=t&limit=2"
    page = ojs.get(f"{path}&offset=2").json()
    assert (len(page["jobs"]), page["pagination"]["has_more"]) == (2, True)
    error = refused(ojs.get(f"{path}&offset=5"), 400, "invalid_request")
    assert (error["details"]["field"], "next_cursor" in error["message"]) == ("offset", True)
    assert ojs.get(f"{path}&offset=0").json()["jobs"][0]["id"] == last
    Job._base_manager.exclude(pk=first).update(type="other")
    assert ojs.get(path).json()["pagination"]["total"] == 1


def test_the_last_page_ends_at_the_highest_offset_whatever_its_size(ojs):
    assert ojs.get("/ojs/v1/dead-letter?per_page=10&page=1001").status_code == 200
    assert ojs.get("/ojs/v1/dead-letter?per_page=10&page=1002").status_code == 400


@every_list
def test_a_page_that_ends_the_list_exactly_has_no_next_one(ojs, make, path, member, key):
    make(4)
    assert len(walk(ojs, path, member, key, limit=2)[1]) == 2


@pytest.mark.slow
@every_list
def test_without_a_limit_a_page_has_fifty_entries_and_never_more_than_two_hundred(ojs, make, path, member, key):
    make(51)
    assert len(ojs.get(path).json()[member]) == 50
    assert len(ojs.get(f"{path}?limit=200").json()[member]) == 51


@every_list
@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("limit=0", "limit"),
        ("limit=201", "limit"),
        ("limit=-1", "limit"),
        ("limit=ten", "limit"),
        ("limit=", "limit"),
        ("limit=1e1", "limit"),
        ("limit=%D9%A1", "limit"),
        ("offset=-1", "offset"),
        ("offset=99999999999999999999", "offset"),
        ("offset=10001", "offset"),
        ("per_page=200&page=52", "page"),
        ("cursor=garbage", "cursor"),
        ("cursor=%00", "cursor"),
        ("cursor=%ED%A0%80:x", "cursor"),
        ("cursor=WyJ4Il0:invalid", "cursor"),
    ],
)
def test_what_is_no_page_is_refused_by_the_name_of_the_parameter(ojs, refused, make, path, member, key, query, field):
    error = refused(ojs.get(f"{path}?{query}"), 400, "invalid_request")
    assert error["details"]["field"] == field
    assert error["message"].startswith(f"{field}: ")


@pytest.mark.slow
@every_list
def test_a_cursor_of_another_list_or_beside_an_offset_is_refused(ojs, refused, make, path, member, key):
    make(2)
    cursor = ojs.get(f"{path}?limit=1").json()["pagination"]["next_cursor"]
    error = refused(ojs.get(f"{path}?{urlencode({'cursor': cursor, 'offset': 1})}"), 400, "invalid_request")
    assert error["details"]["field"] == "offset"
    other = Signer(salt="django_ojs_unique.other").sign_object(["x"])
    refused(ojs.get(f"{path}?{urlencode({'cursor': other})}"), 400, "invalid_request")
    assert ojs.get(f"{path}?cursor=&limit=1").json()[member] == ojs.get(f"{path}?limit=1").json()[member]


@every_list
def test_a_page_that_is_read_again_is_the_same_byte_for_byte(ojs, make, path, member, key):
    make(3)
    assert ojs.get(f"{path}?limit=2").content == ojs.get(f"{path}?limit=2").content


@pytest.mark.slow
def test_what_comes_and_goes_between_two_pages_neither_repeats_nor_hides_an_entry(ojs):
    made = set(dead_letters(30))
    gone = set()

    def change():
        """Add letters in front, and take away one that was shown and one that was not."""
        dead_letters(2, "new", NOON.replace(hour=13))
        rows = Job.objects.filter(queue="default").order_by("finished_at")
        for row in (rows.first(), rows.last()):
            gone.add(str(row.pk))
            row.delete()

    seen, _ = walk(ojs, "/ojs/v1/dead-letter", "jobs", "id", between=change, limit=4)
    assert len(seen) == len(set(seen))
    assert made - gone <= set(seen) <= made


def test_a_page_of_dead_letters_is_read_from_the_index(ojs):
    """Neither the jobs before the page nor those that are no dead letters are looked at."""
    if connection.vendor != "sqlite":
        pytest.skip("what a planner takes for a few rows says nothing")
    dead_letters(4)
    cursor = ojs.get("/ojs/v1/dead-letter?limit=1").json()["pagination"]["next_cursor"]
    with CaptureQueriesContext(connection) as queries:
        ojs.get(f"/ojs/v1/dead-letter?{urlencode({'cursor': cursor})}")
    looks = [query["sql"] for query in queries if '"dead_letter"' in query["sql"]]
    assert len(looks) == 3  # the count, the sizes, the rows
    for sql in looks:
        with connection.cursor() as explain:
            explain.execute(f"EXPLAIN QUERY PLAN {sql}")
            plan = str(explain.fetchall())
        assert "SEARCH" in plan
        assert "ojs_job_finished" in plan
    assert "finished_at<" in plan
