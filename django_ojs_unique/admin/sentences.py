"""Messages of the packages above in the language of the visitor.

Those packages speak English, as logs, the command line and the HTTP API do. A `Message` is translated by its template.
"""

from __future__ import annotations

import re
from typing import Any

from django.utils.translation import get_language, gettext
from django.utils.translation import gettext_noop as noop

from ..exceptions import Message

_WORDS = frozenset({
    # States, outcomes, kinds and operations
    noop("available"), noop("active"), noop("scheduled"), noop("retryable"), noop("pending"), noop("completed"),
    noop("cancelled"), noop("discarded"), noop("running"), noop("quiet"), noop("stopping"), noop("silent"),
    noop("created"), noop("replaced"), noop("rejected"), noop("deduplicated"), noop("skipped"), noop("already"),
    noop("failed"), noop("none recorded"), noop("Available"), noop("Completed"), noop("Discarded"), noop("chain"),
    noop("group"), noop("batch"), noop("waiting"), noop("cancel"), noop("activate"), noop("retry"),
    noop("enqueue again"), noop("release"), noop("delete"), noop("Cancel"), noop("Retry"), noop("Enqueue again"),
    noop("Release"), noop("Delete"), noop("Cancelled"), noop("Activated"), noop("Retried"), noop("Enqueued again"),
    noop("Taken out of uniqueness"), noop("Deleted"), noop("cancel job {id}"), noop("activate job {id}"),
    noop("retry job {id}"), noop("enqueue job {id} again"), noop("release job {id}"), noop("delete job {id}"),
    # What Python says of arguments
    noop("args do not fit {handler}: missing a required argument: {name}"),
    noop("args do not fit {handler}: missing a required argument: {name} ({meant})"),
    noop("args do not fit {handler}: missing a required keyword-only argument: {name}"),
    noop("args do not fit {handler}: missing a required keyword-only argument: {name} ({meant})"),
    noop("args do not fit {handler}: got an unexpected keyword argument {name}"),
    noop("args do not fit {handler}: got an unexpected keyword argument {name} ({meant})"),
    noop("args do not fit {handler}: too many positional arguments"),
    # Errors of jobs, as workflows store them
    noop("The job was cancelled."), noop("The job expired before it started."),
})  # fmt: skip
"""The texts that are translated although no `Message` has them: names of values, and what was stored."""

_STORED = (
    noop("Job {id} was deleted."),
    noop("Workflow {id} is {state}."),
    noop("Cancelled as a duplicate of {id}."),
    noop("{done}; a live duplicate was cancelled."),
    noop("{done}."),
)
"""What workflows and the log of the admin store, which are found by their patterns."""

_SPOKEN = frozenset({"state", "done", "problem", "hint"})
"""The values of a message that are texts themselves, even if they are no messages; the others are names."""


def translate(text: object) -> str:
    """Return an English message in the language of the visitor; any other text stays as it is."""
    text = str(text)
    language = get_language()
    if not text or not language or language.partition("-")[0] == "en":
        return text
    return _translate(text)


def translate_stored(text: str) -> str:
    """Return what a workflow or the log of the admin has stored in the language of the visitor."""
    for template in _STORED if text not in _WORDS else ():
        pattern = re.escape(template).replace(r"\{", "(?P<").replace(r"\}", ">.+)")
        if found := re.fullmatch(pattern, text):
            return translate(Message(template, **found.groupdict()))
    return translate(text)


def _translate(text: str) -> str:
    if not isinstance(text, Message):
        return gettext(text) if text in _WORDS else text
    translated, values = gettext(text.template), {name: _value(name, each) for name, each in text.values.items()}
    return translated.format(**values) if values else translated


def _value(name: str, value: Any) -> Any:
    if isinstance(value, Message):
        return _translate(value)
    return gettext(value) if value and name in _SPOKEN else value
