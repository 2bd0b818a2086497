"""Handlers for workflows, and what each of them has done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_ojs_unique import Discard, JobContext, job


class Log(list[Any]):
    """What handlers have done: (name, parent results)."""

    @property
    def names(self) -> list[str]:
        return [name for name, _ in self]


@pytest.fixture
def log(handlers: Any) -> Log:
    """Declare ``do`` (returns its name) and ``fail`` (fails for good); return their log."""
    log = Log()

    @job("do", takes_context=True)
    def do(context: JobContext, name: str = "", returns: Any = None) -> Any:
        log.append((name, context.parent_results))
        return name if returns is None else returns

    @job("fail", takes_context=True)
    def fail(context: JobContext, name: str = "") -> None:
        log.append((name, context.parent_results))
        raise Discard(f"{name} fails")

    return log


@pytest.fixture
def do() -> Callable[..., dict[str, Any]]:
    """Make a step that is done."""
    return lambda name, **options: {"type": "do", "args": {"name": name}, **options}


@pytest.fixture
def fail() -> Callable[..., dict[str, Any]]:
    """Make a step that fails for good."""
    return lambda name, **options: {"type": "fail", "args": {"name": name}, **options}
