"""The database ends a statement that takes too long, and nothing else changes."""

import pytest
from django.db import DatabaseError, connection, transaction

from django_ojs_unique.db.time_limit import TimeLimitReached, time_limit
from django_ojs_unique.models import Queue

pytestmark = pytest.mark.django_db(transaction=True)

ENDLESS = (
    "WITH RECURSIVE numbers (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < 900)"
    " SELECT COUNT(*) FROM numbers a CROSS JOIN numbers b CROSS JOIN numbers c CROSS JOIN numbers d"
)


def ask(statement):
    with connection.cursor() as cursor:
        cursor.execute(statement)
        return cursor.fetchone()[0]


def limit_of_the_session():
    return {
        "postgresql": lambda: ask("SELECT current_setting('statement_timeout')"),
        "mysql": lambda: float(ask("SELECT @@max_statement_time")),
        "sqlite": lambda: "none",
    }[connection.vendor]()


def test_a_statement_that_takes_too_long_ends_and_the_transaction_around_it_goes_on():
    before = limit_of_the_session()
    with transaction.atomic():
        Queue.objects.create(name="q")
        with pytest.raises(TimeLimitReached), time_limit("default", 0.05):
            ask(ENDLESS)
        assert limit_of_the_session() == before
    assert Queue.objects.filter(name="q").exists()


def test_a_statement_in_time_is_answered_and_the_limit_is_gone_afterwards():
    before = limit_of_the_session()
    with time_limit("default", 60):
        assert ask("SELECT 1") == 1
    assert limit_of_the_session() == before


def test_other_errors_of_the_database_are_raised_as_they_are():
    with pytest.raises(DatabaseError) as error, time_limit("default", 60):
        ask("SELECT * FROM no_such_table")
    assert not isinstance(error.value, TimeLimitReached)
