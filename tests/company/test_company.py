"""Unique jobs beside workflows, cancellations, cron, expiries, pruning and clocks that are off, in sequences of calls.

``OJS_COMPANY_SEQUENCES=10000`` draws more of them. ``OJS_TORTURE_SEED`` repeats a run; by default it is new each day.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from datetime import date
from typing import Any

import pytest
from django.test import override_settings

from django_ojs_unique import job

from .machine import ONCE, SETTINGS, handler
from .sequences import Call, play, replay, shrunk

pytestmark = pytest.mark.django_db(transaction=True)

SEQUENCES = int(os.environ.get("OJS_COMPANY_SEQUENCES", "30"))
SEED = os.environ.get("OJS_TORTURE_SEED", f"{date.today()}")


def one(strategy: str, **others: Any) -> dict[str, Any]:
    return {"args": [1], "unique": {"on_conflict": strategy}, **others}


def group(strategy: str) -> tuple[str, dict[str, Any]]:
    return "workflow", {"kind": "group", "requests": [one(strategy)]}


FOUND: dict[str, list[tuple[str, dict[str, Any]]]] = {
    "a caller's job replaces that of a workflow": [
        group("replace"), ("enqueue", {"request": one("replace")}), ("cancel", {"thing": "w1"}),
    ],
    "a workflow's job replaces that of a caller": [
        ("enqueue", {"request": one("replace")}), group("replace"), ("cancel", {"thing": "w2"}),
    ],
    "a caller's job is deduplicated into that of a workflow": [
        group("ignore"), ("enqueue", {"request": one("ignore")}), ("cancel", {"thing": "w1"}),
    ],
    "a workflow's job replaces that of another": [
        group("replace"), group("replace"), ("cancel", {"thing": "w2"}), ("cancel", {"thing": "w1"}),
    ],
    "a duplicate has expired": [
        ("enqueue", {"request": one("ignore", expires_in=120)}), ("wait", {"minutes": 2}),
        ("enqueue", {"request": one("ignore")}),
    ],
    "the holder of a key has expired": [
        ("enqueue", {"request": {"args": [1], "key": "k", "key_mode": "unsafe_dedupe", "expires_in": 120}}),
        ("wait", {"minutes": 2}), ("enqueue", {"request": {"args": [1], "key": "k", "key_mode": "unsafe_dedupe"}}),
    ],
    "the items of a key have expired": [
        ("enqueue", {"request": {"args": [1], "key": "k", "key_mode": "preserve_run_at", "expires_in": 120}}),
        ("wait", {"minutes": 2}), ("enqueue", {"request": {"args": [2], "key": "k", "key_mode": "replace"}}),
    ],
    "a cron fires late, in the next window": [
        ("schedule", {"minute": 7}), ("wait", {"minutes": 20}), ("tick", {}),
        ("enqueue", {"request": {"args": [1], "unique": ONCE}}),
    ],
    "a duplicate of a cron's job expires between the occurrence and the tick": [
        ("schedule", {"minute": 7}), ("wait", {"minutes": 5}),
        ("enqueue", {"request": {"args": [1], "unique": ONCE, "expires_in": 120}}), ("wait", {"minutes": 2}),
        ("tick", {}),
    ],
    "a job is due by the clock of a host that is ahead": [
        ("set_clock_off", {"seconds": 5}), ("enqueue", {"request": {"args": [1], "delay": 60}}),
        ("wait", {"minutes": 1}), ("sweep", {}),
    ],
}  # fmt: skip
"""Short scripts of what random sequences have found."""


@pytest.fixture(autouse=True)
def _company(handlers: Any) -> Iterator[None]:
    job("t", takes_context=True)(lambda context, *numbers: handler(context, *numbers))
    logger = logging.getLogger("django_ojs_unique")
    before, logger.level = logger.level, logging.CRITICAL
    with override_settings(OJS_UNIQUE=SETTINGS):
        yield
    logger.level = before


@pytest.mark.parametrize("name", FOUND)
def test_what_was_found_once_is_mended(name):
    calls = [Call(number, *call) for number, call in enumerate(FOUND[name], start=1)]
    if failure := replay(calls):
        pytest.fail(failure.script())


@pytest.mark.slow
def test_all_features_together_do_what_the_reference_says():
    for number in range(SEQUENCES):
        if failure := play(f"{SEED} {number}"):
            pytest.fail(f"sequence {number} of OJS_TORTURE_SEED={SEED} on this database:\n{shrunk(failure).script()}")
