"""The trigger of the page "From SQL" on each database: an order that is paid enqueues, once, if it is committed."""

import pytest
from django.db import connection, transaction

from django_ojs_unique.maintenance import inbox
from django_ojs_unique.models import Job
from tests.support.pages import ROOT, blocks

pytestmark = pytest.mark.django_db(transaction=True)

NAMES = {"postgresql": "-- PostgreSQL", "mysql": "-- MariaDB", "sqlite": "-- SQLite"}


def execute(*statements):
    with connection.cursor() as cursor:
        for statement in statements:
            cursor.execute(statement)


@pytest.fixture
def orders():
    page = ROOT / "docs/from-sql.md"
    written = [*blocks(page, "sql"), *blocks(page, "plpgsql")]
    (trigger,) = (sql for _, sql, _ in written if sql.startswith(NAMES[connection.vendor]))
    execute(
        "CREATE TABLE shop_order (id integer PRIMARY KEY, paid boolean NOT NULL)",
        trigger,
        "INSERT INTO shop_order (id, paid) VALUES (1, false), (2, false)",
    )
    yield
    execute("DROP TABLE shop_order", *["DROP FUNCTION order_paid"] * (connection.vendor == "postgresql"))


def pay(id):
    execute(f"UPDATE shop_order SET paid = true WHERE id = {id}")


def test_an_order_that_is_paid_is_shipped_once(orders):
    with transaction.atomic():
        pay(1)
        transaction.set_rollback(True)
    pay(2)
    pay(2)
    inbox.decide(Job.objects.all())
    assert [(each.type, each.args, each.key) for each in Job.objects.all()] == [("order.ship", [2], "ship-2")]
