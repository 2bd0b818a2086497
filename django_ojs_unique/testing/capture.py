"""Capture the jobs that a block of code enqueues, and its suppressed enqueues."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Unpack, overload
from uuid import UUID

from ..models import Job
from ..signals import job_cancelled, job_enqueued, job_suppressed, job_updated
from . import matching
from .matching import ExpectedJob, ExpectedSuppression, TypeOrHandler


@dataclass(frozen=True, slots=True)
class Suppressed:
    """An enqueue that met a duplicate: ``outcome`` is ``rejected``, ``deduplicated`` or ``replaced``.

    ``job`` is the requested job. ``existing_job`` is the duplicate, as the enqueue read it.
    """

    outcome: str
    job: Job
    existing_job: Job

    @property
    def type(self) -> str:
        return self.job.type

    @property
    def queue(self) -> str:
        return self.job.queue

    @property
    def args(self) -> Any:
        return self.job.args

    @property
    def meta(self) -> dict[str, Any]:
        return self.job.meta  # type: ignore[no-any-return]

    @property
    def existing_job_id(self) -> UUID:
        return self.existing_job.pk

    @property
    def existing_state(self) -> str:
        return self.existing_job.state


class Captured(Sequence[Job]):
    """What was enqueued, as the sequence of the jobs that were created, in order.

    ``updated``: waiting jobs that an enqueue with their key rewrote. ``replaced``: jobs that were cancelled for another
    one. ``suppressed``: enqueues that met a duplicate. All stay here if they are rolled back later.
    """

    def __init__(self, using: str | None = None) -> None:
        self.using = using
        self.clear()

    def clear(self) -> None:
        """Forget what was captured so far."""
        self.enqueued: list[Job] = []
        self.updated: list[Job] = []
        self.replaced: list[Job] = []
        self.suppressed: list[Suppressed] = []

    def assert_enqueued(
        self, type: TypeOrHandler | None = None, *, count: int | None = None, **wanted: Unpack[ExpectedJob]
    ) -> Job:
        """Do the same as `testing.assert_enqueued`, with the captured jobs."""
        __tracebackhide__ = True
        criteria = matching.criteria(type, wanted, ExpectedJob)
        found: Job = matching.require(self.enqueued, criteria, count, "enqueued", lambda: self.suppressed)
        return found

    def assert_not_enqueued(self, type: TypeOrHandler | None = None, **wanted: Unpack[ExpectedJob]) -> None:
        """Do the same as `testing.assert_not_enqueued`, with the captured jobs."""
        __tracebackhide__ = True
        matching.refuse(self.enqueued, matching.criteria(type, wanted, ExpectedJob), "enqueued")

    def assert_deduplicated(
        self,
        type_or_job: TypeOrHandler | Job | None = None,
        *,
        count: int | None = None,
        **wanted: Unpack[ExpectedSuppression],
    ) -> Suppressed:
        """Do the same as `testing.assert_deduplicated`, with the captured suppressed enqueues."""
        __tracebackhide__ = True
        criteria = matching.criteria(type_or_job, wanted, ExpectedSuppression)
        found: Suppressed = matching.require(self.suppressed, criteria, count, "suppressed")
        return found

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Capture until the end of the block."""
        receivers = (
            (job_enqueued, self._on_enqueued),
            (job_updated, self._on_updated),
            (job_suppressed, self._on_suppressed),
            (job_cancelled, self._on_cancelled),
        )
        try:
            for signal, receiver in receivers:
                signal.connect(receiver)
            yield
        finally:
            for signal, receiver in receivers:
                signal.disconnect(receiver)

    @overload
    def __getitem__(self, index: int) -> Job: ...

    @overload
    def __getitem__(self, index: slice) -> list[Job]: ...

    def __getitem__(self, index: int | slice) -> Job | list[Job]:
        return self.enqueued[index]

    def __len__(self) -> int:
        return len(self.enqueued)

    def __repr__(self) -> str:
        lines = [
            f"{name}: {matching.describe(each)}"
            for name in ("enqueued", "updated", "replaced", "suppressed")
            for each in getattr(self, name)
        ]
        return f"<captured {'; '.join(lines) or 'nothing'}>"

    def _on_enqueued(self, *, job: Job, using: str, **more: Any) -> None:
        self._add(self.enqueued, job, using)

    def _on_updated(self, *, job: Job, using: str, **more: Any) -> None:
        self._add(self.updated, job, using)

    def _on_suppressed(self, *, outcome: str, job: Job, existing_job: Job, using: str, **more: Any) -> None:
        self._add(self.suppressed, Suppressed(outcome, job, existing_job), using)

    def _on_cancelled(self, *, job: Job, replaced_by: Any, using: str, **more: Any) -> None:
        if replaced_by is not None:
            self._add(self.replaced, job, using)

    def _add(self, captured: list[Any], one: Any, using: str) -> None:
        if self.using in (None, using):
            captured.append(one)


@contextmanager
def capture_jobs(*, using: str | None = None) -> Iterator[Captured]:
    """Capture the jobs that are enqueued in the block, and its suppressed enqueues.

    ``using``: the database; by default, all databases.
    """
    captured = Captured(using)
    with captured.listening():
        yield captured
