"""Measure enqueue against the bare driver, side by side on one PostgreSQL: ``python -m benchmarks``.

Both loops write to the same table with the same indexes. They take turns within one run, and the figure to read is the
ratio of each pair of turns: absolute rates belong to the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import dj_database_url
import django
from django.conf import settings

from tests.__main__ import postgres

from .turns import Turns

DATABASE = "ojs_benchmark"
PREPARED = {"server_side_binding": True, "prepare_threshold": 2}


@contextmanager
def project(prepared: bool) -> Iterator[str]:
    """Configure Django on a fresh database; yield its connection string."""
    import psycopg

    with postgres() as url:
        base = dj_database_url.parse(url)
        where = {
            k: v
            for k, v in {
                "host": base["HOST"],
                "port": base["PORT"],
                "user": base["USER"],
                "password": base["PASSWORD"],
            }.items()
            if v
        }
        dsn = psycopg.conninfo.make_conninfo(dbname=DATABASE, **where)
        with psycopg.connect(psycopg.conninfo.make_conninfo(dbname=base["NAME"], **where), autocommit=True) as admin:
            admin.execute(f"DROP DATABASE IF EXISTS {DATABASE}")
            admin.execute(f"CREATE DATABASE {DATABASE}")
            settings.configure(
                SECRET_KEY="benchmark",
                USE_TZ=True,
                INSTALLED_APPS=["django_ojs_unique"],
                DATABASES={
                    "default": {**base, "NAME": DATABASE, "CONN_MAX_AGE": None, "OPTIONS": PREPARED if prepared else {}}
                },
            )
            django.setup()
            from django.core.management import call_command
            from django.db import connection

            call_command("migrate", verbosity=0)
            yield dsn
            connection.close()
            admin.execute(f"DROP DATABASE {DATABASE}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "--prepared", action="store_true", help="let Django's connection prepare statements, as the bare loop does"
    )
    parser.add_argument("--seconds", type=float, default=1.0, help="length of one turn (default 1)")
    parser.add_argument("--rounds", type=int, default=7, help="pairs of turns (default 7)")
    parser.add_argument(
        "--finished", type=int, default=1_000_000, help="finished jobs for the last part (default 1,000,000)"
    )
    options = parser.parse_args()
    with project(options.prepared) as dsn:
        from . import enqueue

        enqueue.report(dsn, Turns(options.seconds, options.rounds), options.finished)


if __name__ == "__main__":
    sys.exit(main())
