"""Every error of the package, each with the stable code that the OJS error object carries.

The first line of a class's docstring is its default message.
"""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Iterable
from typing import Any, ClassVar, Self


class OJSError(Exception):
    """The job system could not do what was asked.

    ``code`` is the stable machine-readable name, ``message`` says what is wrong and how to mend it, ``details`` is a
    JSON-ready dict, ``retryable`` tells whether the same call may succeed later (OJS errors chapter).
    """

    code: str = "backend_error"
    retryable: ClassVar[bool] = False

    def __init__(
        self, message: str | None = None, *, code: str | None = None, details: dict[str, Any] | None = None
    ) -> None:
        self.message = message or (type(self).__doc__ or "").partition("\n")[0]
        self.code = code or type(self).code
        self.details: dict[str, Any] = details or {}
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        # The default would call the class with ``args`` and lose what keyword arguments carried.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[OJSError], args: tuple[Any, ...], state: dict[str, Any]) -> OJSError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidRequest(OJSError):
    """The request is invalid."""

    code = "invalid_request"

    @classmethod
    def at(cls, field: str, problem: str, *, value: Any = ..., mend: str = "") -> Self:
        """Build the error for one field: ``field`` is its path, ``mend`` says what to write instead."""
        if len(field) > LONGEST_FIELD:
            field = f"{field[:LONGEST_FIELD]}…"
        details: dict[str, Any] = {"field": field}
        shown = ""
        if value is not ...:
            details["value"] = shorten(value)
            shown = f" (got {details['value']})"
        return cls(f"{field}: {problem}{shown}.{' ' + mend if mend else ''}", details=details)


class PayloadTooLarge(InvalidRequest):
    """The payload is too large."""

    code = "payload_too_large"


class InvalidPolicy(InvalidRequest):
    """The unique policy is invalid."""


class InvalidRetryPolicy(InvalidRequest):
    """The retry policy is invalid."""

    code = "validation_error"


class UnknownJobType(InvalidRequest):
    """No handler is registered for this job type."""


class DuplicateJob(OJSError):
    """A job matching the uniqueness key already exists.

    Raised by ``on_conflict="reject"`` (OJS unique jobs, "reject"). ``existing_job_id``, ``existing_job_state`` and
    ``existing_job`` describe the newest duplicate as the deciding statement read it; ``details`` is what the
    specification prints.
    """

    code = "duplicate"

    def __init__(self, existing_job: Any, fingerprint: str) -> None:
        self.existing_job = existing_job
        self.existing_job_id = existing_job.id
        self.existing_job_state = existing_job.state
        self.fingerprint = fingerprint
        super().__init__(
            "A job matching the uniqueness key already exists",
            details={"existing_job_id": str(existing_job.id), "existing_job_state": str(existing_job.state)},
        )


class JobIdTaken(OJSError):
    """A job with this id already exists."""

    code = "duplicate"


class JobCancelled(OJSError):
    """The job was cancelled.

    Not raised: it is what the `TaskResult` of a cancelled job has among its errors.
    """

    code = "cancelled"


class InvalidTransition(OJSError):
    """The operation does not fit the job's state."""

    code = "conflict"


class DeclaredInCode(OJSError):
    """This is declared in code, and can only be changed there."""

    code = "conflict"


class HandlerError(OJSError):
    """A handler is declared wrongly."""

    code = "invalid_request"


class NotMigrated(OJSError):
    """The job table does not exist: run `manage.py migrate`."""


class Contended(OJSError):
    """Too many concurrent enqueues of one key; try again."""

    retryable = True


def shorten(value: Any) -> str:
    """Show ``value`` in at most 80 characters; never raises, whatever its ``__repr__`` does."""
    try:
        text = _SHORT.repr(value)
    except Exception:  # an integer of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Say which of ``known`` was probably meant, or list them all."""
    names = [str(name) for name in known]
    lowered = {name.lower(): name for name in names}
    close = difflib.get_close_matches(shorten(word).strip("'").lower(), lowered, n=1)
    if close:
        return f"Did you mean {lowered[close[0]]!r}?"
    return f"Valid: {', '.join(repr(name) for name in names)}."


LONGEST_SHOWN = 80
LONGEST_FIELD = 160
_SHORT = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = _SHORT.maxlong = 60
