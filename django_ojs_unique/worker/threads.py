"""The threads of a worker: each says whether it died."""

from __future__ import annotations

import logging
from collections.abc import Callable
from threading import Thread

from ..handlers.carried import inheriting

logger = logging.getLogger("django_ojs_unique.worker")


class WatchedThread(Thread):
    """A thread that runs ``serve``, and logs the exception that ends it.

    It is a daemon, so that a handler which never returns cannot keep the process alive.
    """

    def __init__(self, name: str, serve: Callable[[], None]) -> None:
        super().__init__(target=inheriting(serve), name=name, daemon=True)
        self.died = False
        """Whether an exception ended it."""

    def run(self) -> None:
        try:
            super().run()
        except BaseException:
            self.died = True
            logger.critical("Thread %s died.", self.name, exc_info=True)
