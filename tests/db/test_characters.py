"""Characters that a column cannot store: what a handler says is stored without them, what a caller says is refused."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from django.db import DatabaseError, connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import Skip, job
from django_ojs_unique.execution import leases
from django_ojs_unique.execution.execute import execute
from django_ojs_unique.execution.finalize import Finalized, finalize
from django_ojs_unique.execution.run import Run
from django_ojs_unique.execution.run_result import failed
from django_ojs_unique.models import Job
from tests.support.characters import without_emoji

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("handlers")]
only_mariadb = pytest.mark.skipif(connection.vendor != "mysql", reason="only MariaDB has character sets of columns")

TEXT = "done \U0001f600, \U0010ffff"
LEFT = "done �, �"


@pytest.fixture
def narrow() -> Iterator[None]:
    with without_emoji("skipped", "progress_note", "errors", "key"):
        yield


def said(take, error: Exception) -> Job:
    """Let a handler raise, and return the row of its job."""

    @job("t")
    def handler():
        raise error

    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    ((_, outcome),) = finalize(Job.objects.all(), [execute(Run(claimed))])
    assert outcome is not Finalized.REFUSED
    return Job.objects.get()


@only_mariadb
@pytest.mark.usefixtures("narrow")
def test_a_reason_to_be_skipped_loses_what_its_column_cannot_store(take):
    row = said(take, Skip(TEXT))
    assert (row.state, row.skipped) == ("completed", LEFT)


@only_mariadb
@pytest.mark.usefixtures("narrow")
def test_a_note_of_progress_loses_what_its_column_cannot_store(take):
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    leases.store_progress(Job.objects.all(), [(claimed, (0.5, TEXT))])
    assert Job.objects.get().progress_note == LEFT


@only_mariadb
@pytest.mark.usefixtures("narrow")
def test_a_reason_that_was_committed_although_the_answer_was_lost_is_recognized(take):
    Job.objects.enqueue("t")
    (claimed,) = take(limit=1)
    run = failed(Run(claimed), Skip(TEXT))
    finalize(Job.objects.all(), [run])
    again = failed(Run(claimed), Skip(TEXT))
    again.at, again.job = run.at, claimed
    assert finalize(Job.objects.all(), [again], {id(again)}) == [(again, Finalized.SKIPPED)]


@pytest.mark.parametrize("error", [Skip(TEXT), ValueError(TEXT)])
def test_a_column_that_can_store_it_keeps_it(take, error):
    row = said(take, error)
    assert TEXT in (row.skipped, *(stored["message"] for stored in row.errors))


@only_mariadb
@pytest.mark.usefixtures("narrow")
def test_a_message_keeps_it_as_json_escapes_it(take):
    assert said(take, ValueError(TEXT)).errors[0]["message"] == TEXT


@pytest.mark.parametrize("error", [Skip("a\x00b\ud800"), ValueError("a\x00b\ud800")])
def test_what_no_database_stores_is_replaced(take, error):
    row = said(take, error)
    assert "a�b?" in (row.skipped, *(stored["message"] for stored in row.errors))


@only_mariadb
@pytest.mark.usefixtures("narrow")
def test_a_key_that_its_column_cannot_store_is_refused():
    with pytest.raises(DatabaseError, match="Incorrect string value"):
        Job.objects.enqueue("t", key=TEXT)
    assert not Job.objects.exists()


@only_mariadb
def test_only_a_text_that_may_be_replaced_costs_a_query(take):
    Job.objects.enqueue("t")
    for text, queries in (("done", 0), ("erledigt: größer, 完了", 0), (TEXT, 1)):
        with CaptureQueriesContext(
            connection,
        ) as seen:
            Job._base_manager.update(skipped=text)
        assert len([query for query in seen if "information_schema" in query["sql"]]) == queries
        assert Job.objects.get().skipped == text
