"""The pages of workers: they only show."""

import re
from datetime import timedelta

import pytest
from django.urls import reverse
from django.utils import timezone

from tests.support.past import job, worker
from tests.support.people import log_in

pytestmark = pytest.mark.django_db
LIST = "admin:django_ojs_unique_workerprocess_changelist"


def form_url(id):
    return reverse("admin:django_ojs_unique_workerprocess_change", args=[id])


def text(client, url, **query):
    answer = client.get(url, query)
    assert answer.status_code == 200
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", answer.content.decode()))


@pytest.fixture
def present():
    now = timezone.now()
    worker("w-1", heard=now, claimed=2, queues=["emails", "!old-*"])
    worker("w-2", heard=now, state="stopping")
    worker("w-3", heard=now - timedelta(minutes=3))
    return now


def test_the_list_tells_how_each_worker_stands(admin_client, present):
    shown = text(admin_client, reverse(LIST))
    for part in [r"w-1 running \ds ago emails, !old-\* 4 2", r"w-2 stopping \ds ago", "w-3 silent 3m ago"]:
        assert re.search(part, shown)


@pytest.mark.parametrize(
    ("standing", "ids"), [("running", ["w-1"]), ("stopping", ["w-2"]), ("silent", ["w-3"]), ("x", [])]
)
def test_the_list_is_narrowed_by_how_they_stand(admin_client, present, standing, ids):
    found = admin_client.get(reverse(LIST), {"standing": standing}).context["cl"].result_list
    assert [row.pk for row in found] == ids


def test_a_workers_page_links_to_the_jobs_that_it_holds(admin_client, present):
    mine = job(present, state="active", worker_id="w-1")
    other = job(present, state="active", worker_id="w-2")
    body = admin_client.get(form_url("w-1")).content.decode()
    assert reverse("admin:django_ojs_unique_job_change", args=[mine.pk]) in body
    assert str(other.pk) not in body
    assert "It has claimed no job now." in text(admin_client, form_url("w-3"))


def test_of_many_claimed_jobs_the_first_are_listed(admin_client, present, monkeypatch):
    monkeypatch.setattr("django_ojs_unique.admin.workers.MOST_CLAIMED", 1)
    for _ in range(2):
        job(present, state="active", worker_id="w-1")
    assert "These are the first 1; there are more." in text(admin_client, form_url("w-1"))


def test_jobs_are_named_to_those_who_may_view_them(client, present):
    mine = job(present, state="active", worker_id="w-1")
    log_in(client, "view_workerprocess")
    assert str(mine.pk) not in client.get(form_url("w-1")).content.decode()


def test_whatever_a_worker_says_is_shown_as_text(admin_client):
    now = timezone.now()
    worker("<script>alert(1)</script>\x1b", heard=now, queues=["<script>alert(2)</script>\x1b"], hostname="<script>h")
    job(now, state="active", worker_id="<script>alert(1)</script>\x1b", queue="<script>q")
    listed = admin_client.get(reverse(LIST))
    url = re.search(r'href="(/admin/django_ojs_unique/workerprocess/[^"]*change/[^"]*)"', listed.content.decode())[1]
    for answer in (listed, admin_client.get(url)):
        assert answer.status_code == 200
        assert not re.search(r"<script>[ahq]", answer.content.decode())


@pytest.mark.parametrize("broken", ["emails", 1, {"emails": 1}, []])
def test_a_row_whose_queues_are_broken_is_shown(admin_client, broken):
    row = worker(heard=timezone.now())
    type(row).objects.update(queues=broken)
    assert " none " in text(admin_client, reverse(LIST))
    assert admin_client.get(form_url(row.pk)).status_code == 200


def test_the_list_takes_the_same_number_of_statements_for_any_number_of_workers(
    admin_client, django_assert_max_num_queries
):
    for number in range(3):
        worker(f"w{number}", heard=timezone.now())
        with django_assert_max_num_queries(5):
            admin_client.get(reverse(LIST))


def test_workers_are_only_shown(admin_client, present):
    assert admin_client.post(form_url("w-1"), {}).status_code == 403
    assert admin_client.get(reverse("admin:django_ojs_unique_workerprocess_add")).status_code == 403
    assert admin_client.post(reverse("admin:django_ojs_unique_workerprocess_delete", args=["w-1"])).status_code == 403
