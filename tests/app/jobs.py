"""Handlers that the tests enqueue for."""

from django_ojs_unique import UniquePolicy, job


@job("tests.add")
def add(a: int, b: int = 0) -> int:
    return a + b


@job("tests.once", queue="once", unique=UniquePolicy(keys=["type", "args"], args_keys=["key"], on_conflict="ignore"))
def once(key: str, note: str = "") -> None:
    """Do nothing, once."""
