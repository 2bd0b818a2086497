"""A job that several need, workflows and callers of `enqueue`, goes on until each of them has let go of it."""

from __future__ import annotations

import pytest
from django.db import connection, transaction

from django_ojs_unique import batch, chain, group, lifecycle
from django_ojs_unique.models import Job, Workflow
from django_ojs_unique.reporting.workflows import stops
from django_ojs_unique.testing import run_jobs
from django_ojs_unique.workflows.advance import advance_due
from tests.support.processes import together, wait_until_blocked
from tests.support.workflows import audit

pytestmark = pytest.mark.django_db

UNIQUE = {"keys": ["type", "args"]}
REPLACE = {"unique": {**UNIQUE, "on_conflict": "replace"}}
IGNORE = {"unique": {**UNIQUE, "on_conflict": "ignore"}}
THROTTLE = {"unique": {**UNIQUE, "on_conflict": "ignore", "states": ["available", "active", "completed"]}}
KEY = {"key": "k"}
KEEP_TIME, KEEP = {"key": "k", "key_mode": "preserve_run_at"}, {"key": "k", "key_mode": "unsafe_dedupe"}
SHARING = {
    "replace": REPLACE,
    "ignore": IGNORE,
    "throttle": THROTTLE,
    "key": KEY,
    "preserve_run_at": KEEP_TIME,
    "unsafe_dedupe": KEEP,
}

sharing = pytest.mark.parametrize("options", SHARING.values(), ids=SHARING)


def enqueue(options, *, many=False):
    request = {"type": "do", "args": {"name": "x"}, **options}
    if many:
        return Job.objects.enqueue_many([request]).results[0]
    return Job.objects.enqueue(**request)


def cancel(workflow):
    """Cancel a workflow; the page that asks before says how many jobs that stops, of those that are noted."""
    is_noted = not workflow.jobs().filter(replaced_by__isnull=False).exists()
    said = stops(workflow)
    done = workflow.cancel()
    assert not is_noted or (done.jobs, done.running) == (said.waiting, said.running)
    return done.jobs


@sharing
@pytest.mark.parametrize("first", [0, 1])
@pytest.mark.parametrize("is_advanced", [False, True])
def test_two_workflows(log, do, options, first, is_advanced):
    workflows = [chain(do("x", **options), do(name)).enqueue() for name in "ab"]
    if is_advanced:
        advance_due("default")
    assert cancel(workflows[first]) == 0
    run_jobs()
    assert log.names == ["x", "ba"[first]]
    assert {workflow.state for workflow in audit()} == {"cancelled", "completed"}


@sharing
@pytest.mark.parametrize("first", [0, 1])
def test_the_last_workflow_that_lets_go_cancels_the_job(log, do, options, first):
    workflows = [group([do("x", **options)]).enqueue() for _ in range(2)]
    assert cancel(workflows[first]) == 0
    assert cancel(workflows[1 - first]) == 1
    run_jobs()
    assert log == []


@sharing
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_a_workflow_and_then_a_caller(log, do, options, many):
    workflow = group([do("x", **options)]).enqueue()
    for _ in range(2):
        enqueue(options, many=many)
    assert cancel(workflow) == 0
    run_jobs()
    assert log.names == ["x"]


@sharing
def test_a_caller_and_then_workflows(log, do, options):
    enqueue(options)
    for _ in range(2):
        assert cancel(group([do("x", **options)]).enqueue()) == 0
    run_jobs()
    assert log.names == ["x"]


@pytest.mark.slow
def test_a_chain_of_replacements_that_no_workflow_has_noted(log, do):
    first, second, third = [group([do("x", **REPLACE)]).enqueue() for _ in range(3)]
    assert cancel(third) == cancel(second) == 0
    assert cancel(first) == 1
    assert not Job.objects.filter(finished_at=None).exists()


@pytest.mark.slow
def test_parts_of_one_workflow_and_a_callback(log, do):
    Job.objects.enqueue(**do("y", **IGNORE))
    flow = batch([group([do("x", **IGNORE)], name="part"), group([do("x", **IGNORE)])], on_complete=do("y", **IGNORE))
    workflow = flow.enqueue()
    assert cancel(Workflow.objects.get(name="part")) == 0
    assert cancel(workflow) == 1
    run_jobs()
    assert log.names == ["y"]


@pytest.mark.slow
@pytest.mark.parametrize("active", [False, True])
def test_a_running_job_keeps_its_attempts_for_the_caller(log, do, take, active):
    workflow = group([do("x", **IGNORE)]).enqueue()
    take(limit=1, types=("do",))
    enqueue(IGNORE)
    workflow.cancel(active=active)
    job = Job.objects.get()
    assert (job.state, job.may_run_again) == ("active", True)


@pytest.mark.slow
def test_a_workflow_that_was_cancelled_while_the_job_ran_has_let_go(log, do, take):
    workflows = [group([do("x", **IGNORE)]).enqueue() for _ in range(2)]
    take(limit=1, types=("do",))
    assert [workflow.cancel(active=True).jobs for workflow in workflows] == [0, 1]


@pytest.mark.slow
def test_who_was_rejected_needs_nothing(log, do):
    workflow = group([do("x", unique=UNIQUE)]).enqueue()
    Job.objects.enqueue_many([do("x", unique=UNIQUE)])
    assert cancel(workflow) == 1


@pytest.mark.slow
def test_the_job_that_replaces_a_callers_is_needed_by_the_caller(log, do):
    enqueue(REPLACE)
    assert cancel(group([do("x", **REPLACE)]).enqueue()) == 0
    run_jobs()
    assert log.names == ["x"]


@pytest.mark.slow
def test_a_step_that_two_workflows_replace_runs_once_with_what_the_later_one_hands_on(log, do):
    workflows = [chain(do(name), do("x", **REPLACE), do("end")).enqueue() for name in "ab"]
    run_jobs()
    assert [results for name, results in log if name == "x"] in ([["a"]], [["b"]])
    assert {tuple(results) for name, results in log if name == "end"} == {("a", "x"), ("b", "x")}
    assert all(Workflow.objects.get(pk=workflow.pk).state == "completed" for workflow in workflows)


def test_only_the_first_caller_writes_to_the_job(log, do):
    group([do("x", **IGNORE)]).enqueue()
    enqueue(IGNORE)
    with connection.execute_wrapper(refuse_updates):
        assert enqueue(IGNORE).deduplicated
        Job.objects.enqueue(**do("other", **IGNORE))


def refuse_updates(execute, sql, *arguments):
    assert not sql.replace("`", '"').startswith('UPDATE "django_ojs_unique_job"'), sql
    return execute(sql, *arguments)


# With real connections


def rounds(options, count=8):
    return [[group([{"type": "t", "args": [n], **options}]).enqueue() for _ in range(2)] for n in range(count)]


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [IGNORE, REPLACE], ids=["ignore", "replace"])
def test_two_workflows_that_are_cancelled_at_once_leave_nothing(options):
    pairs = rounds(options)
    together([lambda n: pairs[n][0].cancel().jobs, lambda n: pairs[n][1].cancel().jobs], rounds=len(pairs))
    assert not Job.objects.filter(finished_at=None).exists()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize("options", [IGNORE, REPLACE, KEEP], ids=["ignore", "replace", "unsafe_dedupe"])
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_an_enqueue_beside_the_cancellation_is_never_lost(options, many):
    options = [{**options, **({"key": f"k{n}"} if "key" in options else {})} for n in range(8)]
    workflows = [group([{"type": "t", "args": [n], **own}]).enqueue() for n, own in enumerate(options)]

    def merge(n):
        request = {"type": "t", "args": [n], **options[n]}
        return Job.objects.enqueue_many([request]).results[0].job.pk if many else Job.objects.enqueue(**request).job.pk

    answers = together([merge, lambda n: workflows[n].cancel().jobs], rounds=len(options))
    unfinished = set(Job.objects.filter(finished_at=None).values_list("pk", flat=True))
    assert {job for job, _ in answers} == unfinished


@pytest.mark.django_db(transaction=True)
@pytest.mark.skipif(connection.vendor == "sqlite", reason="SQLite has one writer at a time")
@pytest.mark.parametrize("many", [False, True], ids=["enqueue", "enqueue_many"])
def test_an_enqueue_that_has_found_the_job_waits_for_its_cancellation_and_is_admitted(start, many):
    workflow = group([{"type": "t", "args": [1], **IGNORE}]).enqueue()
    child = start(lock_and_cancel, Job.objects.get().pk)
    child.hear()
    other = start(merge_one, many)
    wait_until_blocked(1)
    child.tell()
    child.result()
    assert other.result() == "created"
    assert Job.objects.get(finished_at=None, args__0=1).workflow_id is None
    assert Workflow.objects.get(pk=workflow.pk).state == "running"


def lock_and_cancel(parent, id):
    with transaction.atomic():
        lifecycle.cancel(Job.objects.filter(pk=id), Job.objects.get(pk=id).created_at)
        parent.tell()
        parent.hear()


def merge_one(parent, many):
    for _ in range(2):  # from now on, these options look before they insert
        Job.objects.enqueue("t", [2], **IGNORE)
    request = {"type": "t", "args": [1], **IGNORE}
    if many:
        return str(Job.objects.enqueue_many([request, {**request, "args": [3]}]).results[0].outcome)
    return str(Job.objects.enqueue(**request).outcome)
