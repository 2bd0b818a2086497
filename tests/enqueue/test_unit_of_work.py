"""A unit of work is done as a whole, and begun again when somebody else was in the way."""

import sqlite3

import pytest
from django.db import OperationalError, connection, transaction

from django_ojs_unique.db import transactions
from django_ojs_unique.db.dialects import kind_of
from django_ojs_unique.enqueue import unit_of_work
from django_ojs_unique.enqueue.unit_of_work import LostRace, UnitOfWork
from django_ojs_unique.exceptions import Contended
from django_ojs_unique.models import Job
from tests.support.rows import insert

EVENTS = {"EVENTS": True}


def gave_way():
    """Return what Django raises when the database gave up a transaction to a concurrent one."""
    cause = sqlite3.OperationalError("database is locked")
    cause.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    error = OperationalError("database is locked")
    error.__cause__ = cause
    return error


def run(error, runs):
    """Raise a new error in each run of a unit of work."""
    for work in UnitOfWork("default"):
        with work:
            runs.append(None)
            raise error()


@pytest.fixture(autouse=True)
def _without_pauses(monkeypatch):
    monkeypatch.setattr(transactions, "LONGEST_PAUSE", 0)


@pytest.mark.django_db(transaction=True)
def test_the_block_runs_once_when_nothing_is_in_the_way():
    runs = []
    for work in UnitOfWork("default"):
        with work:
            runs.append(work.is_repeated)
    assert runs == [False]


@pytest.mark.django_db(transaction=True)
def test_the_block_runs_again_after_a_deadlock_and_after_a_lost_race():
    runs, errors = [], [LostRace(), gave_way(), LostRace()]
    for work in UnitOfWork("default"):
        with work:
            runs.append((work.lost_races, work.is_repeated))
            if errors:
                raise errors.pop(0)
    assert runs == [(0, False), (1, True), (1, True), (2, True)]


@pytest.mark.django_db(transaction=True)
def test_any_other_error_is_raised_at_once():
    runs = []
    with pytest.raises(ValueError, match="its own"):
        run(lambda: ValueError("its own"), runs)
    assert len(runs) == 1


@pytest.mark.django_db(transaction=True)
def test_a_deadlock_inside_the_transaction_of_the_caller_is_the_callers():
    runs = []
    with pytest.raises(OperationalError), transaction.atomic():
        run(gave_way, runs)
    assert len(runs) == 1


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("error", "raised", "most"),
    [(LostRace, Contended, unit_of_work.MOST_LOST_RACES), (gave_way, OperationalError, unit_of_work.MOST_TRIES)],
)
def test_it_does_not_begin_again_for_ever(error, raised, most):
    runs = []
    with pytest.raises(raised):
        run(error, runs)
    assert len(runs) == most


@pytest.mark.django_db(transaction=True)
def test_with_events_what_a_lost_race_has_written_is_undone(settings):
    settings.OJS_UNIQUE = EVENTS
    for work in UnitOfWork("default"):
        with work:
            insert(type="t", queue="q")
            if not work.lost_races:
                raise LostRace
    assert Job.objects.count() == 1


@pytest.mark.django_db(transaction=True)
def test_a_unit_that_cannot_begin_leaves_no_transaction_open(settings, monkeypatch):
    settings.OJS_UNIQUE = EVENTS

    def fail(self):
        raise OperationalError("database is locked")

    monkeypatch.setattr(kind_of(connection), "take_write_lock", fail)
    with pytest.raises(OperationalError):
        Job.objects.enqueue("t")
    assert not connection.in_atomic_block
    assert not Job.objects.exists()
