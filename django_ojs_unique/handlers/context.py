"""What a handler learns about its attempt, and what it may do with it meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, TypeVar
from uuid import UUID, uuid5

from ..exceptions import InvalidRequest

if TYPE_CHECKING:
    from ..models import Job

P = ParamSpec("P")
R = TypeVar("R")


class SupportsHandle(Protocol):
    """What a context needs of `django_ojs_unique.execution.execute.JobHandle`, which documents the members."""

    def is_leased(self) -> bool: ...
    def report(self, fraction: float, note: str) -> None: ...
    def fence(self) -> None: ...
    def complete(self, result: Any) -> None: ...
    def checkpoint(self) -> None: ...
    @property
    def journal(self) -> SupportsSteps: ...


class SupportsSteps(Protocol):
    """What a context needs of `django_ojs_unique.execution.journal.Journal`, which documents the members."""

    def step(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    async def astep(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any: ...
    def cursor(self, name: str, start: Any, type: Any) -> Cursor: ...


class Cursor:
    """How far a loop of a job has come, over all attempts; made by `JobContext.cursor`."""

    def __init__(self, value: Any, keep: Callable[[Any], None]) -> None:
        self.value = value
        """What was set last, or the start."""
        self._keep = keep

    def set(self, value: Any) -> None:
        """Note that the work up to ``value`` is done; also a checkpoint, as `JobContext.checkpoint`.

        It is stored each second, when the attempt fails and when the worker stops; in an open transaction at once, and
        then it is committed with the work. Raises UnstorableStep for a value that JSON cannot carry or that is too
        large, LeaseLost when it is stored and the lease is lost, and Interrupted, as a checkpoint does.
        """
        self.value = value
        self._keep(value)

    async def aset(self, value: Any) -> None:
        """Do what `set` does, from an ``async def`` handler."""
        from asgiref.sync import sync_to_async

        await sync_to_async(self.set)(value)


@dataclass(frozen=True, slots=True)
class JobContext:
    """What a handler declared with ``takes_context=True`` learns about its attempt."""

    job_id: UUID
    type: str
    queue: str
    attempt: int
    max_attempts: int
    meta: dict[str, Any] = field(repr=False)
    tags: list[str]
    enqueued_at: datetime
    started_at: datetime
    worker_id: str
    handle: SupportsHandle = field(repr=False)
    job: Job
    """The row as it was claimed; fields that an attempt does not need are read from the database on access."""

    @property
    def cancelled(self) -> bool:
        """Whether the job was cancelled or replaced since it started, or its lease lost: its result will be refused.

        In a plain handler each access is a query: use it between the steps of a long handler, not in a tight loop. In
        an ``async def`` handler it is what the worker saw in the last second, and the worker cancels the handler then.
        """
        return not self.handle.is_leased()

    @property
    def workflow_id(self) -> UUID | None:
        """The workflow that enqueued the job, if one did."""
        return self.job.workflow_id

    @property
    def parent_results(self) -> list[Any]:
        """The results of the jobs before this one in its workflow, in order; empty if there are none.

        A step of a chain gets those of all steps before it, and a callback those of all jobs of its batch. A job that
        failed has ``{"error": {"code": ..., "message": ...}}`` there. Each access reads the database: in an
        ``async def`` handler, use `sync_to_async`.
        """
        from ..workflows.results import parent_results

        return parent_results(self.job) or []

    def progress(self, fraction: float, note: str = "") -> None:
        """Report how far the work is, from 0 to 1, and a note. Cheap: the worker stores the last report each second.

        Raises InvalidRequest for a number outside 0 to 1.
        """
        if not isinstance(fraction, (int, float)) or not 0 <= fraction <= 1:
            raise InvalidRequest.at(
                "fraction", "must be a number from 0 to 1", value=fraction, hint="Write context.progress(done / total)."
            )
        self.handle.report(float(fraction), str(note))

    def fence(self) -> None:
        """Lock the job's row until your transaction ends, so that nobody can take the job away before its commit.

        A cancellation waits until then. Raises LeaseLost if the lease is lost, and RuntimeError outside of
        `transaction.atomic` on the database of the jobs.
        """
        self.handle.fence()

    def complete(self, result: Any = None) -> None:
        """Complete the job in your transaction: what you wrote in it and the completion are committed, or neither.

        What the handler returns afterwards is ignored. Raises LeaseLost if the lease is lost or is completed
        already; your transaction cannot commit then. Raises RuntimeError outside of `transaction.atomic` on the
        database of the jobs, and in a handler that is ``atomic`` already.
        """
        self.handle.complete(result)

    def step(self, name: str, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function once per job: a later attempt gets the result that was stored when it returned.

        Each step has a ``name`` of its own, up to 100 characters, and comes in the same order in each attempt. The
        result is what JSON makes of it, or what the function's type hint for it says. In an open transaction the result
        is committed with it.

        Raises what the function raises; UnstorableStep for a result that JSON cannot carry or that is too large, and
        LeaseLost if the lease is lost, both after the call; before it StepsChanged if an earlier attempt had
        other steps, HandlerError for an async function or a type hint without a conversion, InvalidRequest for an
        invalid name, and RuntimeError inside another step.
        """
        result: R = self.handle.journal.step(name, function, args, kwargs)
        return result

    async def astep(self, name: str, function: Callable[P, Awaitable[R]], /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Do what `step` does, with an ``async def`` function; one step after the other."""
        result: R = await self.handle.journal.astep(name, function, args, kwargs)
        return result

    def cursor(self, name: str, start: Any = None, *, type: Any = Any) -> Cursor:
        """Return how far a long loop has come: ``value`` is ``start``, or what an earlier attempt stored last.

        ``type`` is the type of the values, such as `datetime.date`; by default they are plain JSON. It reads the
        database: in an ``async def`` handler, call it with `sync_to_async`. Raises StepsChanged, HandlerError and
        InvalidRequest as `step` does.
        """
        return self.handle.journal.cursor(name, start, type)

    def checkpoint(self) -> None:
        """Let a stopping worker end the attempt here, and requeue the job: the attempt does not count.

        Raises Interrupted then, which ``except Exception`` does not catch.
        """
        self.handle.checkpoint()

    def idempotency_key(self, step: str = "") -> str:
        """Return a UUID for what this job asks of another service: the same in each attempt, another for each ``step``.

        The service must honour such keys: then a request that is sent twice has the effect of one.
        """
        return str(uuid5(self.job_id, step))
