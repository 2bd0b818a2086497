"""Steps for workflows that are looked at: one that is done, and one that fails for good."""

from __future__ import annotations

from typing import Any

from django_ojs_unique import Discard, job


def declare() -> None:
    """Declare the handlers. Call it where the fixture ``handlers`` removes them again."""

    @job("do")
    def do(what: str = "", returns: Any = None) -> Any:
        return what if returns is None else returns

    @job("fail")
    def fail(what: str = "") -> None:
        raise Discard(f"{what} fails")


def do(what: str, returns: Any = None, **options: Any) -> dict[str, Any]:
    """Return a step that is done, and returns ``what``, or what is given."""
    return {"type": "do", "args": {"what": what, "returns": returns}, **options}


def fail(what: str, **options: Any) -> dict[str, Any]:
    """Return a step that fails for good."""
    return {"type": "fail", "args": {"what": what}, **options}
