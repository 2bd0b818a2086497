"""Turn waiting jobs of Graphile Worker into jobs here: see ``docs/coming-from-graphile-worker.md``."""

import json
from dataclasses import replace

from django.db import connection, transaction

from django_ojs_unique.handlers.registry import registry
from django_ojs_unique.models import Job

TYPES = {"send_welcome": "email.welcome", "process_events": "process_events"}  # task identifier: job type

TAKE = """
    WITH waiting AS MATERIALIZED (
        SELECT id, task_identifier FROM graphile_worker.jobs
        WHERE locked_at IS NULL AND attempts < max_attempts AND task_identifier = ANY(%s) ORDER BY id LIMIT %s
    ), taken AS MATERIALIZED (
        SELECT * FROM graphile_worker.complete_jobs(ARRAY(SELECT id FROM waiting))
    )
    SELECT id, task_identifier, priority, run_at, key, payload::text FROM taken JOIN waiting USING (id) ORDER BY id
"""


@transaction.atomic
def move(limit=1_000):
    """Turn waiting jobs of Graphile Worker into jobs here; return how many were taken there."""
    with connection.cursor() as cursor:
        cursor.execute(TAKE, [list(TYPES), limit])
        rows = cursor.fetchall()
    for number, identifier, priority, run_at, key, payload in rows:
        args = json.loads(payload)
        policy = registry.get(TYPES[identifier]).unique
        # What was enqueued here since is newer: arrays are joined, and nothing else is changed.
        if key is not None:
            same = {"key": key, "key_mode": "preserve_run_at" if isinstance(args, list) else "unsafe_dedupe"}
        else:
            same = {"unique": policy and replace(policy, on_conflict="ignore")}
        try:
            Job.objects.enqueue(
                TYPES[identifier],
                args,
                priority=max(-100, min(-priority, 100)),
                scheduled_at=run_at,
                meta={"graphile_worker_id": number},
                **same,
            )
        except Exception as error:
            error.add_note(f"It is about Graphile Worker's job {number}; nothing of this batch was moved.")
            raise
    return len(rows)
