"""How often leases are extended: soon again when a row was passed over."""

from datetime import timedelta
from types import SimpleNamespace

import pytest

from django_ojs_unique.execution.run import Run
from django_ojs_unique.worker import claimed_runs
from django_ojs_unique.worker.claimed_runs import ClaimedRuns
from django_ojs_unique.worker.pools import Pool

LEASE = timedelta(seconds=30)


@pytest.fixture
def claimed(monkeypatch):
    """Return runs of two jobs, with ``kept``: those whose rows nobody else has locked."""
    runs = [
        Run(
            SimpleNamespace(pk=pk, lease_token="t", timeout_ms=None),
            pool=Pool(2, None, None),
            lease=LEASE,
            lease_until=-1,
        )
        for pk in (1, 2)
    ]
    kept = {(1, "t"), (2, "t")}
    monkeypatch.setattr(claimed_runs.leases, "extend", lambda jobs, claimed, lease, begun: kept)
    monkeypatch.setattr(claimed_runs.time, "monotonic", lambda: 0.0)
    claimed = ClaimedRuns(None, timedelta(minutes=5), None)
    for run in runs:
        claimed.add(run)

    def extend():
        claimed.extend()
        return claimed.extend_at

    return SimpleNamespace(extend=extend, runs=runs, kept=kept)


def test_leases_are_extended_three_times_as_often_as_the_shortest_needs_it(claimed):
    assert claimed.extend() == 10


def test_a_row_that_somebody_had_locked_just_then_is_tried_again_soon(claimed):
    claimed.kept.discard((2, "t"))
    assert claimed.extend() == 1
    assert claimed.runs[0].lease_until > 0 > claimed.runs[1].lease_until


def test_a_run_that_was_cancelled_is_not_tried_again_soon(claimed):
    claimed.kept.discard((2, "t"))
    claimed.runs[1].cancelled = True
    assert claimed.extend() == 10
