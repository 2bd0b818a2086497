"""``manage.py jobs`` over a large table: it lists and chooses jobs by an index, whatever the filter that has one."""

import io
import re

import pytest
from django.core.management import call_command
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import JobState
from tests.support.big_table import disperse, gather

pytestmark = [
    pytest.mark.every_database,
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="only PostgreSQL says how it would read"),
]

COPIES = 25
TABLE = Job._meta.db_table
FILTERS = {
    "all": [],
    **{state: ["--state", state] for state in JobState},
    "failed": ["--state", "retryable", "discarded"],
    "queue": ["--queue", "emails"],
    "queue and state": ["--queue", "emails", "--state", "available"],
    "type": ["--type", "email.digest"],
    "time": ["--since", "PT1H"],
    "dead letters": ["--dead-letter"],
}
FEW = ["available", "active", "scheduled", "retryable", "pending", "queue and state"]
"""Filters that leave few of the jobs, all of which are looked at to find the oldest."""


@pytest.fixture(scope="module", autouse=True)
def crowd(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock():
        try:
            yield gather(copies=COPIES)
        finally:
            disperse()


def plans(*arguments):
    """Return how PostgreSQL would read for each statement of a command that looks at jobs."""
    with CaptureQueriesContext(connection) as captured:
        call_command("jobs", *arguments, stdout=io.StringIO(), stderr=io.StringIO())
    found = []
    with connection.cursor() as cursor:
        for query in captured:
            if re.match(r"(SELECT|WITH)\b", query["sql"]) and TABLE in query["sql"]:
                cursor.execute(f"EXPLAIN {query['sql']}")
                found.append("\n".join([query["sql"], *(line for (line,) in cursor.fetchall())]))
    assert found
    return found


@pytest.mark.slow
def test_a_list_without_filters_walks_back_the_primary_key():
    (plan,) = plans("list")
    assert f"Index Scan Backward using {TABLE}_pkey" in plan
    assert "Sort" not in plan


@pytest.mark.slow
@pytest.mark.parametrize("chosen", FILTERS.values(), ids=FILTERS)
def test_no_list_reads_all_jobs(chosen):
    assert [plan for plan in plans("list", *chosen) if f"Seq Scan on {TABLE}" in plan] == []


@pytest.mark.parametrize("name", FEW)
def test_the_oldest_of_few_jobs_are_chosen_without_a_look_at_all(name):
    found = plans("cancel", *FILTERS[name], "--limit", "1")
    assert any("created_at" in plan and "LIMIT 1" in plan for plan in found)
    assert [plan for plan in found if f"Seq Scan on {TABLE}" in plan] == []


@pytest.mark.parametrize("chosen", [["--state", "discarded"], ["--dead-letter"]], ids=["discarded", "dead letters"])
def test_the_oldest_discarded_jobs_are_chosen_without_a_look_at_all(chosen):
    found = plans("retry", *chosen, "--limit", "1")
    assert [plan for plan in found if f"Seq Scan on {TABLE}" in plan] == []
