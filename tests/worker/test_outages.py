"""What is said of an outage, and how soon it is tried again."""

from unittest.mock import Mock

import pytest
from django.core.management import CommandError, call_command
from django.db import DatabaseError, OperationalError, connection, connections

from django_ojs_unique import job
from django_ojs_unique.db.schema import find_cause, find_lack
from django_ojs_unique.exceptions import NotMigrated
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker, outages, promoter, timetable
from django_ojs_unique.worker.outages import Outages, pause_after
from django_ojs_unique.worker.timetable import Timetable

pytestmark = pytest.mark.django_db(transaction=True)


def test_no_pause_is_longer_than_a_second_however_long_an_outage_lasts():
    pauses = [pause_after(failures) for failures in range(1, 2000)]
    assert max(pauses) <= 1
    assert min(pauses) > 0.2
    assert len(set(pauses)) > 1000, "all workers would come back at the same moment"


def test_an_outage_that_comes_and_goes_does_not_flood_the_log(monkeypatch, caplog):
    trouble = Outages("default")
    for _ in range(50):
        for _ in range(50):
            trouble.failed(OperationalError("full"))
        trouble.answered()
    lines = ["The database 'default' failed; trying again: full", "The database 'default' answers again."]
    assert caplog.messages == lines
    monkeypatch.setattr(outages, "SAY_SECONDS", 0)
    trouble.failed(OperationalError("full"))
    trouble.answered()
    assert caplog.messages == lines * 2


def test_a_task_that_meets_a_failure_is_put_off_and_the_others_are_not():
    done = []

    def locked():
        done.append("locked")
        raise OperationalError("gone")

    def broken():
        done.append("broken")
        raise ValueError("a row that somebody changed")

    def other():
        done.append("other")
        return 60.0

    table = Timetable([locked, broken, other])
    with pytest.raises(OperationalError):
        table.keep()
    for _ in range(3):
        table.keep()
    assert done == ["locked", "broken", "other"]
    assert table.failing


def test_claims_go_on_though_a_task_of_the_loop_fails_each_time(handlers, monkeypatch):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    monkeypatch.setattr(outages, "LONGEST_PAUSE", 0.001)
    monkeypatch.setattr(timetable, "RETRY_SECONDS", 0.5)

    def fail(*args):
        raise OperationalError("the disk is full")

    monkeypatch.setattr(promoter, "look", fail)
    assert Worker().run(drain=True).completed == 1


def test_a_task_that_tries_to_end_the_worker_holds_up_no_other():
    done = []

    def ends():
        raise SystemExit(3)

    def other():
        done.append("other")
        return 1.0

    Timetable([ends, other]).keep()
    assert done == ["other"]


@pytest.fixture
def _no_priority():
    table = Job._meta.db_table
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME COLUMN priority TO elsewhere")
    yield
    with connection.cursor() as cursor:
        cursor.execute(f"ALTER TABLE {table} RENAME COLUMN elsewhere TO priority")


@pytest.mark.parametrize("is_recorded", [False, True], ids=["not applied", "recorded but not applied"])
def test_a_column_that_is_missing_is_no_outage(handlers, request, newer_code, settings, is_recorded):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    request.getfixturevalue("_no_priority")
    if is_recorded:
        settings.MIGRATION_MODULES = {}
    with pytest.raises(DatabaseError) as caught:
        Worker().run(drain=True)
    cause = find_cause(caught.value, "default")
    assert cause.startswith(f"The table {Job._meta.db_table}") if is_recorded else cause == newer_code


def test_a_command_ends_with_one_line_though_the_migration_is_recorded(handlers, request):
    job("t")(lambda: None)
    Job.objects.enqueue("t")
    request.getfixturevalue("_no_priority")
    with pytest.raises(CommandError, match="has no column 'priority'") as caught:
        call_command("runworker", "--drain")
    assert caught.value.returncode == 1


@pytest.mark.usefixtures("_no_priority")
def test_an_enqueue_by_code_that_is_newer_than_the_schema_names_the_migration(newer_code):
    with pytest.raises(NotMigrated) as caught:
        Job.objects.enqueue("t", priority=5)
    assert str(caught.value) == newer_code


def test_the_advice_to_migrate_is_that_of_django_tenants_where_a_schema_is_active(newer_code, monkeypatch):
    for schema, option in {"public": "--shared", "acme": "--schema=acme"}.items():
        monkeypatch.setattr(connections["default"], "schema_name", schema, raising=False)
        assert find_lack("default").endswith(f"run `manage.py migrate_schemas {option}`.")


def test_a_pool_gets_no_connection_back_that_failed(monkeypatch):
    pooled = Mock()
    monkeypatch.setattr(outages, "connections", {"default": pooled})
    outages.drop("default")
    assert [name for name, *_ in pooled.mock_calls] == ["connection.close", "close"]
