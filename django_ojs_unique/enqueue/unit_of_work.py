"""A unit of work: one change to the jobs, done as a whole, and repeated after a deadlock or a lost race."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from types import TracebackType

from django.apps import apps
from django.db import OperationalError, connections, transaction

from ..conf import settings
from ..db.dialects import dialect_on
from ..db.transactions import MOST_TRIES, may_start_over, pause_after
from ..exceptions import Contended
from ..lifecycle.events import collected

MOST_LOST_RACES = 100
"""How many races one unit of work may lose. Each loss means that another job of the key was admitted or retried."""


class LostRace(Exception):
    """Another transaction changed the rows between the query and the write; the unit of work is rolled back."""


class UnitOfWork:
    """One change to the jobs of a database, with its events.

    ::

        for work in UnitOfWork(using):
            with work:
                ...

    The block runs again from its beginning when the database ended its transaction because of a concurrent one (never
    inside the caller's own transaction), or when the block raises LostRace. With ``OJS_UNIQUE["EVENTS"]`` the block and
    the events of its signals are one transaction; with ``EAGER``, too, so that jobs run after all signals.

    ``lost_races`` counts the races that were lost before; ``is_repeated`` tells whether the block has run before.
    Raises Contended after the hundredth lost race.
    """

    def __init__(self, using: str) -> None:
        self.lost_races = 0
        self._using = using
        self._gave_way = 0
        self._is_done = False

    @property
    def is_repeated(self) -> bool:
        """Whether the block has run before, and was undone."""
        return bool(self.lost_races or self._gave_way)

    def __iter__(self) -> Iterator[UnitOfWork]:
        while not self._is_done:
            yield self

    def __enter__(self) -> None:
        self._stack = self._collect_events() if settings.joins_signals else None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        if self._stack is not None:
            try:
                self._stack.__exit__(kind, error, trace)
            except OperationalError as failed:  # of the commit, of the events, or of a callback
                if self._is_done or not self._begins_again(failed):
                    raise
                return True
        if error is None:
            self._is_done = True
            return False
        return self._begins_again(error)

    def _collect_events(self) -> ExitStack:
        """Open a transaction, unless the caller has one, for the change together with its events."""
        connection = connections[self._using]
        events = dialect_on(apps.get_model("django_ojs_unique", "Event"), connection)
        with ExitStack() as stack:
            if not connection.in_atomic_block:
                stack.enter_context(transaction.atomic(using=self._using))
                events.read_anew()
                transaction.on_commit(self._committed, using=self._using)
            stack.enter_context(collected(self._using))
            events.take_write_lock()
            return stack.pop_all()

    def _committed(self) -> None:
        self._is_done = True  # whatever the next on-commit callbacks raise

    def _begins_again(self, error: BaseException) -> bool:
        if isinstance(error, LostRace):
            self.lost_races += 1
            if self.lost_races == MOST_LOST_RACES:
                raise Contended(f"Lost {MOST_LOST_RACES} races for one uniqueness key in a row; try again.") from None
            return True
        if self._gave_way == MOST_TRIES - 1 or not may_start_over(self._using, error):
            return False
        pause_after(self._gave_way)
        self._gave_way += 1
        return True
