"""Worker hosts with a network between them and the database: one dies, one is cut off and comes back."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from django.db import connection

from django_ojs_unique.models import Job
from tests.support.commands import Command, Site, enqueue, site
from tests.support.history import keeping_history, moves
from tests.support.hosts import Host, NotPermitted, hosts
from tests.support.outage import Proxy

pytestmark = [
    pytest.mark.django_db(transaction=True),
    pytest.mark.skipif(connection.vendor != "postgresql", reason="hosts are tried out on PostgreSQL"),
]

HELD = 4
LEASE = "1"
NOTICES_SOON = {"tcp_user_timeout": 500, "connect_timeout": 2}
"""Milliseconds and seconds after which a worker gives up a connection on which nothing comes back."""


class Fleet:
    """Two hosts that reach the test's database by their network only."""

    def __init__(self, place: Site, way: Proxy, pair: list[Host]) -> None:
        self.place = place
        self.first, self.second = pair
        self._way = way
        way.detour["OPTIONS"] = {**connection.settings_dict["OPTIONS"], **NOTICES_SOON}

    def runworker(self, host: Host, *options: str) -> Command:
        return self.place.runworker("--lease", LEASE, *options, outage=self._way, host=host)


@pytest.fixture
def fleet(tmp_path, transactional_db) -> Iterator[Fleet]:
    with ExitStack() as stack:
        try:
            address, pair = stack.enter_context(hosts(2))
        except NotPermitted as reason:
            pytest.skip(str(reason))
        place = stack.enter_context(site(tmp_path))
        way = Proxy(address)
        stack.callback(way.close)  # first, as it would wait for a host that hung up while it was cut off
        yield Fleet(place, way, pair)


@pytest.mark.slow
def test_what_a_dead_host_held_runs_on_another_one(fleet):
    jobs = [enqueue() for _ in range(HELD)]
    with keeping_history():
        fleet.runworker(fleet.first, "--processes", "2")
        fleet.place.wait_for("began", HELD)
        fleet.place.wait_until_confirmed()
        fleet.first.kill()
        fleet.place.open("gate")
        fleet.runworker(fleet.second)
        for job in jobs:
            fleet.place.wait_for_state(job, state="completed", attempt=2)
        assert_completed_once_by(fleet.second, jobs)
    assert len(fleet.place.events("began")) == 2 * HELD


@pytest.mark.slow
def test_a_host_that_was_cut_off_finalizes_nothing_that_went_to_others_and_works_on(fleet):
    jobs = [enqueue() for _ in range(HELD)]
    with keeping_history():
        cut_off = fleet.runworker(fleet.first)
        fleet.place.wait_for("began", HELD)
        fleet.place.wait_until_confirmed()
        fleet.first.cut()
        other = fleet.runworker(fleet.second)
        fleet.place.wait_for("began", 2 * HELD)
        fleet.place.open("gate")
        fleet.place.wait_for("ended", 2 * HELD)
        for job in jobs:
            fleet.place.wait_for_state(job, state="completed", attempt=2)
        fleet.first.heal()
        fleet.place.wait(lambda: cut_off.output.count("refused") == HELD, "the late results were refused")
        assert other.stop() == 0
        late = enqueue("quick")
        fleet.place.wait_for_state(late, state="completed", attempt=1)
        assert cut_off.stop() == 0
        assert_completed_once_by(fleet.second, jobs)
        assert_completed_once_by(fleet.first, [late])
    assert f"1 completed, 0 skipped, 0 to be retried, 0 discarded, {HELD} refused" in cut_off.output


def assert_completed_once_by(host: Host, jobs: list[Job]) -> None:
    """Assert that the database saw each completed once, by a worker of this host."""
    history = moves()
    for job in jobs:
        completed = [move for move in history[job.pk] if move.target == "completed"]
        assert [move.worker.split(":")[0] for move in completed] == [host.name]
