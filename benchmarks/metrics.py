"""What one scrape of the metrics reads, over many jobs in many queues."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

from django.db import connection
from django.utils import timezone

from django_ojs_unique.contrib.prometheus import JobsCollector
from django_ojs_unique.models import WorkerProcess
from tests.support import growth

QUEUES, WORKERS, LIVE = 2_000, 500, 100_000
"""One in ten of the live jobs runs, two are for later, and three wait for one of as many keys of a limit as queues."""
_LIVE = f"""
INSERT INTO {growth.TABLE} (id, type, queue, args, state, created_at, enqueued_at, run_at, started_at, attempt, limits,
  blocked_by)
SELECT gen_random_uuid(), 'live', 'q' || n % {QUEUES}, '{{}}',
  CASE WHEN kind = 0 THEN 'active' WHEN kind < 3 THEN 'scheduled' ELSE 'available' END,
  moment, CASE WHEN kind NOT IN (1, 2) THEN moment END, CASE WHEN kind IN (1, 2) THEN moment + interval '1 day' END,
  CASE WHEN kind = 0 THEN moment END, CASE WHEN kind = 0 THEN 1 ELSE 0 END,
  CASE WHEN kind > 6 THEN jsonb_build_array(jsonb_build_object('id', key, 'name', 'key', 'running', 1)) END,
  CASE WHEN kind > 6 THEN key ELSE '' END
FROM generate_series(1, {LIVE}) AS n CROSS JOIN LATERAL (
  SELECT n / 7 % 10 AS kind, 'k' || lpad((n / 3 % {QUEUES})::text, 32, '0') AS key,
    now() - n * interval '0.1 seconds' AS moment
) AS times
"""


def report(jobs: int) -> None:
    """Print the blocks and the time of each statement that reads the tables, and of all together."""
    growth.fill_finished(1, jobs - LIVE)
    growth.raw(_LIVE)
    now = timezone.now()
    WorkerProcess.objects.bulk_create(
        WorkerProcess(id=f"w{number}", hostname="h", queues=[f"q{number}"], started_at=now, heartbeat_at=now)
        for number in range(WORKERS)
    )
    growth.raw("VACUUM ANALYZE")
    print(f"{jobs:,} jobs, {LIVE:,} of them live, in {QUEUES:,} queues; {QUEUES:,} keys of a limit; {WORKERS} workers")
    statements: list[tuple[str, Any]] = []

    def note(execute: Callable[..., Any], sql: str, params: Any, many: bool, context: Any) -> Any:
        if "django_ojs_unique" in sql:
            statements.append((sql, params))
        return execute(sql, params, many, context)

    list(JobsCollector().collect())  # what is prepared once is not counted
    with connection.execute_wrapper(note):
        began = time.perf_counter()
        list(JobsCollector().collect())
        seconds = time.perf_counter() - began
    read = [(_buffers(sql, params), sql) for sql, params in statements]
    for (blocks, milliseconds), sql in read:
        print(f"{blocks:>9,} blocks {milliseconds:>9,.1f} ms  {_short(sql)}")
    blocks = sum(blocks for (blocks, _), _ in read)
    print(f"{blocks:>9,} blocks {seconds * 1000:>9,.1f} ms  a scrape, {len(read)} statements")


def _buffers(sql: str, params: Any) -> tuple[int, float]:
    ((found,),) = growth.raw(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}", params)
    (plan,) = found if isinstance(found, list) else json.loads(found)
    return plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"], plan["Execution Time"]


def _short(sql: str) -> str:
    """Return the beginning of what a statement reads."""
    text = re.sub(r'"|django_ojs_unique_(job"\.)?', "", sql)
    return text[text.index("FROM") :][:80]
