"""The text behind a job's fingerprint, computed again from its row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..exceptions import Message, OJSError
from ..handlers.redaction import redacted_canonical
from ..unique.fingerprint import SCHEME, fingerprint, stored_texts
from .uniqueness import read_policy


@dataclass(frozen=True, slots=True)
class Recomputed:
    """The canonical text of a row and its fingerprint, both empty if there is none; ``note`` says what is wrong.

    Redacted members are masked in the text.
    """

    text: str = ""
    fingerprint: str = ""
    note: str = ""


def recompute(job: Any) -> Recomputed:
    """Compute the canonical text of a row as an enqueue would; no query is made."""
    policy, problem = read_policy(job)
    if job.key is None and policy is None:
        return Recomputed(note=problem and Message("There is no text, as the policy cannot be read."))
    if job.key is None and job.payload_pruned:
        return Recomputed(
            note=Message(
                "The text cannot be computed again: the args were pruned, and the row is kept only as it still counts"
                " as a duplicate."
            )
        )
    try:
        texts = list(stored_texts(job, policy))
    except OJSError as error:
        return Recomputed(note=Message("The text cannot be computed again: {reason}", reason=error.message))
    text = next((text for text in texts if fingerprint(text) == job.fingerprint), texts[0])
    return Recomputed(redacted_canonical(job.type, text), fingerprint(text), _note(job, text))


def _note(job: Any, text: str) -> str:
    if job.fingerprint is None or fingerprint(text) == job.fingerprint:
        return ""
    if job.fingerprint_scheme != SCHEME:
        return Message(
            "The stored fingerprint is of scheme {number}, and this version computes scheme {other}."
            " `manage.py jobs rekey` computes it anew.",
            number=job.fingerprint_scheme,
            other=SCHEME,
        )
    return Message(
        "The stored fingerprint is not the one of this text: the row was changed since it was enqueued."
        " `manage.py jobs verify --fix` computes it anew."
    )
