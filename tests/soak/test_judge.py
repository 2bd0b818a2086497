"""The judge is asked about made-up histories: an honest one, and one for each thing that can be wrong."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection

from django_ojs_unique.models import Event, Job
from tests.support.rows import insert

from . import history
from .judge import QUESTIONS, judge, story
from .report import runs_of

pytestmark = pytest.mark.django_db(transaction=True)

LEASE = 4.0
WORKER = "host:17:ab"


@pytest.fixture(autouse=True)
def tables(transactional_db: None) -> Iterator[None]:
    history.create()
    yield
    history.drop()


def born(job: str = "a", at: float = 0, **columns: Any) -> dict[str, Any]:
    return {"operation": "INSERT", "job": job, "type": "t", "target": "available", "at": at, "created_at": at} | columns


def moved(source: str, target: str, at: float, job: str = "a", **columns: Any) -> dict[str, Any]:
    row = {"operation": "UPDATE", "job": job, "type": "t", "source": source, "target": target, "at": at}
    return row | {"attempt": 1, "attempt_before": 1, "max_attempts": 3} | columns


def claimed(token: str = "t1", at: float = 1, **columns: Any) -> dict[str, Any]:
    return moved("available", "active", at, token=token, **columns)


def left(target: str, at: float = 2, token: str = "t1", lease: float = 5, **columns: Any) -> dict[str, Any]:
    """Return what ends a lease; by default it lives."""
    return moved("active", target, at, token_before=token, lease_before=lease, worker=WORKER, **columns)


def pruned(job: str = "a", source: str = "completed", **columns: Any) -> dict[str, Any]:
    return {"operation": "DELETE", "job": job, "type": "t", "source": source, "at": 99} | columns


def run(token: str = "t1", began: float = 1.1, ended: float | None = 1.9, job: str = "a") -> dict[str, Any]:
    return {"job": job, "token": token, "attempt": 1, "pid": 17, "began": began, "ended": ended}


def answered(answer: str, job: str | None = "a", key: str | None = None) -> dict[str, Any]:
    return {"answer": answer, "job": job, "job_key": key}


def fault(began: float, ended: float, worker: str = "%", job: str = "%", type: str = "%") -> dict[str, Any]:
    return {"began": began, "ended": ended, "worker": worker, "job": job, "type": type}


def found(
    rows: list[dict[str, Any]],
    runs: list[dict[str, Any]] | None = None,
    answers: list[dict[str, Any]] | None = None,
    faults: list[dict[str, Any]] | None = None,
) -> set[tuple[str, str]]:
    """Return what the judge finds wrong, as pairs of a question and an answer."""
    history.fill("soak_history", rows)
    history.fill("soak_runs", runs or [])
    history.fill("soak_answers", answers or [])
    history.fill("soak_faults", faults or [])
    return {(question, wrong) for question, findings in judge(LEASE).found.items() for wrong in findings}


FULL = [born(), claimed(), left("completed"), pruned()]
RAN_OUT = [born(), claimed(), left("available", at=6), claimed("t2", at=7), left("completed", 9, "t2", 11), pruned()]
UNCOUNTED = [{**row, "attempt": 0} if row.get("target") == "available" else row for row in RAN_OUT]
RUNS_BESIDE = [run(ended=9.5), run("t2", 7.1, 8.9)]
ONE = {"fingerprint": "f", "fingerprint_before": "f", "type": "unique.policy"}
ENDED = {**ONE, "operation": "UPDATE", "source": "available", "target": "completed"}


def test_an_honest_history_is_innocent():
    assert found(FULL, [run()], [answered("created")]) == set()


def unfinished() -> set[tuple[str, str]]:
    Job.objects.enqueue("t")
    return found([])


def completed_twice() -> set[tuple[str, str]]:
    for _ in range(2):
        Event.objects.create(type="job.completed", subject="a")
    return found(FULL, [run()])


GUILTY = {
    ("lost", "answered, and never stored"): lambda: found(FULL, [run()], [answered("created", "b")]),
    ("lost", "vanished without a trace"): lambda: found(FULL[:-1], [run()]),
    ("lost", "deleted before it had ended"): lambda: found(
        [born(job_key="k"), pruned(source="available", job_key="k")], answers=[answered("removing", None, "other")]
    ),
    ("lost", "cancelled by nobody"): lambda: found([born(), moved("available", "cancelled", 1), pruned()]),
    ("lost", "given up with attempts left"): lambda: found(
        [born(), claimed(), left("discarded"), pruned(source="discarded")], [run()]
    ),
    ("lost", "not ended, though everybody had time"): unfinished,
    ("beside", "claimed while it was held"): lambda: found(
        [born(), claimed(), moved("active", "active", 2, token_before="t1", token="t2"), pruned()]
    ),
    ("beside", "taken away while its lease lived"): lambda: found(
        [born(), claimed(), left("available"), pruned()], [run(ended=None)]
    ),
    ("beside", "requeued while it ran"): lambda: found(
        [born(), claimed(), left("available", attempt=0), pruned()], [run(ended=3)]
    ),
    ("beside", "ran out of its lease without a fault"): lambda: found(RAN_OUT, RUNS_BESIDE),
    ("beside", "began after its lease without a fault"): lambda: found(
        RAN_OUT, [run(began=7.5, ended=8), run("t2", 7.1, 8.9)]
    ),
    ("beside", "ran without a claim"): lambda: found(FULL, [run(), run("t9")]),
    ("beside", "ran twice under one lease"): lambda: found(FULL, [run(), run(began=1.2)]),
    ("twice", "one lease ended twice"): lambda: found(
        [
            born(),
            claimed(),
            left("retryable"),
            moved("retryable", "active", 3, token="t1"),
            left("completed"),
            pruned(),
        ],
        [run()],
    ),
    ("twice", "left a final state"): lambda: found([*FULL[:3], moved("completed", "discarded", 3), pruned()], [run()]),
    ("twice", "finalized under another's lease"): lambda: found(RAN_OUT, [run(), run("t2", 7.1, 9.5)]),
    ("twice", "finalized without a lease"): lambda: found([born(), moved("available", "completed", 1), pruned()]),
    ("twice", "told twice that it is completed"): completed_twice,
    ("duplicates", "two unfinished jobs of one fingerprint"): lambda: found(
        [born(**ONE), born("b", **ONE), pruned(**ONE), pruned("b", **ONE)]
    ),
    ("duplicates", "two jobs within one period"): lambda: found(
        [born(fingerprint="f", type="unique.period"), born("b", 2, fingerprint="f", type="unique.period")]
    ),
    ("duplicates", "stored though it was rolled back"): lambda: found(FULL, [run()], [answered("rolled back")]),
    ("twice", "more attempts than it may have"): lambda: found([born(), claimed(attempt=4), pruned()]),
    ("late", "went on after its time limit"): lambda: found(
        [born(), claimed(), left("retryable", 9, lease=12, type="limit.plain"), pruned()], [run(ended=8)]
    ),
    ("late", "stayed active after its time limit"): lambda: found(
        [born(), claimed(), left("retryable", 15, lease=17, type="limit.blocks"), pruned()], [run()]
    ),
    ("lost", "completed without a run"): lambda: found(FULL),
}


@pytest.mark.parametrize("wrong", GUILTY, ids=lambda wrong: wrong[1])
def test_what_is_wrong_is_found(wrong):
    assert wrong in GUILTY[wrong]()


def test_there_is_a_made_up_history_for_each_question():
    assert set(GUILTY) == {(question, wrong) for question, queries in QUESTIONS.items() for wrong in queries}


@pytest.mark.parametrize(
    "blamed",
    [
        fault(4, 8, worker="%:17:%"),
        fault(4, 8),
        fault(0, 1.5),
        fault(4, 8, job="a"),
        fault(4, 8, type="t%"),
    ],
    ids=["its worker", "the server", "up to the last extension", "its row", "rows like it"],
)
@pytest.mark.parametrize("rows", [RAN_OUT, UNCOUNTED], ids=["counted", "uncounted"])
def test_a_run_beside_the_next_one_is_legal_when_a_fault_let_its_lease_run_out(blamed, rows):
    assert not {question for question, _ in found(rows, RUNS_BESIDE, faults=[blamed])} & {"beside"}


@pytest.mark.parametrize(
    "irrelevant",
    [
        fault(4, 8, worker="%:18:%"),
        fault(0, 0.9),
        fault(5.1, 8),
        fault(4, 8, job="b"),
        fault(4, 8, type="unique.%"),
    ],
    ids=["another worker", "before the last extension", "after the lease", "another row", "other types"],
)
@pytest.mark.parametrize("rows", [RAN_OUT, UNCOUNTED], ids=["counted", "uncounted"])
def test_other_faults_excuse_nothing(irrelevant, rows):
    assert ("beside", "ran out of its lease without a fault") in found(rows, RUNS_BESIDE, faults=[irrelevant])


def test_a_lease_that_runs_out_before_a_run_has_begun_harms_nobody():
    assert found(RAN_OUT, [run("t2", 7.1, 8.9)]) == set()


@pytest.mark.parametrize(("at", "faults"), [(5, []), (9, [fault(2, 3)])], ids=["in time", "a fault"])
def test_a_time_limit_may_be_kept_a_little_later_or_after_a_fault(at, faults):
    rows = [born(), claimed(), left("retryable", at, lease=12, type="limit.plain"), pruned()]
    assert found(rows, [run(ended=at)], faults=faults) == set()


@pytest.mark.parametrize("target", ["retryable", "discarded"])
@pytest.mark.parametrize(("type", "is_guilty"), [("limit.atomic", False), ("t", True)])
def test_only_a_time_limit_ends_an_attempt_before_its_handler_begins(type, target, is_guilty):
    rows = [born(), claimed(), left(target, type=type, attempt=3), pruned()]
    assert bool({question for question, _ in found(rows)} & {"beside", "twice"}) is is_guilty


def test_a_job_that_lost_its_key_while_it_ran_has_a_negative_maximum():
    assert found([born(), claimed(), left("completed", max_attempts=-4), pruned()], [run()]) == set()


def test_a_job_may_be_requeued_before_it_begins_and_be_run_by_another_worker():
    rows = [born(), claimed(), left("available", attempt=0), claimed("t2", 3), left("completed", 5, "t2"), pruned()]
    assert found(rows, [run("t2", 3.1, 4.9)]) == set()


def test_jobs_may_be_replaced_cancelled_and_removed():
    replaced = [born(**ONE), moved("available", "cancelled", 1, replaced_by="b", **ONE), born("b", 1, **ONE)]
    cancelled = [born("c"), moved("available", "cancelled", 1, job="c"), pruned("c")]
    removed = [born("d", job_key="k"), pruned("d", source="available", job_key="k")]
    rows = [*replaced, {**ENDED, "job": "b", "at": 2}, *cancelled, *removed, pruned(**ONE), pruned("b", **ONE)]
    answers = [answered("cancelling", "c"), answered("removing", None, "k")]
    assert {wrong for wrong in found(rows, answers=answers) if wrong[0] in ("lost", "duplicates")} == {
        ("lost", "completed without a run")
    }


def test_a_discarded_job_may_be_rewritten_by_its_key():
    rows = [born(job_key="k"), moved("discarded", "available", 1, job_key="k"), pruned(source="completed")]
    assert found(rows) == set()


def test_the_triggers_keep_what_happens_to_a_row():
    job = Job.objects.enqueue("t", unique={"keys": ["type"]}).job
    job.cancel()
    job.remove()
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT operation, source, target, fingerprint FROM soak_history WHERE job = %s ORDER BY number",
            [history.stored(job.pk)],
        )
        kept = cursor.fetchall()
    assert [tuple(row) for row in kept] == [
        ("INSERT", None, "available", job.fingerprint),
        ("UPDATE", "available", "cancelled", job.fingerprint),
        ("DELETE", "cancelled", None, None),
    ]


def test_a_job_stored_manually_beside_another_one_is_a_duplicate():
    job = Job.objects.enqueue("t", unique={"keys": ["type"]}).job
    insert(type="t", queue="default", fingerprint=job.fingerprint)
    assert ("duplicates", "two unfinished jobs of one fingerprint") in found([])


def test_a_lost_row_is_found_though_no_trigger_saw_it_go():
    job = Job.objects.enqueue("t").job
    history.drop()
    Job.objects.filter(pk=job.pk).delete()
    history.create()
    assert ("lost", "answered, and never stored") in found([], answers=[answered("created", history.stored(job.pk))])


def test_starts_and_ends_of_handlers_are_joined():
    id, other = "0198c0de-0000-7000-8000-000000000001", "0198c0de-0000-7000-8000-000000000002"
    line = {"job": id, "token": other, "attempt": 1, "pid": 17}
    lines = [
        {**line, "event": "began", "at": 1},
        {**line, "event": "ended", "at": 2},
        {**line, "event": "began", "at": 3},
    ]
    assert [(each["began"], each["ended"]) for each in runs_of(iter(lines))] == [(1, 2), (3, None)]


def test_the_story_of_a_job_is_told_in_the_order_of_time():
    found(RAN_OUT, RUNS_BESIDE)
    told = list(story("a", [(5.5, "locked row"), (77, "later")]))
    assert [line.split()[0] for line in told] == sorted((line.split()[0] for line in told), key=float)
    assert "5.500 (locked row)" in told
    assert len(told) == 10
