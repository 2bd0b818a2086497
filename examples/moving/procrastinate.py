"""Turn waiting jobs of Procrastinate into jobs here: see ``docs/migrate-from-procrastinate.md``."""

import json
from dataclasses import replace

from django.db import connection, transaction
from shop.jobs import send_welcome

HANDLERS = {"shop.tasks.send_welcome": send_welcome}  # the name of the task there: the handler here

TAKE = """
    UPDATE procrastinate_jobs SET status = 'cancelled'
    WHERE id IN (
        SELECT id FROM procrastinate_jobs WHERE status = 'todo' AND task_name = ANY(%s)
        ORDER BY id LIMIT %s FOR UPDATE SKIP LOCKED
    )
    RETURNING id, task_name, queue_name, priority, scheduled_at, args
"""


@transaction.atomic
def move(limit=1_000):
    """Turn waiting Procrastinate jobs into jobs here; return how many were taken there."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [list(HANDLERS), limit])
        rows = sorted(cursor.fetchall())
    for number, name, queue, priority, scheduled_at, args in rows:
        handler = HANDLERS[name]
        policy = handler.definition.unique
        try:
            handler.using(
                queue=queue,
                priority=max(-100, min(priority, 100)),
                scheduled_at=scheduled_at,
                # What was enqueued here since is newer: it is neither replaced nor an error.
                unique=policy and replace(policy, on_conflict="ignore"),
                meta={"procrastinate_id": number},
            ).enqueue(**json.loads(args))
        except Exception as error:
            error.add_note(f"It is about Procrastinate's job {number}; nothing of this batch was moved.")
            raise
    return len(rows)
