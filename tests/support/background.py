"""A worker in a thread of the test's process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread
from typing import Any

from django.db import connections

from django_ojs_unique.worker import Worker
from tests.support.processes import PATIENCE


@contextmanager
def working(**options: Any) -> Iterator[Worker]:
    """Run a worker beside the block, and stop it behind the block's end; what it raises, the block raises."""
    worker, raised = Worker(**options), []

    def run() -> None:
        try:
            worker.run()
        except BaseException as error:
            raised.append(error)
        finally:
            connections.close_all()

    thread = Thread(target=run, daemon=True)
    thread.start()
    try:
        yield worker
    finally:
        worker.stop()
        thread.join(PATIENCE)
    if raised:
        raise raised[0]
    assert not thread.is_alive(), "The worker did not stop."
