"""The task framework that is here; where there is none, the modules that import this one are skipped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import pytest

if not (find_spec("django.tasks") or find_spec("django_tasks")):
    pytest.skip("Django has no tasks before 6.0, and django-tasks is not installed", allow_module_level=True)

from django_ojs_unique.tasks.framework import task_enqueued, task_finished, task_started
from django_ojs_unique.worker import Summary, Worker

PACKAGE = "django.tasks" if find_spec("django.tasks") else "django_tasks"
IMMEDIATE = f"{PACKAGE}.backends.immediate.ImmediateBackend"
OURS = "django_ojs_unique.tasks.OJSBackend"
exceptions = import_module(f"{PACKAGE}.exceptions")
SIGNALS = {"enqueued": task_enqueued, "started": task_started, "finished": task_finished}


def work(**options: Any) -> Summary:
    return Worker(**options).run(drain=True)


@contextmanager
def listening() -> Iterator[list[Any]]:
    """Collect what Django's signals say: their names, their senders, and the results as they then were."""
    told: list[Any] = []

    def listener(name: str) -> Any:
        def listen(sender: type, task_result: Any, **kwargs: Any) -> None:
            told.append((name, sender, task_result.id, str(task_result.status), task_result.attempts))

        return listen

    listeners = {name: listener(name) for name in SIGNALS}
    for name, signal in SIGNALS.items():
        signal.connect(listeners[name])
    try:
        yield told
    finally:
        for name, signal in SIGNALS.items():
            signal.disconnect(listeners[name])
