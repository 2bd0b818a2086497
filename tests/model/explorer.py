"""Try every order in which the statements of some clients can take their steps, and stop at a broken promise."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

from .database import Commit, Refused, Rows, Statement, Step, World
from .mechanism import Context, Mechanism


class Call(NamedTuple):
    """One operation of `mechanism`, and its arguments after the context."""

    operation: Callable[..., Any]
    arguments: tuple[Any, ...] = ()

    def __str__(self) -> str:
        said = (str(sorted(one)) if isinstance(one, frozenset) else str(one) for one in self.arguments)
        return f"{self.operation.__name__}({', '.join(said)})"


Script = tuple[tuple[Call, ...], ...]
"""What a client does: one call after another, each one of several; the explorer tries all of them."""


class Client(NamedTuple):
    """A client: the rest of its script, and the call that it is in, with the results of its statements so far."""

    script: Script
    in_transaction: bool
    call: Call | None = None
    results: tuple[Any, ...] = ()

    @property
    def is_done(self) -> bool:
        return self.call is None and not self.script


class State(NamedTuple):
    world: World
    clients: tuple[Client, ...]


class Found(NamedTuple):
    """A broken promise, and the steps that led to it."""

    promise: str
    trace: list[str]

    def __str__(self) -> str:
        return "\n".join([*self.trace, self.promise])


class Explored(NamedTuple):
    """How many states there are, the first broken promise, if any, and what calls returned."""

    states: int
    found: Found | None
    outcomes: frozenset[str]


def explore(
    mechanism: Mechanism,
    world: World,
    clients: Sequence[Client],
    invariant: Callable[[Rows], str] = lambda rows: "",
) -> Explored:
    """Visit every state. ``invariant`` returns what is wrong with the committed rows."""
    start = State(world, tuple(clients))
    came_from: dict[State, tuple[State, Did] | None] = {start: None}
    outcomes: set[str] = set()
    stack = [start]
    while stack:
        state = stack.pop()
        for after, did in list(_moves(mechanism, state)) or _victims(state):
            if isinstance(did.what, str):
                outcomes.add(did.what)
            if after in came_from:
                continue
            came_from[after] = state, did
            if broken := did.broken or invariant(after.world.rows):
                return Explored(len(came_from), Found(broken, _trace(came_from, after)), frozenset(outcomes))
            stack.append(after)
    return Explored(len(came_from), None, frozenset(outcomes))


class Did(NamedTuple):
    """A move: which client, the call that it began, the statement that took a step, or what the call returned.

    ``broken``: the promise that it broke, if any.
    """

    client: int
    what: Call | Statement | str
    result: Any = None
    broken: str = ""

    def __str__(self) -> str:
        name = "ABC"[self.client]
        if isinstance(self.what, str):
            return f"{name} -> {self.what}"
        if isinstance(self.what, Call):
            return f"{name}: {self.what}"
        return f"{name}:   {type(self.what).__name__} {_told(self.result)}"


_BEGINS = "begins"
Move = tuple[State, Did]


def _moves(mechanism: Mechanism, state: State) -> Iterator[Move]:
    for number, client in enumerate(state.clients):
        if client.call is None:
            for call in client.script[0] if client.script else ():
                yield _with(state, number, client._replace(script=client.script[1:], call=call)), Did(number, call)
            continue
        level = state.world.level
        has_returned, value = _next(mechanism, level, client.in_transaction, client.call, client.results)
        if has_returned:
            yield _with(state, number, client._replace(call=None, results=())), Did(number, value)
            continue
        try:
            step = value.step(state.world, number)
        except Refused:
            yield _ended(state, number), Did(number, "the database ends the transaction")
            continue
        if step is not None:
            yield _stepped(state, number, value, step)


def _stepped(state: State, number: int, statement: Statement, step: Step) -> Move:
    world, result, broken = step.world, step.result, ""
    if not step.ended:
        return state._replace(world=world), Did(number, statement, _BEGINS)
    if isinstance(statement, Commit):
        broken, result = result, None
    elif (own := world.open[number]) is not None and not own.is_begun:
        broken, world = own.broken, Commit().step(world, number).world
    client = state.clients[number]
    after = _with(state, number, client._replace(results=(*client.results, result)))
    return after._replace(world=world), Did(number, statement, result, broken)


def _victims(state: State) -> Iterator[Move]:
    """Where nobody can go on, the database ends one of the waiting transactions."""
    for number, client in enumerate(state.clients):
        if not client.is_done:
            yield _ended(state, number), Did(number, "the database ends the transaction, because of a deadlock")


def _ended(state: State, number: int) -> State:
    return _with(state, number, Client((), False))._replace(world=state.world.put(number, None))


def _with(state: State, number: int, client: Client) -> State:
    return state._replace(clients=(*state.clients[:number], client, *state.clients[number + 1 :]))


@lru_cache(maxsize=200_000)
def _next(mechanism: Mechanism, level: Any, in_transaction: bool, call: Call, results: tuple[Any, ...]) -> Any:
    """Return whether a call has returned after these results of its statements; and what, or its next statement."""
    program = call.operation(Context(mechanism, level, in_transaction), *call.arguments)
    try:
        statement = next(program)
        for result in results:
            statement = program.send(result)
    except StopIteration as stopped:
        return True, stopped.value
    return False, statement


def _told(result: Any) -> str:
    if not isinstance(result, tuple):
        return "" if result is None else str(result)
    return ", ".join(f"{row.id} {row.state}{' holding' if row.is_holding else ''}" for row in result) or "nothing"


def _trace(came_from: dict[State, tuple[State, Did] | None], state: State) -> list[str]:
    steps = []
    while (before := came_from[state]) is not None:
        state, did = before
        steps.append(str(did))
    return steps[::-1]
