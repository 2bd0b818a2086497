"""A worker of a dozen lines: psycopg alone, 100 jobs at a time, on our own table: ``python -m benchmarks.bare_worker``.

It has no leases, retries or heartbeat. The worker's rate is compared with its rate.
"""

import sys
import time

import django
import psycopg

CLAIM = (
    "UPDATE django_ojs_unique_job SET state = 'active', attempt = attempt + 1, started_at = now(),"
    " lease_expires_at = now() + interval '30 seconds' FROM ("
    "SELECT id AS claimed FROM django_ojs_unique_job"
    " WHERE queue = 'default' AND state = 'available' AND finished_at IS NULL"
    " ORDER BY priority DESC, enqueued_at, id LIMIT 100 FOR UPDATE SKIP LOCKED) x"
    " WHERE id = claimed RETURNING id, type, args"
)
COMPLETE = (
    "UPDATE django_ojs_unique_job SET state = 'completed', unique_states = 0, finished_at = now(),"
    " lease_expires_at = NULL WHERE id = ANY(%s)"
)


def main(dsn: str) -> None:
    django.setup()  # only for what the handlers do
    from . import jobs as handlers

    connection = psycopg.connect(dsn, autocommit=True, prepare_threshold=2)
    cursor = connection.cursor()
    while True:
        jobs = cursor.execute(CLAIM).fetchall()
        for _, type, args in jobs:
            getattr(handlers, type)(**args)
        if jobs:
            cursor.execute(COMPLETE, ([id for id, *_ in jobs],))
        else:
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
