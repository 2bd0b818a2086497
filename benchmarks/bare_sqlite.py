"""A worker of a dozen lines: sqlite3 alone, 100 jobs at a time, on our own table: ``python -m benchmarks.bare_sqlite``.

It has no leases, retries or heartbeat. The worker's rate is compared with its rate.
"""

import json
import sqlite3
import sys
import time

import django

CLAIM = (
    "UPDATE django_ojs_unique_job SET state = 'active', attempt = attempt + 1, started_at = datetime('now'),"
    " lease_expires_at = datetime('now', '+30 seconds') WHERE id IN ("
    "SELECT id FROM django_ojs_unique_job WHERE queue = 'default' AND state = 'available' AND finished_at IS NULL"
    " ORDER BY priority DESC, enqueued_at, id LIMIT 100) RETURNING id, type, args"
)
COMPLETE = (
    "UPDATE django_ojs_unique_job SET state = 'completed', unique_states = 0, finished_at = datetime('now'),"
    " lease_expires_at = NULL WHERE id IN (SELECT value FROM json_each(?))"
)


def main(path: str) -> None:
    django.setup()  # only for what the handlers do
    from . import jobs as handlers

    connection = sqlite3.connect(path, isolation_level=None, timeout=30)
    while True:
        jobs = connection.execute(CLAIM).fetchall()
        for _, type, args in jobs:
            getattr(handlers, type)(**json.loads(args))
        if jobs:
            connection.execute(COMPLETE, [json.dumps([id for id, *_ in jobs])])
        else:
            time.sleep(0.1)


if __name__ == "__main__":
    main(sys.argv[1])
