"""The judge: five questions to the tables of `history`, each answered by SQL that names the guilty jobs.

**lost**: an enqueue was answered and its job was never stored, or the job vanished, was cancelled, given up or called
completed without a reason, or has not ended though everybody had time. An enqueue whose commit failed, so that nobody
knows whether it happened, counts as neither.

**beside**: a run beside a live lease. A lease may pass on when its holder finalizes the job, requeues it before it has
begun, or lets it run out. A handler whose lease ran out goes on beside the next run, which is legal only if a fault is
to blame: its worker was stopped or killed, the server was down, or somebody had locked that very row, at some moment
between the last extension of the lease and its end. Locks on other rows and cut connections excuse nothing: a worker
must extend its leases in spite of them.

**twice**: a run finalized twice: a lease token leaves ``active`` twice, a job leaves a state that is final, or a result
is stored under a token whose own handler had not ended.

**duplicates**: two unfinished jobs of one fingerprint at once, two of ``unique.period`` within its period, a job that
is stored though its transaction was rolled back.

**late**: a time limit that was not kept: an attempt of ``limit.*`` went on, or its job stayed active, for longer than
the limit and what a worker waits for the handler, by more than one lease, without a fault of its worker meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from django.db import connection

from django_ojs_unique.worker.claimed_runs import WRITE_OFF_SECONDS

from . import LIMIT_SECONDS, PERIOD_SECONDS
from .history import JOBS

SLACK = 0.005
"""Seconds by which the clocks of handlers and of SQLite, which knows milliseconds, may differ."""
BEFORE = 20.0
"""Seconds that a fault may have lasted before the job that it concerns was there."""
UNFINISHED = "('available', 'active', 'scheduled', 'retryable', 'pending')"
FINAL = "('completed', 'cancelled', 'discarded')"

_LEFT = "h.operation = 'UPDATE' AND h.source = 'active' AND h.target <> 'active'"
_OWN_RUN = "SELECT 1 FROM soak_runs r WHERE r.token = h.token_before AND r.job = h.job"
_ENDED_RUN = f"{_OWN_RUN} AND r.ended <= h.at + {SLACK}"
_FAULT = "SELECT 1 FROM soak_faults f WHERE h.worker LIKE f.worker AND h.job LIKE f.job AND h.type LIKE f.type"
_RELEASED = "h.target = 'available' AND h.attempt = h.attempt_before - 1"
_MERELY_RELEASED = f"{_LEFT} AND {_RELEASED} AND h.lease_before > h.at + {SLACK}"
_ENDED_EARLY = f"h.type LIKE 'limit.%' AND NOT EXISTS ({_OWN_RUN})"
"""A time limit also counts while an atomic handler waits for its transaction, before it begins."""
_TAKEN_BACK = (
    f"{_LEFT} AND ((h.target = 'available' AND h.attempt = h.attempt_before)"
    f" OR ({_RELEASED} AND h.lease_before <= h.at + {SLACK})"
    f" OR (h.target = 'discarded' AND NOT EXISTS ({_ENDED_RUN}) AND NOT ({_ENDED_EARLY})))"
)
_EVERY_MOVE_OF = """
    SELECT number, job, at, created_at, fingerprint_before AS before_it, fingerprint AS after_it, type,
        CASE WHEN fingerprint_before IS NOT NULL AND source IN {alive} THEN 1 ELSE 0 END AS was,
        CASE WHEN fingerprint IS NOT NULL AND target IN {alive} THEN 1 ELSE 0 END AS is_now
    FROM soak_history WHERE fingerprint IS NOT NULL OR fingerprint_before IS NOT NULL
"""
_LATE = (
    "SELECT h.job FROM soak_history h JOIN soak_runs r ON r.token = h.token_before AND r.job = h.job"
    f" WHERE {_LEFT} AND h.type LIKE 'limit.%' AND {{end}} > r.began + {{seconds}} + %(lease)s"
    f" AND NOT EXISTS ({_FAULT} AND f.began <= {{end}} AND f.ended >= r.began)"
)

QUESTIONS: dict[str, dict[str, str]] = {
    "lost": {
        "answered, and never stored": (
            "SELECT a.job FROM soak_answers a WHERE a.answer IN ('created', 'replaced', 'deduplicated', 'duplicate')"
            " AND NOT EXISTS (SELECT 1 FROM soak_history h WHERE h.job = a.job AND h.operation = 'INSERT')"
        ),
        "vanished without a trace": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'INSERT' AND NOT EXISTS (SELECT 1 FROM soak_history d"
            " WHERE d.job = h.job AND d.operation = 'DELETE')"
            f" AND h.job NOT IN (SELECT CAST(id AS char(36)) FROM {JOBS})"
        ),
        "deleted before it had ended": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'DELETE'"
            f" AND h.source IN {UNFINISHED} AND NOT EXISTS"
            " (SELECT 1 FROM soak_answers a WHERE a.answer = 'removing' AND a.job_key = h.job_key)"
        ),
        "cancelled by nobody": (
            "SELECT h.job FROM soak_history h WHERE h.target = 'cancelled' AND COALESCE(h.source, '') <> 'cancelled'"
            " AND NOT EXISTS (SELECT 1 FROM soak_answers a WHERE a.answer = 'cancelling' AND a.job = h.job)"
            " AND NOT EXISTS (SELECT 1 FROM soak_history n WHERE n.job = h.replaced_by AND n.operation = 'INSERT')"
        ),
        "given up with attempts left": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'UPDATE' AND h.target = 'discarded'"
            " AND h.source <> 'discarded' AND h.attempt < h.max_attempts"
            " AND (h.expires_at IS NULL OR h.expires_at > h.at)"
        ),
        "completed without a run": (
            "SELECT h.job FROM soak_history h WHERE h.target = 'completed' AND h.operation = 'UPDATE' AND NOT EXISTS"
            " (SELECT 1 FROM soak_runs r WHERE r.job = h.job AND r.ended IS NOT NULL)"
        ),
        "not ended, though everybody had time": f"SELECT CAST(id AS char(36)) FROM {JOBS} WHERE state IN {UNFINISHED}",
    },
    "beside": {
        "claimed while it was held": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'UPDATE' AND h.source = 'active'"
            " AND h.target = 'active' AND h.token <> h.token_before"
        ),
        "taken away while its lease lived": (
            f"SELECT h.job FROM soak_history h WHERE {_TAKEN_BACK} AND h.lease_before > h.at + {SLACK}"
        ),
        "requeued while it ran": (
            f"SELECT h.job FROM soak_history h WHERE {_MERELY_RELEASED} AND EXISTS"
            f" ({_OWN_RUN} AND r.began < h.at - {SLACK} AND (r.ended IS NULL OR r.ended > h.at + {SLACK}))"
        ),
        "ran out of its lease without a fault": (
            f"SELECT h.job FROM soak_history h WHERE {_TAKEN_BACK} AND h.lease_before <= h.at + {SLACK}"
            f" AND EXISTS ({_OWN_RUN} AND r.began < h.lease_before)"
            f" AND NOT EXISTS ({_FAULT} AND f.began <= h.lease_before AND f.ended >= h.lease_before - %(lease)s)"
        ),
        "began after its lease without a fault": (
            f"SELECT h.job FROM soak_history h WHERE {_LEFT} AND h.target <> 'cancelled'"
            f" AND EXISTS ({_OWN_RUN} AND r.began > h.at + {SLACK}"
            f" AND NOT EXISTS ({_FAULT} AND f.began <= r.began AND f.ended >= h.at - %(lease)s))"
        ),
        "ran without a claim": (
            "SELECT r.job FROM soak_runs r WHERE NOT EXISTS"
            " (SELECT 1 FROM soak_history h WHERE h.job = r.job AND h.token = r.token)"
        ),
        "ran twice under one lease": ("SELECT r.job FROM soak_runs r GROUP BY r.job, r.token HAVING COUNT(*) > 1"),
    },
    "twice": {
        "one lease ended twice": (
            f"SELECT h.job FROM soak_history h WHERE {_LEFT} GROUP BY h.job, h.token_before HAVING COUNT(*) > 1"
        ),
        "left a final state": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'UPDATE' AND h.source <> h.target"
            f" AND h.source IN {FINAL}"
            " AND NOT (h.source = 'discarded' AND h.job_key IS NOT NULL AND h.target IN ('available', 'scheduled'))"
        ),
        "finalized under another's lease": (
            f"SELECT h.job FROM soak_history h WHERE {_LEFT} AND h.target IN ('completed', 'retryable')"
            f" AND NOT EXISTS ({_ENDED_RUN})"
            f" AND NOT ({_ENDED_EARLY})"
        ),
        "finalized without a lease": (
            "SELECT h.job FROM soak_history h WHERE h.operation = 'UPDATE' AND h.target IN ('completed', 'retryable')"
            " AND h.source NOT IN ('active', h.target)"
        ),
        "more attempts than it may have": (
            "SELECT DISTINCT h.job FROM soak_history h WHERE h.max_attempts > 0 AND h.attempt > h.max_attempts"
        ),
        "told twice that it is completed": (
            "SELECT subject FROM django_ojs_unique_event WHERE type = 'job.completed' GROUP BY subject"
            " HAVING COUNT(*) > 1"
        ),
    },
    "duplicates": {
        "two unfinished jobs of one fingerprint": (
            f"WITH moves AS ({_EVERY_MOVE_OF.format(alive=UNFINISHED)}), steps AS ("
            " SELECT number, job, after_it AS fingerprint, 1 AS step FROM moves"
            " WHERE is_now = 1 AND NOT (was = 1 AND before_it = after_it)"
            " UNION ALL SELECT number, job, before_it, -1 FROM moves"
            " WHERE was = 1 AND NOT (is_now = 1 AND before_it = after_it)), alive AS ("
            " SELECT job, step, SUM(step) OVER (PARTITION BY fingerprint ORDER BY number, step) AS jobs FROM steps)"
            " SELECT job FROM alive WHERE step = 1 AND jobs > 1 AND job NOT IN"
            " (SELECT job FROM soak_history WHERE type = 'unique.period')"
        ),
        "two jobs within one period": (
            "WITH admitted AS (SELECT job, created_at, LAG(created_at) OVER"
            " (PARTITION BY fingerprint ORDER BY created_at) AS before_it FROM soak_history"
            " WHERE operation = 'INSERT' AND type = 'unique.period')"
            f" SELECT job FROM admitted WHERE created_at < before_it + {PERIOD_SECONDS - SLACK}"
        ),
        "stored though it was rolled back": (
            "SELECT a.job FROM soak_answers a WHERE a.answer = 'rolled back' AND EXISTS"
            " (SELECT 1 FROM soak_history h WHERE h.job = a.job)"
        ),
    },
    "late": {
        "went on after its time limit": _LATE.format(end="r.ended", seconds=LIMIT_SECONDS),
        "stayed active after its time limit": _LATE.format(end="h.at", seconds=LIMIT_SECONDS + WRITE_OFF_SECONDS),
    },
}


@dataclass
class Verdict:
    """The guilty jobs of each question, by what is wrong with them."""

    found: dict[str, dict[str, list[Any]]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return not any(self.found.values())

    def count(self, question: str) -> int:
        return sum(map(len, self.found[question].values()))

    def lines(self, named: int = 3) -> Iterable[str]:
        for question, findings in self.found.items():
            for wrong, jobs in findings.items():
                yield f"{question}: {len(jobs)} {wrong}: {', '.join(map(str, jobs[:named]))}"


def judge(lease: float) -> Verdict:
    """Ask all questions; ``lease`` is that of the workers, in seconds."""
    verdict = Verdict()
    with connection.cursor() as cursor:
        for question, queries in QUESTIONS.items():
            verdict.found[question] = {}
            for wrong, query in queries.items():
                cursor.execute(query.replace("%(lease)s", str(float(lease))))
                if jobs := [job for (job,) in cursor.fetchall()]:
                    verdict.found[question][wrong] = jobs
    return verdict


def story(job: Any, around: Iterable[tuple[float, str]] = ()) -> Iterable[str]:
    """Yield what is known of a job, in the order of time.

    ``around`` are moments and words: those since `BEFORE` seconds before the job, and until it had ended, are shown.
    """
    told: list[tuple[float, str]] = []
    with connection.cursor() as cursor:
        cursor.execute(
            "SELECT at, operation, source, target, attempt, worker, token_before, token, lease_before"
            " FROM soak_history WHERE job = %s AND operation <> 'DELETE' ORDER BY number",
            [job],
        )
        for at, operation, source, target, attempt, worker, before, token, lease in cursor.fetchall():
            held = f", held by {worker} under {before[:8]} with {lease - at:.2f} s left" if before else ""
            then = f", now under {token[:8]}" if token else ""
            told.append((at, f"{operation} {source or 'nothing'} -> {target}, attempt {attempt}{held}{then}"))
        cursor.execute("SELECT began, ended, token, pid FROM soak_runs WHERE job = %s", [job])
        for began, ended, token, pid in cursor.fetchall():
            told.append((began, f"BEGAN under {str(token)[:8]} in process {pid}"))
            if ended is not None:
                told.append((ended, f"ENDED under {str(token)[:8]} in process {pid}"))
    if told:
        first, last = min(told)[0] - BEFORE, max(told)[0]
        told += [(at, f"({said})") for at, said in around if first <= at <= last]
    for at, line in sorted(told):
        yield f"{at:.3f} {line}"
