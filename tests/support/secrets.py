"""A secret in the args, the meta and the result of jobs, and the check that a page does not tell it."""

from __future__ import annotations

from django_ojs_unique.handlers.redaction import MASK

SECRET = "QZXWVKJYHBGP"
ARGS = {"iban": SECRET, "to": [{"IBAN": [SECRET]}], "amount": 5}
META = {"iban": SECRET, "trace": "t1"}


def assert_hidden(text: str) -> None:
    """Assert that a text has a mask, and no four letters of the secret in a row."""
    found = {SECRET[at : at + 4] for at in range(len(SECRET) - 3)}
    assert not [part for part in found if part in text]
    assert MASK in text
