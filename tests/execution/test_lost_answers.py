"""A commit whose answer is lost: what was finalized counts as finalized, with its signal and its event, once."""

import re

import pytest
from django.db import OperationalError, connection

from django_ojs_unique import Discard, Skip, job
from django_ojs_unique.execution.finalize import finalize
from django_ojs_unique.models import Event, Job
from django_ojs_unique.signals import job_completed, job_discarded, job_failed
from django_ojs_unique.worker import Worker, finalizer, outages
from tests.support.outage import Proxy

pytestmark = pytest.mark.django_db(transaction=True)


def completes():
    return {"rows": [1, None, "ü"]}


def completes_without_a_result():
    """Do nothing."""


def skips():
    raise Skip("nothing to do")


def retries():
    raise ValueError("now and then")


def discards():
    raise Discard("for good")


ENDS = [
    (completes, "completed", "completed"),
    (completes_without_a_result, "completed", "completed"),
    (skips, "skipped", "completed"),
    (retries, "retried", "retryable"),
    (discards, "discarded", "discarded"),
]
EVENTS = {
    "completed": ["job.completed"],
    "retryable": ["job.failed", "job.retrying"],
    "discarded": ["job.failed", "job.discarded"],
}


class DeafProxy(Proxy):
    """Passes all on, but for the answer to the commit of the first statement that moves a job to a state."""

    def __init__(self, state):
        self._move = re.compile(rb"SET\s+.?state.? = '%s'" % state.encode())
        self._is_autocommit = connection.vendor == "postgresql" and state == "completed"
        self._moving = None
        self.has_lost = False
        super().__init__()

    def _pass_on(self, end):
        if self._moving is None and not self.has_lost:
            self._listen(end)
        elif end is self._moving:
            self._lose(end)
        else:
            super()._pass_on(end)

    def _listen(self, end):
        data = end.recv(65536)
        if not data:
            self._hang_up(end)
            return
        self._peers[end].sendall(data)
        if self._move.search(data):
            self._moving = end
            if self._is_autocommit:
                self._lose_the_answer(end)

    def _lose(self, end):
        data = end.recv(65536)
        self._peers[end].sendall(data)
        if b"COMMIT" in data:
            self._lose_the_answer(end)

    def _lose_the_answer(self, end):
        assert self._peers[end].recv(65536)
        self._moving, self.has_lost = None, True
        self._hang_up(end)


@pytest.fixture
def heard():
    """Collect the outcomes that were announced."""
    names, receivers = [], []
    for signal, name in ((job_completed, "completed"), (job_failed, "retryable"), (job_discarded, "discarded")):

        def receive(job, name=name, **arguments):
            names.append((name, job.state))

        receivers.append((signal, receive))
        signal.connect(receive)
    yield names
    for signal, receive in receivers:
        signal.disconnect(receive)


def judge(summary, row, heard, outcome, state):
    assert (getattr(summary, outcome), summary.finalized) == (1, 1)
    row.refresh_from_db()
    assert (row.state, row.attempt) == (state, 1)
    assert heard == [(state, state)]
    told = Event.objects.filter(subject=str(row.pk)).exclude(type__in=["job.enqueued", "job.started"])
    assert list(told.order_by("pk").values_list("type", flat=True)) == EVENTS[state]


@pytest.mark.slow
@pytest.mark.skipif(connection.vendor == "sqlite", reason="no network loses an answer")
@pytest.mark.parametrize(("handler", "outcome", "state"), ENDS)
def test_a_run_whose_commit_was_not_answered_is_finalized_once(
    handlers, settings, monkeypatch, heard, handler, outcome, state
):
    settings.OJS_UNIQUE = {"EVENTS": True}
    job("t", retry={"initial_interval": "PT1M"})(handler)
    row = Job.objects.enqueue("t").job
    proxy = DeafProxy(state)
    try:
        for name, value in proxy.detour.items():
            monkeypatch.setitem(connection.settings_dict, name, value)
        summary = Worker(max_jobs=1).run()
    finally:
        proxy.close()
    assert proxy.has_lost
    judge(summary, row, heard, outcome, state)


@pytest.mark.parametrize("tries", [1, finalizer.MOST_FAILURES])
@pytest.mark.parametrize(("handler", "outcome", "state"), ENDS)
def test_a_run_that_was_finalized_though_the_finalize_failed_is_finalized_once(
    handlers, settings, monkeypatch, heard, handler, outcome, state, tries
):
    settings.OJS_UNIQUE = {"EVENTS": True}
    job("t", retry={"initial_interval": "PT1M"})(handler)
    row = Job.objects.enqueue("t").job
    calls = []

    def finalize_and_fail(*arguments):
        calls.append(arguments)
        if len(calls) > tries:
            return finalize(*arguments)
        finalize(*arguments)
        run = arguments[1][0]
        run.job.lease_token = token
        raise OperationalError("the answer was lost")

    token = None

    def keep(jobs, finished, *arguments):
        nonlocal token
        token = token or finished[0].job.lease_token
        return finalize_and_fail(jobs, finished, *arguments)

    monkeypatch.setattr(finalizer, "finalize", keep)
    monkeypatch.setattr(outages, "pause_after", lambda failures: 0)
    summary = Worker(max_jobs=1).run()
    judge(summary, row, heard, outcome, state)


@pytest.mark.parametrize("change", [{"result": 1}, {"attempt": 2}, {"worker_id": "another"}, {"state": "cancelled"}])
def test_a_run_whose_row_says_something_else_is_refused(handlers, monkeypatch, heard, caplog, change):
    job("t")(completes)
    Job.objects.enqueue("t")
    calls = []

    def fail_first(jobs, finished, *arguments):
        calls.append(finished)
        if len(calls) == 1:
            Job._base_manager.update(
                **{"state": "completed", "result": completes(), "lease_token": None, "finished_at": finished[0].at}
                | {"lease_expires_at": None, **change}
            )
            raise OperationalError
        return finalize(jobs, finished, *arguments)

    monkeypatch.setattr(finalizer, "finalize", fail_first)
    monkeypatch.setattr(outages, "pause_after", lambda failures: 0)
    assert Worker(max_jobs=1).run().refused == 1
    assert "refused" in caplog.text
    assert heard == []


def test_nothing_is_read_again_when_no_finalize_has_failed(handlers, monkeypatch):
    from django_ojs_unique.execution import finalize as module

    monkeypatch.setattr(module, "_finalized_before", lambda *arguments: pytest.fail("It was read again."))
    job("t")(lambda: Job.objects.get().cancel())
    Job.objects.enqueue("t")
    assert Worker(max_jobs=1).run().refused == 1
