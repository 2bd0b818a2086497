"""The latency of one job at a time for an idle worker: from its commit to the start of its handler."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
from pathlib import Path

from django.db import connection, transaction

from django_ojs_unique.models import Job

from . import drain
from .project import running

PAUSE_SECONDS = (0.03, 0.09)
WARM_UP = 10


ENQUEUE = "SELECT ojs_enqueue('stamp', jsonb_build_object('i', %s::int))"


def report(samples: int, *, from_sql: bool = False) -> None:
    """Print the median and the 95th percentile; ``from_sql``: of requests in the inbox, whose goals are twice these."""
    with tempfile.NamedTemporaryFile() as stamps, running(OJS_BENCHMARK_STAMPS=stamps.name) as process:
        pauses = random.Random(7)
        committed = {}
        for number in range(-WARM_UP, samples):
            with transaction.atomic():
                if from_sql:
                    with connection.cursor() as cursor:
                        cursor.execute(ENQUEUE, [number])
                else:
                    Job.objects.enqueue("stamp", {"i": number})
            committed[number] = time.monotonic_ns()
            if number < 0:
                drain.wait_until_below(1, process)
            time.sleep(pauses.uniform(*PAUSE_SECONDS))
        drain.wait_until_below(1, process)
        started = dict(map(int, line.split()) for line in Path(stamps.name).read_text().splitlines())
    waits = sorted((started[number] - committed[number]) / 1e6 for number in range(samples))
    goal = 4 if from_sql else 2
    print(
        f"commit to handler: median {statistics.median(waits):.2f} ms  goal {goal},"
        f"  95 of 100 within {waits[int(samples * 0.95)]:.2f} ms  goal {2 * goal},  longest {waits[-1]:.2f} ms"
    )
