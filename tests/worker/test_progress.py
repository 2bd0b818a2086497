"""`context.progress`: what a handler says of how far it is."""

import asyncio
from threading import Event

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from django_ojs_unique import job
from django_ojs_unique.exceptions import InvalidRequest
from django_ojs_unique.execution import leases
from django_ojs_unique.models import Job
from django_ojs_unique.worker import Worker
from django_ojs_unique.worker import loop as loop_module
from tests.support.background import working
from tests.support.processes import PATIENCE, until

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(autouse=True)
def _often(monkeypatch):
    monkeypatch.setattr(loop_module, "WATCH_SECONDS", 0.02)


def stored():
    return Job.objects.values_list("progress", "progress_note").get()


def test_the_last_word_is_stored_while_the_handler_runs(handlers):
    said, go_on = Event(), Event()

    @job("t", takes_context=True)
    def handler(context):
        for page in range(1, 31):
            context.progress(page / 30, f"page {page} of 30")
        said.set()
        go_on.wait(PATIENCE)
        context.progress(0.5)

    Job.objects.enqueue("t")
    with working() as worker:
        assert said.wait(PATIENCE)
        until(lambda: stored() == (1.0, "page 30 of 30"), "the last word was stored")
        go_on.set()
        until(lambda: worker.summary.completed, "the job completed")


def test_an_async_handler_says_it_in_the_same_way(handlers):
    @job("t", takes_context=True)
    async def handler(context):
        context.progress(0.25, "a quarter")
        while await Job.objects.filter(progress=0.25, progress_note="a quarter").acount() == 0:
            await asyncio.sleep(0.001)

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1


def test_saying_it_asks_the_database_nothing(handlers):
    queries = []

    @job("t", takes_context=True)
    def handler(context):
        with CaptureQueriesContext(connection) as captured:
            for step in range(1_000):
                context.progress(step / 1_000)
        queries.extend(captured)

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1
    assert queries == []


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), float("inf"), "0.5", None])
def test_what_is_no_fraction_is_refused(handlers, fraction):
    refused = []

    @job("t", takes_context=True)
    def handler(context):
        try:
            context.progress(fraction)
        except InvalidRequest as error:
            refused.append(str(error))

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1
    (message,) = refused
    assert message.startswith("fraction: must be a number from 0 to 1")


def test_a_note_is_made_one_that_the_database_takes(handlers):
    @job("t", takes_context=True)
    def handler(context):
        context.progress(0, "\x00\ud800" + "x" * 1_000)
        until(lambda: Job.objects.get().progress == 0, "it was stored")

    Job.objects.enqueue("t")
    assert Worker().run(drain=True).completed == 1
    assert len(Job.objects.get().progress_note) == 255


def test_the_next_run_begins_without_the_words_of_the_last(handlers):
    seen = []

    @job("t", takes_context=True, retry={"initial_interval": "PT0.001S"})
    def handler(context):
        seen.append(stored())
        if context.attempt == 1:
            context.progress(0.9, "nearly")
            until(lambda: stored() == (0.9, "nearly"), "it was stored")
            raise ValueError

    row = Job.objects.enqueue("t").job
    Worker().run(drain=True)
    row.refresh_from_db()
    if row.state != "completed":
        row.retry()
        Worker().run(drain=True)
    assert seen == [(None, ""), (None, "")]


def test_the_words_of_a_job_that_was_cancelled_are_not_stored(take):
    Job.objects.enqueue("t")
    (held,) = take()
    Job.objects.get().cancel()
    leases.store_progress(Job.objects.all(), [(held, (0.5, "late"))])
    assert stored() == (None, "")
