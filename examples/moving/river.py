"""Turn waiting jobs of River into jobs here: see ``docs/coming-from-river.md``."""

import json
from dataclasses import replace

from django.db import connection, transaction

from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import Job

TYPES = {"reconcile_account": "reconcile_account"}  # River's kind: job type

TAKE = """
    UPDATE river_job SET state = 'cancelled', finalized_at = now()
    WHERE id IN (
        SELECT id FROM river_job WHERE state IN ('available', 'retryable', 'scheduled') AND kind = ANY(%s)
        ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    RETURNING id, kind, queue, priority, scheduled_at, args::text
"""


@transaction.atomic
def move(limit=1_000):
    """Turn waiting River jobs into jobs here; return how many were taken there."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [list(TYPES), limit])
        rows = sorted(cursor.fetchall())
    for number, kind, queue, priority, scheduled_at, args in rows:
        policy = registry.get(TYPES[kind]).unique
        try:
            Job.objects.enqueue(
                TYPES[kind],
                json.loads(args),
                queue=queue.replace("_", "-"),
                priority=10 * (1 - priority),  # 1, River's default and highest, becomes 0, which is the default here
                scheduled_at=scheduled_at,
                # What was enqueued here since is newer: it is neither replaced nor an error.
                unique=policy and replace(policy, on_conflict="ignore"),
                meta={"river_id": number},
            )
        except Exception as error:
            error.add_note(f"It is about River's job {number}; nothing of this batch was moved.")
            raise
    return len(rows)
