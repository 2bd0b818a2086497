"""What a project that knows nothing of any backend writes."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Any

if find_spec("django.tasks"):
    from django.tasks import task
else:
    from django_tasks import task


@task
def total(*numbers: int, start: int = 0) -> dict[str, Any]:
    return {"total": sum(numbers, start), "of": numbers}


@task(queue_name="slow", takes_context=True)
async def greet(context: Any, name: str) -> str:
    return f"Hello {name}, attempt {context.attempt}"


@task
def fail(why: str) -> None:
    raise LookupError(why)
