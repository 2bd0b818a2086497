"""The demo: three producers enqueue the same work at once, and it is done once (`manage.py demo`).

It uses its own SQLite database, which is deleted afterwards. The reported numbers are counted in the tables.
"""

import multiprocessing
import os
import random
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import django
from django.conf import settings
from django.core.management import call_command
from django.db import connections
from testproject.databases import database, sqlite_url
from tqdm import tqdm

QUEUE = "index"
"""The queue of `source.index`. The shop's periodic jobs are on other queues, so the demo does not run them."""
MOST_FILES = 1000
POLL_SECONDS = 0.2
LONGEST_STANDSTILL_SECONDS = 60

PRODUCERS: dict[str, Callable[[list[str]], list[str]]] = {
    "the user's action": sorted,
    "the scheduler's scan": lambda paths: sorted(paths, reverse=True),
    "the retry": lambda paths: random.Random(7).sample(paths, len(paths)),
}
"""The producers by name, each with the function that sorts the files into its order."""


class DemoFailed(Exception):
    """The demo could not be run."""


@dataclass(frozen=True, slots=True)
class Report:
    """The numbers of one demo."""

    files: int
    files_there_are: int
    calls: int
    admitted: int
    suppressed: int
    executed: int
    executed_twice: int
    lost: int
    seconds: float
    lines: int
    functions: int
    classes: int

    @property
    def kept_the_promise(self) -> bool:
        return self.admitted == self.executed == self.files and not self.executed_twice and not self.lost

    def __str__(self) -> str:
        rows = [
            ("enqueue calls", f"{self.calls:,}", f"{len(PRODUCERS)} producers, {self.files:,} files each"),
            ("admitted", f"{self.admitted:,}", "one job per file"),
            ("suppressed", f"{self.suppressed:,}", "answered with the job that was there"),
            ("executed", f"{self.executed:,}", ""),
            ("executed twice", f"{self.executed_twice:,}", ""),
            ("lost", f"{self.lost:,}", ""),
            ("wall time", f"{self.seconds:.1f} s", "producers and worker at the same time"),
        ]
        return "\n".join(f"  {name:<16}{value:>9}   {note}".rstrip() for name, value, note in rows)


def run(most_files: int, say: Callable[[str], None]) -> Report:
    """Run the demo on at most ``most_files`` files; call ``say`` with each line of progress. Raises DemoFailed."""
    from .indexing import source_files

    available = source_files()
    paths = available[:most_files]
    if not paths:
        raise DemoFailed("This Python's standard library has no source files to index.")
    with _temporary_database():
        say("Migrating a temporary SQLite database ...")
        call_command("migrate", verbosity=0)
        say(f"{len(PRODUCERS)} producers enqueue one job for each of {len(paths):,} files, and a worker runs them ...")
        began = time.monotonic()
        with _worker() as worker, _producers(paths) as producing:
            _watch(worker, producing, len(paths), say)
            suppressed = _outcomes(producing)["deduplicated"]
        return _report(paths, len(available), suppressed, time.monotonic() - began)


def produce(name: str, paths: Sequence[str]) -> Counter[str]:
    """Enqueue every file in the order of one producer, starting with the other producers; count the outcomes."""
    # A spawned process imports this module before Django is set up.
    django.setup()
    from .jobs import index_source

    ordered = PRODUCERS[name](list(paths))
    _start.wait(LONGEST_STANDSTILL_SECONDS)
    return Counter(str(index_source.enqueue(path=path, origin=name).outcome) for path in ordered)


def _wait_for_the_others(start: Any) -> None:
    global _start
    _start = start


_start: Any = None
"""In a producer's process, the barrier at which all producers wait for the common start."""


@contextmanager
def _temporary_database() -> Iterator[None]:
    """Point the default alias at a new SQLite file, in this process and in those that it starts."""
    with tempfile.TemporaryDirectory(prefix="ojs-demo-", ignore_cleanup_errors=True) as folder:
        before = dict(os.environ), dict(connections.databases["default"])
        url = sqlite_url(Path(folder, "demo.sqlite3"))
        os.environ |= {"DATABASE_URL": url, "SHOP_DEBUG": "0"}
        _connect_to(database(url))
        try:
            yield
        finally:
            _connect_to(before[1])
            os.environ.clear()
            os.environ |= before[0]


def _connect_to(entry: dict[str, Any]) -> None:
    connections["default"].close()
    del connections["default"]
    connections.databases["default"].update(entry)


@contextmanager
def _worker() -> Iterator[subprocess.Popen[str]]:
    """Run a worker process; at the end, stop it as a deploy would."""
    # The tests in the standard library contain code that newer Pythons warn about.
    command = [sys.executable, "-W", "ignore", str(settings.BASE_DIR / "manage.py"), "runworker", "--queue", QUEUE]
    worker = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        yield worker
        worker.terminate()
        _, errors = worker.communicate(timeout=LONGEST_STANDSTILL_SECONDS)
        if worker.returncode:
            raise DemoFailed(f"The worker ended with exit code {worker.returncode}.\n{errors}".rstrip())
    finally:
        if worker.poll() is None:
            worker.kill()
            worker.communicate()


@contextmanager
def _producers(paths: Sequence[str]) -> Iterator[list[Future[Counter[str]]]]:
    """Start one process per producer."""
    processes = multiprocessing.get_context("spawn")
    start = processes.Barrier(len(PRODUCERS))
    with ProcessPoolExecutor(
        len(PRODUCERS), mp_context=processes, initializer=_wait_for_the_others, initargs=(start,)
    ) as pool:
        yield [pool.submit(produce, name, paths) for name in PRODUCERS]


def _watch(
    worker: subprocess.Popen[str], producing: Sequence[Future[Any]], files: int, say: Callable[[str], None]
) -> None:
    """Show the progress until the producers are done and no job is left to run."""
    from django_ojs_unique.models import Job
    from django_ojs_unique.ojs.states import INCOMPLETE, TERMINAL

    jobs = Job.objects.filter(queue=QUEUE)
    finished, moved = 0, time.monotonic()
    with tqdm(total=files, desc="indexed", unit="file", disable=None, leave=False) as bar:
        while True:
            enqueued = all(future.done() for future in producing)
            before, finished = finished, jobs.filter(state__in=TERMINAL).count()
            bar.update(finished - before)
            if enqueued and not jobs.filter(state__in=INCOMPLETE).exists():
                break
            if worker.poll() is not None:
                raise DemoFailed(f"The worker ended early with exit code {worker.returncode}.")
            if finished != before:
                moved = time.monotonic()
            elif time.monotonic() - moved > LONGEST_STANDSTILL_SECONDS:
                raise DemoFailed(f"Nothing has moved for {LONGEST_STANDSTILL_SECONDS} seconds.")
            time.sleep(POLL_SECONDS)
        if bar.disable:
            say(f"{finished:,} of {files:,} jobs are finished.")


def _outcomes(producing: Sequence[Future[Counter[str]]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for name, future in zip(PRODUCERS, producing, strict=True):
        try:
            total += future.result()
        except Exception as error:
            raise DemoFailed(f"A producer, {name}, failed: {error!r}") from error
    return total


def _report(paths: Sequence[str], files_there_are: int, suppressed: int, seconds: float) -> Report:
    from django.db.models import Count, Sum

    from django_ojs_unique.models import Job, SuppressedEnqueue

    from .models import Execution, IndexedFile

    recorded = SuppressedEnqueue.objects.filter(queue=QUEUE).count()
    if recorded != suppressed:
        raise DemoFailed(f"{suppressed:,} calls were told of a duplicate, but {recorded:,} are on record.")
    runs = Execution.objects.values("path").annotate(runs=Count("pk"))
    totals = IndexedFile.objects.aggregate(
        lines=Sum("lines", default=0), functions=Sum("functions", default=0), classes=Sum("classes", default=0)
    )
    return Report(
        files=len(paths),
        files_there_are=files_there_are,
        calls=len(paths) * len(PRODUCERS),
        admitted=Job.objects.filter(queue=QUEUE).count(),
        suppressed=suppressed,
        executed=runs.count(),
        executed_twice=runs.filter(runs__gt=1).count(),
        lost=len(set(paths) - set(IndexedFile.objects.values_list("path", flat=True))),
        seconds=seconds,
        **totals,
    )
