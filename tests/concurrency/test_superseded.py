"""Workers that promote retries at the same moment, and enqueues between them: of a key one goes on (S3-22, S3-23)."""

from functools import partial

import pytest
from django.utils import timezone

from django_ojs_unique.maintenance import timers
from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL
from django_ojs_unique.unique.presets import river
from tests.concurrency.test_races import ROUNDS, runners
from tests.support.audit import ask, audit
from tests.support.history import keeping_history, moves
from tests.support.jobs import HOUR

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.torture]

POLICY = river(by_args=True, by_state=["pending", "scheduled", "available", "running"])
KEYS = 4


def waiting(number, siblings):
    """Let ``siblings`` jobs of each of some keys wait for a retry that is due."""
    failed = {"state": "retryable", "attempt": 1, "enqueued_at": None, "run_at": timezone.now() - HOUR}
    for _ in range(siblings):
        for key in range(KEYS):
            Job.objects.enqueue(f"race.r{number}", {"key": key}, unique=POLICY)
        Job._base_manager.filter(type=f"race.r{number}").update(**failed)


def promoter(number):
    return timers.promote(Job.objects.filter(type=f"race.r{number}"), timezone.now())


def contender(number, key):
    return ask(f"race.r{number}", {"key": key}, unique=POLICY)


def live(number):
    rows = Job.objects.filter(type=f"race.r{number}").exclude(state__in=sorted(TERMINAL))
    return sorted((row.args["key"], str(row.state)) for row in rows)


@runners
@pytest.mark.parametrize("siblings", [pytest.param(2, id="S3-23"), pytest.param(5, id="S3-23-of-five")])
def test_of_retries_that_are_due_together_one_goes_on_whoever_promotes_them(run, siblings):
    for number in range(ROUNDS):
        waiting(number, siblings)
    with keeping_history():
        answers = run([promoter] * 4)
        history = moves()
    audit()
    for number, round_ in enumerate(answers):
        assert sum(round_) == KEYS
        assert live(number) == [(key, "available") for key in range(KEYS)]
    assert len(history) == ROUNDS * KEYS * siblings
    assert {(move.source, len(job)) for job in history.values() for move in job} == {("retryable", 1)}


@runners
@pytest.mark.parametrize("racers", [pytest.param(2, id="S3-22"), pytest.param(5, id="S3-22-of-many")])
def test_of_a_retry_and_newer_jobs_one_goes_on_whoever_is_faster(run, racers):
    for number in range(ROUNDS):
        waiting(number, 1)
    run([promoter, promoter, *(partial(contender, key=key % KEYS) for key in range(racers * 2))])
    for number in range(ROUNDS):
        promoter(number)  # what an enqueue had locked was left for the next time
        assert live(number) == [(key, "available") for key in range(KEYS)]
    audit()
