"""What time brings is done in turn, whatever fails."""

from __future__ import annotations

from django.db import OperationalError

from django_ojs_unique.worker import timetable


def test_two_tasks_that_fail_by_turns_keep_no_other_from_being_done(monkeypatch):
    now, done = 100.0, []
    monkeypatch.setattr(timetable.time, "monotonic", lambda: now)

    def waits_in_vain() -> float:
        nonlocal now
        now += timetable.RETRY_SECONDS
        raise OperationalError("locked")

    def waits_in_vain_too() -> float:
        return waits_in_vain()

    def needs_nothing() -> float:
        done.append(now)
        return float("inf")

    table = timetable.Timetable([waits_in_vain, waits_in_vain_too, needs_nothing])
    for _ in range(3):
        try:
            table.keep()
        except OperationalError:
            now += 1
    assert len(done) == 1


def test_tasks_that_are_due_together_are_done_in_order():
    done: list[str] = []
    table = timetable.Timetable([lambda: done.append("first") or 1e9, lambda: done.append("second") or 1e9])
    table.keep()
    assert done == ["first", "second"]


def test_a_task_that_is_hastened_while_it_runs_is_done_once_more():
    runs: list[str] = []

    def looks_before_there_is_anything() -> float:
        runs.append("looked")
        if len(runs) == 1:
            table.hasten(looks_before_there_is_anything)
        return float("inf")

    table = timetable.Timetable([looks_before_there_is_anything])
    for _ in range(3):
        table.keep()
    assert len(runs) == 2
