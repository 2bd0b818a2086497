"""Exceptions that a handler raises to end its attempt, and the one that it gets when its time is up."""

from __future__ import annotations

from datetime import timedelta

from ..exceptions import OJSError
from ..ojs.durations import milliseconds


class Retry(OJSError):
    """The handler asked to run again.

    ``after`` (ISO 8601, a timedelta or seconds) replaces the delay of the retry policy. The attempt counts: after the
    last one the job is discarded. Raises InvalidRequest for an invalid ``after``.
    """

    code = "handler_error"
    retryable = True
    after: timedelta | None = None

    def __init__(self, reason: str = "", *, after: str | timedelta | float | None = None) -> None:
        self.after = None if after is None else timedelta(milliseconds=milliseconds(after, "after"))
        super().__init__(reason or None)


class Discard(OJSError):
    """The handler gave the job up.

    The job is discarded at once, even if attempts are left.
    """

    code = "handler_error"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or None)


class Skip(OJSError):
    """There was nothing to do.

    The job completes; its row and the worker's summary say that it was skipped, and why.
    """

    code = "skipped"

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason or None)


class Interrupted(BaseException):
    """The worker stops, and the handler has reached a checkpoint: the job goes to another worker.

    The attempt does not count. It is not an `Exception`, so that a handler's ``except Exception`` does not catch it.
    """


class TimeLimitExceeded(BaseException):
    """The attempt took longer than the job's timeout.

    It is not an `Exception`, so that a handler's ``except Exception`` does not catch it.
    """
