"""Every error of the package, each with the stable code that the OJS error object carries.

The first line of a class's docstring is its default message.
"""

from __future__ import annotations

import difflib
import json
import reprlib
from collections.abc import Iterable
from typing import Any, ClassVar, Self


class Message(str):
    """An English text that remembers its template and the values in it, so that a page can say it in another language.

    It is pickled as plain text. Values that are messages are said in the other language, too.
    """

    template: str
    values: dict[str, Any]

    def __new__(cls, template: str, /, **values: Any) -> Self:
        self = super().__new__(cls, template.format(**values) if values else template)
        self.template, self.values = template, values
        return self

    @classmethod
    def joined(cls, between: str, parts: Iterable[Any]) -> Self:
        """Put parts together, of which some may be messages."""
        values = {f"part{number}": part for number, part in enumerate(parts)}
        return cls(between.join(f"{{{name}}}" for name in values), **values)

    def __str__(self) -> Self:
        return self  # so that it is still one after `str(error)`

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str.__str__(self),)


class OJSError(Exception):
    """The job system could not do what was asked.

    ``code`` is the stable machine-readable name, ``message`` says what is wrong and how to fix it, ``details`` is a
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
        # The default would call the class with ``args`` only, and lose the values of the keyword arguments.
        return _restore, (type(self), self.args, self.__dict__)


def _restore(cls: type[OJSError], args: tuple[Any, ...], state: dict[str, Any]) -> OJSError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class InvalidRequest(OJSError):
    """The request is invalid."""

    code = "invalid_request"
    got: str = ""

    @classmethod
    def at(cls, field: str, problem: str, *, value: Any = ..., hint: str = "") -> Self:
        """Build the error for one field: ``field`` is its path, ``hint`` says what to write instead."""
        if len(field) > LONGEST_FIELD:
            field = f"{field[:LONGEST_FIELD]}…"
        details: dict[str, Any] = {"field": field}
        parts = {"field": field, "problem": problem} | ({"hint": hint} if hint else {})
        if value is ...:
            return cls(Message(_PROBLEM_AND_HINT if hint else _PROBLEM, **parts), details=details)
        details["value"], got = as_json(value), shorten(value)
        error = cls(Message(_VALUE_AND_HINT if hint else _VALUE, **parts, value=got), details=details)
        error.got = got
        return error

    def rephrase(self, **parts: str) -> None:
        """Change parts of the message that `at` has built: its ``field``, ``problem``, ``value`` or ``hint``."""
        if isinstance(self.message, Message):
            self.message = Message(self.message.template, **self.message.values | parts)
            self.args = (self.message,)

    @property
    def wire_message(self) -> str:
        """The message with the value written as JSON, for clients that are not written in Python."""
        return self.message.replace(self.got, self.details["value"]) if self.got else self.message


_PROBLEM = Message("{field}: {problem}.")
_PROBLEM_AND_HINT = Message("{field}: {problem}. {hint}")
_VALUE = Message("{field}: {problem} (got {value}).")
_VALUE_AND_HINT = Message("{field}: {problem} (got {value}). {hint}")


class PayloadTooLarge(InvalidRequest):
    """The payload is too large."""

    code = "payload_too_large"


class InvalidArgs(InvalidRequest):
    """The stored args cannot be turned into what the handler takes.

    Never raised to an enqueue: the error record of the attempt has it, and the job is discarded.
    """

    code = "invalid_args"


class InvalidPolicy(InvalidRequest):
    """The unique policy is invalid."""


class InvalidRetryPolicy(InvalidRequest):
    """The retry policy is invalid."""

    code = "validation_error"


class InvalidWorkflow(InvalidRequest):
    """The workflow is invalid."""

    code = "invalid_workflow"


class UnknownJobType(InvalidRequest):
    """No handler is registered for this job type."""


class DuplicateJob(OJSError):
    """A job matching the uniqueness key already exists.

    Raised by ``on_conflict="reject"`` (OJS unique jobs, "reject"), when a running duplicate may not be replaced, and
    by a retry beside a live duplicate.
    ``existing_job_id``, ``existing_job_state`` and ``existing_job`` describe the newest duplicate, or that running one,
    as the deciding statement read it. ``message`` and ``details`` are what the specification prints; the text also
    names the job, what counted, and what to do.
    """

    code = "duplicate"

    def __init__(
        self,
        existing_job: Any,
        fingerprint: str,
        message: str = Message("A job matching the uniqueness key already exists"),
        *,
        policy: Any = None,
    ) -> None:
        self.existing_job = existing_job
        self._policy = policy
        self.existing_job_id = existing_job.id
        self.existing_job_state = existing_job.state
        self.fingerprint = fingerprint
        super().__init__(
            message,
            details={"existing_job_id": str(existing_job.id), "existing_job_state": str(existing_job.state)},
        )

    def __str__(self) -> str:
        if self._policy is None:
            return self.message
        if self._policy.replaces:
            mend = "It cannot be replaced, as it runs or workflows need it: enqueue again when it has finished."
        else:
            mend = "Use the error's `existing_job`, or on_conflict='ignore', which returns that job."
        named = f"{self.existing_job.type!r} {self.existing_job_id} is {self.existing_job_state}"
        return f"{self.message}: {named}; its unique key is {' + '.join(self._policy.compared())}. {mend}"


class JobIdTaken(OJSError):
    """A job with this id already exists."""

    code = "duplicate"


class JobCancelled(OJSError):
    """The job was cancelled.

    Never raised: the `TaskResult` of a cancelled job lists it among its errors.
    """

    code = "cancelled"


class InvalidTransition(OJSError):
    """The operation does not fit the job's state."""

    code = "conflict"


class TransactionLeftOpen(OJSError):
    """A handler ended inside a transaction, which the worker has rolled back.

    Never raised: the error record of the attempt names it as its type.
    """

    code = "handler_error"

    @classmethod
    def on(cls, databases: Iterable[str]) -> Self:
        """Build the error for these database aliases."""
        return cls(
            f"The handler left a transaction open on the database {', '.join(map(repr, databases))}, so all that it"
            " wrote there is undone. Write `with transaction.atomic():`, or end each BEGIN with a COMMIT or a ROLLBACK."
        )


class LeaseLost(OJSError):
    """The worker no longer has the lease of the job: it was cancelled, replaced or given to another worker.

    Raised in a handler by `JobContext.fence`, `complete`, `step` and `Cursor.set`, and at the end of an ``atomic``
    handler. The transaction that is open then is rolled back.
    """

    code = "conflict"


class StepsChanged(OJSError):
    """The steps of the handler, or their types, are not those of an earlier attempt."""

    code = "handler_error"


class UnstorableStep(InvalidRequest):
    """The result of a step, or the value of a cursor, cannot be stored.

    The job is discarded: another attempt would do the step again.
    """


class DeclaredInCode(OJSError):
    """This is declared in code, and can only be changed there."""

    code = "conflict"


class HandlerError(OJSError):
    """A handler is declared wrongly."""

    code = "invalid_request"


class NotMigrated(OJSError):
    """The database lacks a migration of this package: run `manage.py migrate`."""


class Contended(OJSError):
    """Too many concurrent enqueues or retries of one key; try again, in a new transaction."""

    retryable = True


def shorten(value: Any) -> str:
    """Show ``value`` in at most 80 characters; never raises, whatever its ``__repr__`` does."""
    try:
        text = _SHORT.repr(value)
    except Exception:  # an integer of more digits than Python prints
        text = f"<{type(value).__name__}>"
    return _cut(text)


def as_json(value: Any) -> str:
    """Show ``value`` as JSON, where JSON has such a value, in at most 80 characters; never raises."""
    try:
        text = _SHORT_JSON.repr(value)
    except Exception:
        text = f"<{type(value).__name__}>"
    return _cut(text)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_SHOWN else f"{text[: LONGEST_SHOWN - 1]}…"


class _JSONRepr(reprlib.Repr):
    def repr_str(self, text: str, level: int) -> str:
        text = text if len(text) <= self.maxstring else f"{text[: self.maxstring - 1]}…"
        return json.dumps(text, ensure_ascii=not text.isprintable())

    def repr_bool(self, value: bool, level: int) -> str:
        return "true" if value else "false"

    def repr_NoneType(self, value: None, level: int) -> str:  # noqa: N802 - found by the name of the type
        return "null"


def did_you_mean(word: object, known: Iterable[str]) -> Message:
    """Say which of ``known`` was probably meant, or list them all."""
    names = [str(name) for name in known]
    close = nearest(word, names)
    if close:
        return Message("Did you mean {name}?", name=repr(close))
    return Message("Valid: {names}.", names=", ".join(map(repr, names)))


def nearest(word: object, known: Iterable[str]) -> str:
    """Return which of ``known`` was probably meant; empty when none is similar."""
    lowered = {name.lower(): name for name in known}
    close = difflib.get_close_matches(shorten(word).strip("'").lower(), lowered, n=1)
    return lowered[close[0]] if close else ""


LONGEST_SHOWN = 80
LONGEST_FIELD = 160
_SHORT = reprlib.Repr()
_SHORT_JSON = _JSONRepr()
for _one in (_SHORT, _SHORT_JSON):
    _one.maxstring = _one.maxother = _one.maxlong = 60
