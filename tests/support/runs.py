"""Hold the runs of a job against what the database saw of it: one end, one run at a time, and no move unexplained."""

from __future__ import annotations

from collections import Counter
from typing import Any

from django_ojs_unique.models import Job
from django_ojs_unique.ojs.states import TERMINAL

from .commands import Event
from .history import Move

CLOCKS_DIFFER = 0.002
"""Seconds: SQLite's clock knows milliseconds only."""


def left() -> int:
    return Job.objects.exclude(state__in=sorted(TERMINAL)).count()


def group(events: list[Event]) -> dict[Any, list[Event]]:
    by_job: dict[Any, list[Event]] = {}
    for event in events:
        by_job.setdefault(event.job, []).append(event)
    return by_job


def audit_row(row: Any, history: list[Move], events: list[Event], seen: Counter[str]) -> None:
    assert row.state in TERMINAL
    assert [move.target for move in history if move.target in TERMINAL] == [row.state], "it ended more than once"
    assert row.attempt <= row.max_attempts
    if row.state == "discarded":
        assert row.attempt == row.max_attempts, "it was given up with attempts left"
    state, attempt, claims = "available", 0, []
    for move in history:
        assert move.source == state, "the database saw an impossible move"
        state = move.target
        if state == "active":
            attempt += 1
            claims.append([move])
        elif move.source == "active":
            claims[-1].append(move)
            kind = finalized(move, attempt)
            seen[kind] += 1
            attempt = move.attempt
        assert move.attempt == attempt
    unexplained = list(events)
    for claim, end in reversed(claims):
        during = [event for event in unexplained if (event.attempt, event.pid) == (claim.attempt, claim.pid)]
        during = [event for event in during if event.at >= claim.at - CLOCKS_DIFFER]
        audit_run(claim, end, during, seen)
        unexplained = [event for event in unexplained if event not in during]
    assert not unexplained, "a handler ran without a claim"


def finalized(move: Move, attempt: int) -> str:
    if move.target != "available":
        return move.target
    if move.expired:
        return "rescued" if move.attempt == attempt else "rescued, uncounted"
    assert move.attempt == attempt - 1, "it was taken away from a worker whose lease lived"
    return "requeued"


def audit_run(claim: Move, end: Move, events: list[Event], seen: Counter[str]) -> None:
    """A claim is followed by at most one run, begun under the lease; what a worker finalizes has ended before."""
    began = [event for event in events if event.event == "began"]
    ended = [event for event in events if event.event != "began"]
    assert len(began) <= 1
    assert len(ended) <= len(began)
    for event in began:
        assert claim.at - CLOCKS_DIFFER <= event.at <= end.at + CLOCKS_DIFFER, "a handler started outside of its lease"
    rescued = end.target == "available" or (end.target == "discarded" and not ended)
    if rescued:
        assert end.attempt == claim.attempt - 1 or end.expired
        seen["never begun"] += not began
        return
    assert ended, "a result without a run"
    assert ended[0].at <= end.at + CLOCKS_DIFFER, "the database had the result before the handler did"
    if end.target == "completed":
        assert ended[0].event == "ended"
