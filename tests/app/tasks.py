"""Tasks that the tests enqueue."""

from __future__ import annotations

import asyncio
from typing import Any

from django.contrib.auth.models import Group

from django_ojs_unique import UniquePolicy
from django_ojs_unique.tasks import task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task
async def aadd(a: int, b: int = 0) -> int:
    return a + b


@task
def echo(first: Any, /, second: Any = None, *rest: Any, third: Any = None, **more: Any) -> Any:
    return [first, second, rest, third, more]


@task(takes_context=True)
def attempt_of(context: Any, word: str) -> Any:
    result = context.task_result
    return [word, context.attempt, result.status, result.kwargs, result.worker_ids]


@task
def give(kind: str) -> Any:
    return {"tuple": (1, (2,)), "bytes": b"text", "object": object(), "set": {1}, "nan": float("nan")}[kind]


@task
def fail(message: str) -> None:
    raise ValueError(message)


@task(timeout=0.05)
async def wait_for_ever() -> None:
    await asyncio.Event().wait()


@task(backend="tries")
def fail_twice(message: str) -> None:
    raise LookupError(message)


@task(unique=UniquePolicy(keys=["type", "args"], args_keys=["user_id"], on_conflict="ignore"))
def welcome(user_id: int, locale: str = "en") -> None:
    """Do nothing, once."""


@task
def Shout(text: str) -> str:  # noqa: N802 - no job type is spelled like this
    return text.upper()


@task(atomic=True)
def book(name: str, fails: bool = False) -> str:
    Group.objects.create(name=name)
    add.enqueue(1, 2)
    if fails:
        raise ValueError("no")
    return name
