"""The search for jobs says the same on every database: case counts, and so do accents and spaces at the end."""

from __future__ import annotations

import pytest
from django.db import connection

from django_ojs_unique.models import Job, SuppressedEnqueue
from django_ojs_unique.reporting.search import exact, of_types, readings
from tests.support.rows import insert_all

pytestmark = pytest.mark.django_db


def found(term: str) -> set[str]:
    """Return the types of the jobs that the readings of a term find."""
    jobs = Job.objects.all()
    return {job.type for reading in readings(term, "default") for job in reading.select(jobs)}


@pytest.mark.parametrize("key", ["K%1", "k%1", "cafe", "café", "k_1"])
def test_a_key_is_found_as_it_is_written(key):
    for number, other in enumerate(["K%1", "k%1", "cafe", "café", "k_1", "k%1 "]):
        Job.objects.enqueue(f"t{number}", key=other)
    assert [job.key for job in exact(Job.objects.all(), key)] == [key]


def test_a_key_is_found_by_its_index():
    insert_all(Job(type="t", queue="default", key=f"k{number}") for number in range(2_000))
    if connection.vendor == "postgresql":
        with connection.cursor() as cursor:
            cursor.execute("ANALYZE django_ojs_unique_job")
    assert [job.key for job in exact(Job.objects.all(), "k7")] == ["k7"]
    assert "ojs_job_key" in exact(Job.objects.all(), "k7").explain()


@pytest.mark.parametrize(
    ("term", "types"),
    [
        ("email.s", {"email.send"}),
        ("Email.s", set()),
        ("email_s", set()),
        ("emails", {"email.send"}),
        ("Emails", set()),
        ("émails", set()),
        ("name=Ann", {"email.send"}),
        ("name=ann", set()),
        ("name=Änn", set()),
        ("to.town=Köln", {"email.send"}),
        ("to.town=köln", set()),
        ("args:Ann", {"email.send"}),
        ("args:ann", set()),
        ("Köl", {"email.send"}),
        ("köl", set()),
        ("KÖL", set()),
    ],
)
def test_case_and_accents_count(term, types):
    Job.objects.enqueue("email.send", {"name": "Ann", "to": {"town": "Köln"}}, queue="emails")
    Job.objects.enqueue("other", {"n": 1})
    assert found(term) == types


def test_the_beginning_of_a_type_is_one_in_every_table():
    once = {"unique": {"on_conflict": "ignore"}}
    Job.objects.enqueue("email.send", **once), Job.objects.enqueue("email.send", **once)
    attempts = SuppressedEnqueue.objects.all()
    for begins, count in (("email.", 1), ("Email.", 0), ("mail", 0), ("email_", 0)):
        assert of_types(attempts, begins).count() == count
