"""Housekeeper: the maintenance that a worker does for all workers. It must never delay a claim or a lease."""

from __future__ import annotations

import logging
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import partial
from threading import Event as Bell
from typing import Any, TypeVar

from django.db import DatabaseError, connections
from django.db.models import QuerySet

from ..db import sessions
from ..db.clock import database_now
from ..db.dialects import dialect_of
from ..db.locking import any_of
from ..db.session_limits import SessionLimits
from ..db.transactions import is_busy, is_transient
from ..maintenance import cron, inbox, superseded, timers
from ..maintenance.due import Seen
from ..maintenance.prune import prune
from ..models import Event, SuppressedEnqueue, Workflow
from ..reporting.activity import roll_up
from ..workflows.advance import advance_due, fail_deleted
from . import heartbeat, hints
from .outages import DATABASE_FAILED, Outages
from .queues import QueueFilter
from .threads import WatchedThread
from .timetable import Timetable

logger = logging.getLogger("django_ojs_unique.worker")

OUTAGE_SECONDS = 1.0
CRON_SECONDS = 60.0
SCAN_SECONDS = 10.0
PAUSE = 6
"""How many times longer a scan waits that has found nothing."""
UNKNOWN_SECONDS = 60.0
REFUSED_SECONDS = 900.0
"""How long to leave the jobs uncounted after the database refused to count them, as when that takes it too long."""
APART_SECONDS = 60.0
"""The jitter between workers: the first one counts, and the others find its rows."""
ADVANCE_AGAIN_SECONDS = 0.05
"""How long to leave a workflow to the process that advances it, before this one looks again."""
DECIDE_AGAIN_SECONDS = 0.2
"""How long to leave requests to the process that decides earlier ones of their key or type."""
LONGEST_WAIT = 2.0
"""How many seconds a statement may wait for a lock: longer than PostgreSQL takes to detect a deadlock."""

T = TypeVar("T")


class Housekeeper:
    """Rescues and prunes jobs, enqueues periodic jobs, writes the row of the worker, and reads its directive.

    It has a thread and a connection of its own, because it changes rows that others may have locked, and calls
    receivers of signals. A task that waits too long, or fails, is postponed, and the others go on. On SQLite, which has
    one writer at a time, a second thread would only wait for the first: the loop calls `keep_house` instead. A draining
    loop does the same on every database, because jobs need their maintenance before they are claimed.

    ``found`` is called when there may be jobs to claim; ``listening`` says whether an enqueue does that. ``facts``
    returns columns of the worker's row. ``obey`` gets the directive of an operator, and returns whether that changed
    anything. All are called from the thread.
    """

    def __init__(
        self,
        jobs: QuerySet[Any],
        worker_id: str,
        queues: QueueFilter,
        *,
        found: Callable[[], None],
        listening: Callable[[], bool],
        facts: Callable[[], Mapping[str, Any]],
        obey: Callable[[str], bool],
    ) -> None:
        self.is_thread = not dialect_of(jobs).single_writer
        self._jobs = jobs
        self._using = jobs.db
        self._worker_id = worker_id
        self._queues = queues
        self._found = found
        self._listening = listening
        self._facts = facts
        self._obey = obey
        self._timetable = Timetable(
            [
                self._sync_cron,
                self._rescue,
                self._expire,
                self._supersede,
                self._advance,
                self._fail_deleted,
                self._tick,
                self._decide,
                self._heartbeat,
                self._prune,
                *(partial(self._prune_rows, model) for model in (SuppressedEnqueue, Event, Workflow)),
                self._roll_up,
                self._doubt_queues,
                self._report_unknown,
            ]
        )
        self._outages = Outages(self._using, "The database %r failed in the upkeep; trying again")
        self._limits = SessionLimits(self._using, lock_wait=LONGEST_WAIT)
        self._bell = Bell()
        self._stopping = False
        self._is_away = False
        self._is_behind = False
        self._thread = WatchedThread("ojs-housekeeper", self._serve)

    def start(self, *, drain: bool, limits: SessionLimits) -> None:
        """Start the thread; if there is none, use the session of the loop and its ``limits``, which the loop ends."""
        self.is_thread = self.is_thread and not drain
        if self.is_thread:
            self._thread.start()
        else:
            self._limits = limits

    def stop(self, timeout: float) -> None:
        """End after the current task; give up after ``timeout`` seconds."""
        self._stopping = True
        self._bell.set()
        if self._thread.is_alive():
            self._thread.join(timeout)

    @property
    def is_alive(self) -> bool:
        """Whether no exception has ended the thread, if there is one."""
        return not self._thread.died

    @property
    def failing(self) -> bool:
        """Whether the database fails here; a lock of another transaction is no failure."""
        return self._is_away or self._timetable.failing

    @property
    def is_idle(self) -> bool:
        """Whether everything that is due has been done, also what another process has locked."""
        return not (self.failing or self._is_behind) and self._timetable.due > time.monotonic()

    @property
    def due(self) -> float:
        """When the loop has to call `keep_house`, on the monotonic clock."""
        return float("inf") if self.is_thread else self._timetable.due

    def keep_house(self) -> None:
        """Do the tasks that are due. Raises what the database raises; the task that met the error is postponed."""
        self._timetable.keep()

    def see(self, seen: Seen) -> None:
        """Soon do what a look has found; a due job that was not promoted needs a check for duplicates first."""
        now = database_now(self._using)
        needed = {
            self._rescue: seen.lost is not None,
            self._expire: seen.late is not None,
            self._advance: seen.ended is not None,
            self._tick: seen.cron is not None,
            self._decide: seen.request is not None,
            self._supersede: seen.due is not None and seen.due <= now,
        }
        for task in filter(needed.get, needed):
            self._timetable.hasten(task)
            self._bell.set()

    def has_requests(self) -> bool:
        """Whether requests wait in the inbox; if so, decide them soon."""
        if found := any_of(inbox.waiting(self._using)):
            self.hear_of_requests()
        return found

    def hear_of_requests(self) -> None:
        """Soon decide the requests in the inbox."""
        self._timetable.hasten(self._decide)
        self._bell.set()

    def hear_of(self, finalized: Iterable[Any]) -> None:
        """Soon advance the workflows that wait for one of these jobs."""
        if any(job.workflow_id is not None for job in finalized):
            self._timetable.hasten(self._advance)
            self._bell.set()

    def _serve(self) -> None:
        try:
            while not self._stopping:
                self._bell.clear()
                self._take_turn()
        finally:
            self._limits.end()
            connections.close_all()

    def _take_turn(self) -> None:
        try:
            self._limits.ensure()
            self.keep_house()
        except DATABASE_FAILED as error:
            if is_transient(error):
                return
            self._is_away = not is_busy(error)
            self._outages.failed(error)
            self._bell.wait(self._outages.pause)
            return
        except BaseException:
            logger.exception("The upkeep failed; trying again.")
            self._bell.wait(OUTAGE_SECONDS)
            return
        if not self._timetable.failing:
            self._is_away = False
            self._outages.answered()
        self._bell.wait(max(0.0, self._timetable.due - time.monotonic()))

    # The tasks: each returns in how many seconds it is due again.

    def _sync_cron(self) -> float:
        cron.sync(self._using, database_now(self._using))
        return float("inf")

    def _rescue(self) -> float:
        if self._run_watched(timers.rescue):
            self._found()
        return float("inf")

    def _expire(self) -> float:
        timers.expire(self._jobs, database_now(self._using))
        return float("inf")

    def _supersede(self) -> float:
        if self._run_watched(superseded.promote):
            self._found()
        return float("inf")

    def _advance(self) -> float:
        self._is_behind = False
        advanced, self._is_behind = self._watched(lambda: advance_due(self._using))
        if advanced:
            self._found()
        return ADVANCE_AGAIN_SECONDS if self._is_behind else float("inf")

    def _fail_deleted(self) -> float:
        return _scan_again(self._watched(lambda: fail_deleted(self._using)))

    def _run_watched(self, move: Callable[[QuerySet[Any], datetime], int]) -> int:
        return self._watched(lambda: move(self._jobs, database_now(self._using)))

    def _watched(self, change: Callable[[], T]) -> T:
        """Change jobs and call receivers; close transactions that these leave open, or no later write would succeed."""
        with sessions.watched():
            try:
                changed = change()
            finally:
                sessions.renew_after_receivers()
        self._limits.ensure()
        return changed

    def _tick(self) -> float:
        now = database_now(self._using)
        due = cron.tick(self._using, now)
        return CRON_SECONDS if due is None else min(CRON_SECONDS, max(0.0, (due - now).total_seconds()))

    def _decide(self) -> float:
        """Decide a batch of requests; look again soon at those that wait for another process."""
        decided = self._watched(lambda: inbox.decide(self._jobs))
        if decided.count and not self._listening():  # else each new job has named its queue
            self._found()
        if not decided.more:
            return float("inf")
        return 0 if decided.count else DECIDE_AGAIN_SECONDS

    def _heartbeat(self) -> float:
        """Write the worker's row and obey its directive; if that changed anything, write the row again at once."""
        if self._obey(self._say_hello()):
            self._say_hello()
        return SCAN_SECONDS

    def _say_hello(self) -> str:
        facts = {"hostname": socket.gethostname(), "pid": os.getpid(), **self._facts()}
        return heartbeat.say_hello(self._using, self._worker_id, database_now(self._using), **facts)

    def _prune(self) -> float:
        return _scan_again(prune(self._jobs, database_now(self._using)))

    def _prune_rows(self, model: Any) -> float:
        return _scan_again(model.objects.using(self._using).prune(database_now(self._using)))

    def _roll_up(self) -> float:
        """Count jobs for the dashboard, which does without: if the database refuses that alone, the worker is well."""
        now = database_now(self._using)
        try:
            due = roll_up(self._using, now)
        except DatabaseError as error:
            connection = connections[self._using]
            if is_busy(error) or connection.connection is None or not connection.is_usable():
                raise
            logger.warning("The jobs of the database %r could not be counted for the dashboard: %s", self._using, error)
            return REFUSED_SECONDS
        return max(0.0, (due - now).total_seconds()) + random.uniform(0, APART_SECONDS)

    def _doubt_queues(self) -> float:
        hints.tell_of_queues(self._using, self._queues)
        return float("inf")

    def _report_unknown(self) -> float:
        hints.tell_of_unknown_types(self._jobs, self._queues)
        return UNKNOWN_SECONDS


def _scan_again(found: object) -> float:
    """Return in how many seconds to scan again, after a scan that has ``found`` something, or nothing."""
    return SCAN_SECONDS if found else SCAN_SECONDS * PAUSE
