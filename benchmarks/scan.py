"""The self-healing scan over many records: its memory and its rate."""

from __future__ import annotations

import argparse
import time

import psutil
from django.db import connection, models

from .project import on_postgres

SHOWN = (0.1, 0.5, 1.0)


def report(records: int) -> None:
    """Print the memory of this process during a scan in which all jobs are missing, and one with none missing."""
    from django_ojs_unique import UniquePolicy, job
    from django_ojs_unique.execution.idempotency import Heal, scan

    unique = UniquePolicy(keys=["type", "args"], on_conflict="ignore")
    heal = Heal(pending=_records(records)._default_manager.all(), args={"record_id": "pk"})
    job("record.finish", unique=unique, heal=heal)(lambda record_id: None)
    for name in ("first scan, no job is there", "second scan, all are there"):
        print(f"{name}:", flush=True)
        memory = Memory()
        start = time.perf_counter()
        result = scan("record.finish", progress=memory.look)
        seconds = time.perf_counter() - start
        print(f"  {result} in {seconds:,.0f} s: {records / seconds:,.0f} records/s", flush=True)
        print(f"  growth from 10 % to 100 %: {memory.growth:+.1f} MiB  goal: flat", flush=True)


class Memory:
    """Prints the peak resident memory at some points of a scan."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._seen: list[float] = []
        self._peak = 0.0

    def look(self, fraction: float, note: str) -> None:
        """Measure the memory; print it for each point that was reached."""
        self._peak = max(self._peak, self._process.memory_info().rss / 2**20)
        while len(self._seen) < len(SHOWN) and fraction >= SHOWN[len(self._seen)]:
            print(f"  {SHOWN[len(self._seen)]:>4.0%}: at most {self._peak:.1f} MiB ({note})", flush=True)
            self._seen.append(self._peak)

    @property
    def growth(self) -> float:
        """The growth from the first point to the last, in MiB."""
        return self._seen[-1] - self._seen[0]


def _records(number: int) -> type[models.Model]:
    """Create a table of ``number`` records; return its model."""

    class Record(models.Model):  # noqa: DJ008 - nobody reads it
        class Meta:
            app_label = "benchmarks"
            managed = False

    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {Record._meta.db_table} (id bigint PRIMARY KEY)")
        cursor.execute(f"INSERT INTO {Record._meta.db_table} SELECT generate_series(1, {number:d})")
        cursor.execute("ANALYZE")
    return Record


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    with on_postgres("scan"):
        report(parser.parse_args().records)
