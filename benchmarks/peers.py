"""Other packages with their defaults, draining the same number of no-op jobs: ``python -m benchmarks.peers NAME VERB``.

Each has two verbs: ``fill`` makes its tables and the jobs, ``work`` runs its worker. If the package has unique keys,
each job has its own.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from importlib.util import find_spec

from .project import new_database, running

PEERS = {
    "procrastinate": (
        ["procrastinate"],
        "SELECT count(*) FROM procrastinate_jobs WHERE status IN ('todo', 'doing')",
    ),
    "pgqueuer": (["pgqueuer", "asyncpg"], "SELECT count(*) FROM pgqueuer"),
    "django_tasks_db": (
        ["django_tasks", "django_tasks_db"],
        "SELECT count(*) FROM django_tasks_database_dbtaskresult WHERE status IN ('READY', 'RUNNING')",
    ),
}
JOBS = 20_000
LONGEST_SECONDS = 20
"""How long a slow peer runs at most; its rate is that of the jobs that it finished."""


def report(rounds: int) -> None:
    """Print the rate of each peer that is installed."""
    for name, (modules, unfinished) in PEERS.items():
        if missing := [module for module in modules if find_spec(module) is None]:
            print(f"{name}: skipped, {missing[0]} is not installed")
            continue
        rates = []
        for _ in range(rounds):
            with new_database(f"peer_{name}") as (_, dsn):
                rates.append(_rate(name, unfinished, dsn))
        print(f"{name:<44} {statistics.median(rates):>7,.0f}/s ({min(rates):,.0f}-{max(rates):,.0f})", flush=True)


def _rate(name: str, unfinished: str, dsn: str) -> float:
    import psycopg

    command = [sys.executable, "-m", "benchmarks.peers", name]
    environment = {"OJS_BENCHMARK_DSN": dsn}
    subprocess.run([*command, "fill"], env={**os.environ, **environment}, check=True)
    with psycopg.connect(dsn, autocommit=True) as connection:

        def left() -> tuple[int, float]:
            time.sleep(0.02)
            (count,) = connection.execute(unfinished).fetchone() or (0,)
            return count, time.perf_counter()

        connection.execute("VACUUM ANALYZE")
        with running([*command, "work"], **environment) as process:
            all_jobs, _ = count, begin = left()
            while count == all_jobs and process.poll() is None:
                count, begin = left()
            now, end = count, begin
            while now and end - begin < LONGEST_SECONDS and process.poll() is None:
                now, end = left()
    return (count - now) / (end - begin)


def procrastinate(verb: str, dsn: str) -> None:
    """A task with a queueing lock; concurrency 1."""
    from procrastinate import App, PsycopgConnector, jobs

    app = App(connector=PsycopgConnector(conninfo=dsn))

    @app.task(name="noop")
    async def noop(i: int) -> None:
        pass

    def job(number: int) -> jobs.Job:
        return jobs.Job(
            id=None,
            status=None,
            queue="default",
            lock=None,
            queueing_lock=str(number),
            task_name="noop",
            task_kwargs={"i": number},
        )

    async def run() -> None:
        async with app.open_async():
            if verb == "fill":
                await app.schema_manager.apply_schema_async()
                await app.job_manager.batch_defer_jobs_async([job(number) for number in range(JOBS)])
            else:
                await app.run_worker_async()

    asyncio.run(run())


def pgqueuer(verb: str, dsn: str) -> None:
    """An entry point with a dedupe key; batches of 10."""
    import asyncpg
    from pgqueuer import PgQueuer
    from pgqueuer.db import AsyncpgDriver
    from pgqueuer.queries import Queries
    from psycopg.conninfo import conninfo_to_dict

    async def run() -> None:
        where = conninfo_to_dict(dsn)
        where["database"] = where.pop("dbname")
        driver = AsyncpgDriver(await asyncpg.connect(**where))
        if verb == "fill":
            queries = Queries(driver)
            await queries.install()
            keys = [str(number) for number in range(JOBS)]
            payloads = [b'{"i": %d}' % number for number in range(JOBS)]
            await queries.enqueue(["noop"] * JOBS, payloads, [0] * JOBS, dedupe_key=keys)
        else:
            queuer = PgQueuer(driver)

            @queuer.entrypoint("noop")
            async def noop(job: object) -> None:
                pass

            await queuer.run()

    asyncio.run(run())


def django_tasks_db(verb: str, dsn: str) -> None:
    """A task without a key, as the package has none."""
    import django
    from django.conf import settings
    from psycopg.conninfo import conninfo_to_dict

    where = conninfo_to_dict(dsn)
    database = {"HOST": "host", "PORT": "port", "USER": "user", "PASSWORD": "password", "NAME": "dbname"}
    settings.configure(
        USE_TZ=True,
        INSTALLED_APPS=["django_tasks", "django_tasks_db"],
        DATABASES={
            "default": {
                "ENGINE": "django.db.backends.postgresql",
                **{setting: where.get(key) or "" for setting, key in database.items()},
            }
        },
        TASKS={"default": {"BACKEND": "django_tasks_db.DatabaseBackend"}},
    )
    django.setup()
    from django.core.management import call_command

    if verb == "work":
        call_command("db_worker", verbosity=0)
        return
    call_command("migrate", verbosity=0)
    from django_tasks_db.models import DBTaskResult

    from .peer_tasks import noop

    first = DBTaskResult.objects.get(pk=noop.enqueue(i=0).id)
    fixed = {
        field.attname: getattr(first, field.attname)
        for field in DBTaskResult._meta.concrete_fields
        if not field.primary_key
    }
    DBTaskResult.objects.bulk_create(
        [DBTaskResult(**{**fixed, "args_kwargs": {"args": [], "kwargs": {"i": number}}}) for number in range(1, JOBS)],
        batch_size=1000,
    )


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2], os.environ["OJS_BENCHMARK_DSN"])
