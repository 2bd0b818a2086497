"""Run workers and producers, disturb them, and judge what happened.

Three workers and three producers share a database while a saboteur kills and stops them, asks workers to end, locks
rows and tables that are no jobs for several leases' time, cuts connections and restarts the server. Then all faults
end, the workers finish what is left, and SQL judges by a history that triggers kept, by what producers were answered,
and by what handlers wrote: lost jobs, runs beside a live lease, runs finalized twice, duplicates. All four must be 0.

    python -m tests.soak                               30 minutes on a PostgreSQL server of its own
    python -m tests.soak --minutes 5 --seed 17         the choices of another run
    python -m tests.soak --database mariadb --url mysql://root@127.0.0.1:3306/soak
    python -m tests.soak --keep /tmp/soak              leave logs there, to read them afterwards
    python -m tests.soak --siege --minutes 5           another one, in which handlers leave things behind

In a siege handlers do not end, and leave transactions, threads and processes behind; only processes are disturbed. Then
also counted: time limits that were not kept, and workers that did not end in time, or not as they should.

Exit codes: 0 all is well, 1 the judge found something. A seed repeats the choices, not the timing.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import django
from tqdm import tqdm

from . import NARROW, servers
from .programs import Program

LEASE = 4.0
WORKERS = [
    ["--concurrency", "4"],
    ["--concurrency", "2", "--processes", "2"],
    ["--concurrency", "3", "--async-concurrency", "20"],
]
PRODUCERS = 3
SIEGE_SHUTDOWN_SECONDS = 5
"""How long a worker in a siege waits for its jobs, as some do not end: longer than a time limit."""
LONGEST_END = 60.0
"""Seconds after which a worker that was asked to end counts as one that does not."""
LONGEST_DRAIN, LONGEST_SILENCE = 900.0, 180.0
"""Seconds in all, and without a job that ends, after which the rest is lost."""
SHUTDOWN_SECONDS = 30
"""How long a worker that is stopped waits for its jobs. Three leases, if they last longer, as locks last 2.5 leases."""


def main() -> int:
    options = _options()
    if options.seed is None:
        options.seed = random.SystemRandom().randrange(10**9)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # to leave no processes behind
    print(f"seed {options.seed}, {options.minutes:g} minutes on {options.database}", flush=True)
    # Not below a folder that is closed to the user as whom PostgreSQL runs when root starts it.
    with tempfile.TemporaryDirectory(prefix="soak-") as temporary:
        folder = Path(options.keep or temporary)
        folder.mkdir(parents=True, exist_ok=True)
        server = _server(options, Path(temporary))
        try:
            return _soak(options, folder, server)
        finally:
            server.close()


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m tests.soak", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=30, help="how long to disturb (default 30)")
    parser.add_argument("--seed", type=int, help="what the dice begin with; random by default, and printed")
    parser.add_argument("--database", choices=["postgresql", "sqlite", "mariadb"], default="postgresql")
    parser.add_argument("--url", help="the empty database to use, with --database mariadb")
    parser.add_argument("--lease", type=float, default=LEASE, help=f"seconds, of each worker (default {LEASE:g})")
    parser.add_argument("--siege", action="store_true", help="with handlers that leave things behind")
    parser.add_argument("--keep", metavar="FOLDER", help="where logs are written, and stay")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error("--minutes must be positive.")
    if options.lease < 1:
        parser.error("--lease must be 1 second at least: a busy machine cannot extend shorter ones in time.")
    if (options.database == "mariadb") != bool(options.url):
        parser.error("--url goes with --database mariadb: it names an empty database of a server that runs.")
    return options


def _server(options: argparse.Namespace, folder: Path) -> servers.Server:
    folder.chmod(0o755)
    if options.database == "postgresql":
        return servers.PostgreSQL(folder / "server")
    return servers.sqlite(folder) if options.database == "sqlite" else servers.mariadb(options.url)


def _soak(options: argparse.Namespace, folder: Path, server: servers.Server) -> int:
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "tests.soak.settings",
        "SOAK_DATABASE": json.dumps(server.settings),
        "SOAK_FOLDER": str(folder),
        "SOAK_LEASE": str(options.lease),
        "PGOPTIONS": "-c synchronous_commit=on",  # commits must survive a crash
        "PYTHONUNBUFFERED": "1",
    }
    django.setup()
    from django.core.management import call_command

    from django_ojs_unique.models import Queue

    from . import history, report
    from .saboteur import Saboteur

    call_command("migrate", verbosity=0)
    history.create()
    Queue.objects.create(name=NARROW, concurrency_limit=3)
    dice = random.Random(options.seed)
    programs = list(_programs(options, folder))
    saboteur = Saboteur(dice, programs, server, options.lease, spares_database=options.siege)
    try:
        codes = _disturb(saboteur, options.minutes * 60)
        _finish(saboteur, codes)
    finally:
        for program in programs:
            program.signal(signal.SIGCONT)
            program.signal(signal.SIGKILL)
            program.wait(10)
    return report.judged(options, folder, saboteur, codes)


def _programs(options: argparse.Namespace, folder: Path) -> Iterator[Program]:
    patience = SIEGE_SHUTDOWN_SECONDS if options.siege else max(SHUTDOWN_SECONDS, 3 * options.lease)
    common = ["--lease", str(options.lease), "--shutdown-timeout", str(patience)]
    for number, own in enumerate(WORKERS):
        yield Program(f"worker-{number}", ["django", "runworker", *common, *own], folder, {**os.environ})
    for number in range(PRODUCERS):
        arguments = [f"{options.seed}-{number}", *(["siege"] if options.siege else [])]
        yield Program(f"producer-{number}", ["tests.soak.producer", *arguments], folder, {**os.environ})


def _disturb(saboteur: Any, seconds: float) -> Counter[str]:
    """Let the saboteur work; start again what has ended. Return with which codes programs ended by themselves."""
    codes: Counter[str] = Counter()
    began = time.monotonic()
    with tqdm(total=round(seconds), unit="s", desc="disturbing", mininterval=1) as bar:
        while (passed := time.monotonic() - began) < seconds:
            if said := saboteur.turn():
                bar.set_postfix_str(said)
            _keep_running(saboteur.programs, codes)
            bar.update(min(round(seconds), int(passed)) - bar.n)
            time.sleep(0.1)
    return codes


def _keep_running(programs: list[Program], codes: Counter[str]) -> None:
    for program in programs:
        if program.alive and program.asked_to_end and time.monotonic() > program.asked_to_end + LONGEST_END:
            codes["worker did not end"] += 1
            program.signal(signal.SIGKILL)
            program.wait(LONGEST_END)
        if not program.alive:
            _note_end(program, codes)
            program.signal(signal.SIGKILL)  # children that outlived it
            program.start()


def _note_end(program: Program, codes: Counter[str]) -> None:
    codes[f"{'worker' if program.is_worker else 'producer'} ended with {program.code}"] += 1
    if program.code == 0 and not program.has_orphans and program.left():
        codes["worker left processes behind"] += 1


def _finish(saboteur: Any, codes: Counter[str]) -> None:
    """End all faults and producers, and let the workers end every job; then let them end, too."""
    from django.db import connection

    from django_ojs_unique.models import Job
    from django_ojs_unique.ojs.states import INCOMPLETE

    connection.close()
    saboteur.stop_all()
    workers = [program for program in saboteur.programs if program.is_worker]
    for program in saboteur.programs:
        if not program.is_worker:
            program.terminate()
            program.wait(SHUTDOWN_SECONDS)
    left = last = Job.objects.filter(state__in=sorted(INCOMPLETE)).count()
    longest = time.monotonic() + LONGEST_DRAIN
    patience = time.monotonic() + LONGEST_SILENCE
    with tqdm(total=left, unit="job", desc="finishing", mininterval=1) as bar:
        while left and time.monotonic() < min(patience, longest):
            _keep_running(workers, codes)
            left = Job.objects.filter(state__in=sorted(INCOMPLETE)).count()
            if left < last:
                patience, last = time.monotonic() + LONGEST_SILENCE, left
            bar.update(bar.total - left - bar.n)
            time.sleep(0.2)
    for program in workers:
        program.terminate()
    for program in workers:
        program.wait(LONGEST_END)
        _note_end(program, codes)


if __name__ == "__main__":
    sys.exit(main())
