"""What an operation reads depends neither on the planner's statistics nor on the size of the table."""

import json
import os

import pytest
from django.db import connection

from django_ojs_unique.db.constraints import unfinished_or_holding
from django_ojs_unique.models import Job
from tests.support import growth

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(connection.vendor != "postgresql", reason="its planner chooses by statistics"),
    pytest.mark.slow,
]

WAITING, FINISHED = (int(os.environ.get(f"OJS_GROWTH_{name}", "20000")) for name in ("WAITING", "FINISHED"))
IN_A_SMALL_TABLE = 20
"""A table of ten jobs has few blocks: to read all of them costs less than to search an index."""
OFTEN_IN_A_SMALL_TABLE = {"queues with rules": 80}
"""What looks into it five times for each queue."""


@pytest.fixture(scope="module")
def blocks(django_db_setup, django_db_blocker):
    """The blocks that each operation reads, by situation."""
    with django_db_blocker.unblock():
        return {name: growth.measure() for name in growth.situations(WAITING, FINISHED)}


@pytest.mark.parametrize("operation", growth.OPERATIONS)
def test_it_reads_at_most_twice_what_it_reads_at_best(blocks, operation):
    read = {situation: found[operation] for situation, found in blocks.items()}
    small = OFTEN_IN_A_SMALL_TABLE.get(operation, IN_A_SMALL_TABLE)
    assert max(read.values()) <= 2 * min(read.values()) + small, read


@pytest.fixture(scope="module")
def large_table(django_db_setup, django_db_blocker):
    with django_db_blocker.unblock(), growth.without_autovacuum():
        growth.fill_waiting(1, 5_000)
        growth.fill_finished(1, 100_000)
        growth.raw(f"VACUUM ANALYZE {growth.TABLE}")
        yield
        growth.raw(f"TRUNCATE {growth.TABLE} CASCADE")


@pytest.mark.parametrize("name", growth.LISTS)
def test_a_list_reads_a_bounded_part_of_the_table(large_table, name):
    read = growth.blocks(name)
    assert read <= 5 * growth.MOST


def test_postgresql_expects_few_live_jobs_of_a_key_with_many_finished_ones(large_table):
    found = Job.objects.filter(unfinished_or_holding(fingerprint=growth.fingerprint_of(growth.HOT)))
    (plan,) = json.loads(found.explain(format="json"))
    assert plan["Plan"]["Plan Rows"] < growth.MOST, plan
