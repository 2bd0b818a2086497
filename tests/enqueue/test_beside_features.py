"""What each way to meet a duplicate means beside each other feature: the first table of docs/unique-and-features.md."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.test import override_settings
from django.utils import timezone

from django_ojs_unique import DuplicateJob, Limit, batch, chain, group, job
from django_ojs_unique.maintenance.prune import prune
from django_ojs_unique.models import CronJob, Job
from django_ojs_unique.testing import run_jobs, tick, travel
from tests.support.limits import take

pytestmark = pytest.mark.django_db

ONE = Limit(key=["type"], running=1)
UNIQUE = {"keys": ["type", "args"], "args_keys": ["n"]}
WAYS: dict[str, dict[str, Any]] = {
    "reject": {"unique": {**UNIQUE, "on_conflict": "reject"}},
    "ignore": {"unique": {**UNIQUE, "on_conflict": "ignore"}},
    "replace": {"unique": {**UNIQUE, "on_conflict": "replace"}},
    "replace_except_schedule": {"unique": {**UNIQUE, "on_conflict": "replace_except_schedule"}},
    "replace_in_place": {"unique": {**UNIQUE, "on_conflict": "replace_in_place"}},
    "key replace": {"key": "k"},
    "key preserve_run_at": {"key": "k", "key_mode": "preserve_run_at"},
    "key unsafe_dedupe": {"key": "k", "key_mode": "unsafe_dedupe"},
}
BEFORE = {"type": "work", "args": {"n": 2, "text": "before"}}
REFUSES = {"reject"}
ABSORBS = {"ignore", "key unsafe_dedupe"}
REPLACES = {"replace", "replace_except_schedule", "replace_in_place"}
REWRITES = {"key replace", "key preserve_run_at"}


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> str:
    """Name a way to meet a duplicate."""
    return request.param


@pytest.fixture
def done_by(handlers: Any) -> list[Any]:
    """Declare ``work``, which notes the texts that it was given."""
    texts: list[Any] = []

    @job("work")
    def work(n: int = 1, text: str = "") -> str:
        texts.append(text)
        return text

    return texts


def item(way: str, text: str, **options: Any) -> dict[str, Any]:
    return {"type": "work", "args": {"n": 1, "text": text}, **WAYS[way], **options}


def enqueue(way: str, text: str, **options: Any) -> str:
    """Enqueue; return what became of it in one word."""
    try:
        result = Job.objects.enqueue(**item(way, text, **options))
    except DuplicateJob:
        return "rejected"
    return "rewritten" if result.outcome == "replaced" and not result.replaced else str(result.outcome)


def usual(way: str) -> str:
    """Return the word for a duplicate that waits."""
    if way in REFUSES:
        return "rejected"
    return "deduplicated" if way in ABSORBS else "replaced" if way in REPLACES else "rewritten"


def first_stays(way: str) -> bool:
    return way in REFUSES | ABSORBS


def test_a_job_that_waits(way, done_by):
    enqueue(way, "first")
    assert enqueue(way, "second") == usual(way)
    run_jobs()
    assert done_by == ["first" if first_stays(way) else "second"]


def test_a_member_of_a_workflow(way, done_by):
    workflow = group([item(way, "first")]).enqueue()
    assert enqueue(way, "second") == usual(way)
    run_jobs()
    workflow.refresh_from_db()
    assert (workflow.state, done_by) == ("completed", ["first" if first_stays(way) else "second"])


def test_a_member_of_a_workflow_that_is_cancelled(way, done_by):
    """The job goes on if the other caller relies on it: if it is his, or if he was told that it does his work."""
    workflow = group([item(way, "first")]).enqueue()
    enqueue(way, "second")
    workflow.cancel()
    run_jobs()
    assert done_by == {"reject": []}.get(way, ["first" if first_stays(way) else "second"])


def test_a_workflow_that_meets_a_job(way, done_by):
    enqueue(way, "first")
    if way in REFUSES:
        with pytest.raises(DuplicateJob, match=r"jobs\[0\]"):
            group([item(way, "second")]).enqueue()
        return
    workflow = group([item(way, "second")]).enqueue()
    run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == "completed"
    assert done_by == ["first" if first_stays(way) else "second"]


def test_a_later_step(way, done_by):
    """A later step that is rejected has failed."""
    check_what_comes_later(way, done_by, chain(BEFORE, item(way, "second")))


def test_a_callback_of_a_batch(way, done_by):
    check_what_comes_later(way, done_by, batch([BEFORE], on_success=item(way, "second")))


def check_what_comes_later(way, done_by, flow):
    enqueue(way, "first", delay="PT1H")
    workflow = flow.enqueue()
    run_jobs()
    with travel("PT2H"):
        run_jobs()
    workflow.refresh_from_db()
    assert workflow.state == ("failed" if way in REFUSES else "completed")
    assert done_by == ["before", "first" if first_stays(way) else "second"]


def test_items_of_one_batch(way, done_by):
    result = Job.objects.enqueue_many([item(way, "first"), item(way, "second")])
    assert result.counts == {"created": 1, {"rewritten": "replaced"}.get(usual(way), usual(way)): 1}
    run_jobs()
    assert done_by == ["first" if first_stays(way) else "second"]


def test_a_periodic_job(way, done_by):
    tick()
    entry = item(way, "periodic")
    CronJob.objects.define("p", "@hourly", entry.pop("type"), entry.pop("args"), overlap_policy="allow", **entry)
    enqueue(way, "first", delay="PT3H")
    with travel("PT1H"):
        tick()
    outcome = CronJob.objects.get().last_outcome
    assert outcome == {"rewritten": "replaced"}.get(usual(way), usual(way))


@pytest.mark.parametrize("later", ["PT2H", None])
def test_a_delay(way, later, done_by):
    """The time of the job that stays, or of the new one, except where the strategy or the mode keeps the first time."""
    enqueue(way, "first", delay="PT1H")
    assert enqueue(way, "second", delay=later) == usual(way)
    waiting = Job.objects.get(finished_at=None)
    keeps = first_stays(way) or way in ("replace_except_schedule", "replace_in_place", "key preserve_run_at")
    hours = 1 if keeps else 2 if later else 0
    due = (waiting.scheduled_at or waiting.created_at) - timezone.now()
    assert round(due / timedelta(hours=1)) == hours


def test_a_job_that_has_expired(way, done_by):
    """It is a duplicate of nothing; its key is free for the next one."""
    enqueue(way, "first", expires_at=timezone.now() + timedelta(minutes=1))
    with travel("PT2M"):
        assert enqueue(way, "second") in ("created", "rewritten")
        run_jobs()
    assert done_by == ["second"]


def test_a_job_that_runs(way, done_by):
    """With a key a running job cannot be rewritten: a new one takes the key."""
    enqueue(way, "first", limit=ONE)
    (running,) = take()
    outcome = enqueue(way, "second", limit=ONE)
    assert outcome == ("created" if way in REWRITES else usual(way))
    assert take() == []  # the limit counts the first job until its worker lets go of it
    running.refresh_from_db()
    assert running.state == ("cancelled" if way in REPLACES else "active")


def test_a_rate(way, done_by):
    """A start counts once, whatever became of the job; a job that did not start does not count."""
    rate = Limit(key=["type"], per_minute=1)
    enqueue(way, "first", limit=rate)
    enqueue(way, "second", limit=rate)
    run_jobs()
    assert len(done_by) == 1
    enqueue(way, "third", limit=rate)
    run_jobs()
    assert len(done_by) == 1


@pytest.mark.parametrize("way", [way for way, options in WAYS.items() if "unique" in options])
def test_a_window_and_retention(way, done_by):
    """What a window keeps answers with its result; a key has no window."""
    policy = {**WAYS[way]["unique"], "period": "P30D", "states": ["available", "active", "completed"]}
    enqueue(way, "first", unique=policy)
    run_jobs()
    with travel("P10D"):
        prune(Job.objects.all(), timezone.now())
        outcome = enqueue(way, "second", unique=policy)
    # A finished job cannot be cancelled, so a new one is admitted.
    assert outcome == ("created" if way in REPLACES else usual(way))
    assert Job.objects.earliest("created_at").result == "first"


def test_steps_of_a_job(way, handlers):
    """The steps belong to the row: a new job begins anew, and so does a job that is rewritten."""
    steps = []

    @job("work", takes_context=True, retry={"max_attempts": 2, "initial_interval": "PT1M"})
    def work(context: Any, n: int, text: str = "") -> None:
        context.step("pay", lambda: steps.append(text))
        if context.attempt == 1 and text == "first":
            raise ValueError

    enqueue(way, "first")
    run_jobs(raise_errors=False)
    assert enqueue(way, "second") == usual(way)
    with travel("PT2H"):
        run_jobs()
    assert steps == (["first"] if first_stays(way) else ["first", "second"])


def test_a_result(way, done_by):
    """A job that is done is a duplicate only if the policy counts it; then the caller gets it with its result."""
    enqueue(way, "first")
    run_jobs()
    assert enqueue(way, "second") == "created"


@override_settings(OJS_UNIQUE={"EAGER": True})
def test_eager_mode(way, done_by, django_capture_on_commit_callbacks):
    """In one transaction the second enqueue meets the first one, which has not run yet."""
    with django_capture_on_commit_callbacks(execute=True), transaction.atomic():
        enqueue(way, "first")
        assert enqueue(way, "second") == usual(way)
    assert done_by == ["first" if first_stays(way) else "second"]
