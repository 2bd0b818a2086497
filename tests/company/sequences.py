"""Draw random sequences of calls, play them, and shrink one that fails to a short script."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from random import Random
from typing import Any, NamedTuple

from django_ojs_unique import OnConflict

from .machine import ONCE, Company
from .reference import LIVE, MINUTE, WAITING

LENGTH = 15
"""How many calls a sequence has."""


class Call(NamedTuple):
    """A call of a method of `Company`. Its ``number`` is part of the names of the jobs that it makes."""

    number: int
    method: str
    arguments: dict[str, Any]


class Failure(NamedTuple):
    """The calls up to the one that fails, the answers of the others, and the error."""

    calls: Sequence[Call]
    answers: Sequence[str]
    error: Exception

    def script(self) -> str:
        lines = []
        for call, answer in zip(self.calls, [*self.answers, "differs"], strict=True):
            arguments = ", ".join(f"{name}={value!r}" for name, value in call.arguments.items())
            lines.append(f"{call.number}  {call.method}({arguments})" + (f"  # {answer}" if answer else ""))
        return "\n".join([*lines, f"{type(self.error).__name__}: {self.error}"])


def play(seed: str) -> Failure | None:
    """Play the sequence that a seed draws; return how it fails, if it does."""
    return _play(lambda company: _drawn(Random(seed), company))


def replay(calls: Sequence[Call]) -> Failure | None:
    """Play these calls, without those that are about what is not there."""
    return _play(lambda company: calls)


def shrunk(failure: Failure) -> Failure:
    """Return a failure of the same class with fewer and simpler calls; none of them can be left out."""
    smaller: Failure | None = failure
    while smaller:
        failure = smaller
        others = (other for calls in _smaller(failure.calls) if (other := replay(calls)))
        smaller = next((other for other in others if type(other.error) is type(failure.error)), None)
    return replay(_numbered(failure.calls)) or failure


def _play(calls_for: Callable[[Company], Sequence[Call] | Iterator[Call]]) -> Failure | None:
    done: list[Call] = []
    answers: list[str] = []
    with closing(Company()) as company:
        for call in calls_for(company):
            if company.knows(**call.arguments):
                done.append(call)
                try:
                    answers.append(company.do(*call))
                except Exception as error:
                    return Failure(done, answers, error)
    return None


def _drawn(random: Random, company: Company) -> Iterator[Call]:
    number = 0
    while number < LENGTH:
        method, draw = random.choice(_METHODS) if number else ("set_clock_off", _set_clock_off)
        arguments = draw(random, company)
        if arguments is not None:
            number += 1
            yield Call(number, method, arguments)


def _smaller(calls: Sequence[Call]) -> Iterator[Sequence[Call]]:
    size = len(calls) // 2
    while size:
        for start in range(0, len(calls), size):
            yield [*calls[:start], *calls[start + size :]]
        size //= 2
    for index, call in enumerate(calls):
        for arguments in _simpler(call.arguments):
            yield [*calls[:index], call._replace(arguments=arguments), *calls[index + 1 :]]


_NEEDED = {"args", "key_mode", "on_conflict", "on_complete", "thing", "run", "kind", "minute", "minutes", "seconds"}
"""What a call or a request does not do without."""


def _simpler(value: Any) -> Iterator[Any]:
    """Yield the same without one of its parts, or with a simpler one."""
    if isinstance(value, dict):
        if value.get("kind") == "batch":
            yield {"kind": "group", "requests": value["requests"]}
        for name, member in value.items():
            if name not in _NEEDED:
                yield {other: kept for other, kept in value.items() if not other.startswith(name)}
            yield from ({**value, name: simpler} for simpler in _simpler(member))
    elif isinstance(value, list) and isinstance(value[0], dict):
        for index, item in enumerate(value):
            if len(value) > 1:
                yield [*value[:index], *value[index + 1 :]]
            yield from ([*value[:index], simpler, *value[index + 1 :]] for simpler in _simpler(item))


def _numbered(calls: Sequence[Call]) -> list[Call]:
    """Number the calls anew, also in the names of jobs."""
    numbers = {str(call.number): str(number) for number, call in enumerate(calls, start=1)}

    def renamed(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        return re.sub(r"(?<=\b[jwr])\d+(?=[a-h]?\b)", lambda found: numbers.get(found[0], found[0]), value)

    return [
        Call(number, call.method, {name: renamed(value) for name, value in call.arguments.items()})
        for number, call in enumerate(calls, start=1)
    ]


def _request(random: Random) -> dict[str, Any]:
    request: dict[str, Any] = {"args": random.choice([[1], [1], [2]])}
    request |= random.choice([{}, {}, {"delay": MINUTE}])
    request |= random.choice([{}, {}, {"expires_in": 2 * MINUTE}])
    kind = random.random()
    if kind < 0.8:
        request["unique"] = ONCE if kind < 0.15 else _policy(random)
    elif kind < 0.95:
        request |= {"key": "k", "key_mode": random.choice(["replace", "preserve_run_at", "unsafe_dedupe"])}
    return request


def _policy(random: Random) -> dict[str, Any]:
    strategy = str(random.choice([*OnConflict]))
    states = random.choice([{}, {}, {"states": WAITING}, {"states": [*LIVE, "completed"]}])
    return {"on_conflict": strategy, **states, **random.choice([{}, {}, {"period": "PT5M"}])}


def _requests(random: Random, least: int, most: int) -> list[dict[str, Any]]:
    return [_request(random) for _ in range(random.randint(least, most))]


def _enqueue(random: Random, company: Company) -> Any:
    return {"request": _request(random)}


def _enqueue_many(random: Random, company: Company) -> Any:
    return {"requests": _requests(random, 2, 3)}


def _workflow(random: Random, company: Company) -> Any:
    kind = random.choice(["chain", "group", "batch"])
    callback = {"on_complete": _request(random)} if kind == "batch" else {}
    return {"kind": kind, "requests": _requests(random, 1, 2), **callback}


def _cancel(random: Random, company: Company) -> Any:
    things = [*company.expected.jobs]
    return {"thing": random.choice(things)} if things else None


def _cancel_workflow(random: Random, company: Company) -> Any:
    things = [*company.expected.workflows]
    return {"thing": random.choice(things), "active": random.random() < 0.3} if things else None


def _finish(random: Random, company: Company) -> Any:
    return {"run": random.choice([*company.runs]), "fails": random.random() < 0.3} if company.runs else None


def _schedule(random: Random, company: Company) -> Any:
    return None if company.expected.cron else {"minute": random.choice([0, 7])}


def _tick(random: Random, company: Company) -> Any:
    return {} if company.expected.cron else None


def _wait(random: Random, company: Company) -> Any:
    return {"minutes": random.choice([1, 2, 5, 10, 20])}


def _set_clock_off(random: Random, company: Company) -> Any:
    return {"seconds": random.choice([-5, 0, 5])}


def _nothing(random: Random, company: Company) -> Any:
    return {}


_METHODS: list[tuple[str, Callable[[Random, Company], Any]]] = [
    *[("enqueue", _enqueue)] * 4,
    ("enqueue_many", _enqueue_many),
    *[("workflow", _workflow)] * 2,
    ("cancel", _cancel),
    ("cancel", _cancel_workflow),
    *[("claim", _nothing)] * 2,
    *[("finish", _finish)] * 2,
    *[("sweep", _nothing)] * 2,
    ("schedule", _schedule),
    *[("tick", _tick)] * 2,
    *[("wait", _wait)] * 2,
    *[("set_clock_off", _set_clock_off)] * 2,
]
