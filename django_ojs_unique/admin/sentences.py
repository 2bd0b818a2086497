"""The sentences of the floors below, in the language of the visitor.

Those floors speak English, as logs, the command line and the HTTP API do. A sentence is found by its pattern in
`wordings` or `problems`, and so are the parts that its placeholders stand for; a text without a pattern stays as it is.
"""

from __future__ import annotations

import re
from datetime import datetime, timedelta
from functools import cache

from django.utils.translation import get_language, gettext, ngettext
from django.utils.translation import gettext_lazy as _

from ..reporting.text import age

LONGEST = 4000
"""The most characters of a text that is looked up: each pattern is tried on it."""

_SPOKEN = frozenset(
    {
        "rest",
        "state",
        "ending",
        "sentence",
        "held",
        "waits",
        "reason",
        "meant",
        "verb",
        "since",
        "done",
        "problem",
        "hint",
    }
) | {"numbers"}
"""The placeholders that stand for texts with a pattern of their own; the others stand for names and numbers."""

_LENGTHS = frozenset({"first", "most", "length"})
_LENGTH = re.compile(r"([\d.e+]+) (d|h|min|s)")
_UNITS = {"d": _("{number} d"), "h": _("{number} h"), "min": _("{number} min"), "s": _("{number} s")}
_AGES = {"d": _("{number}d"), "h": _("{number}h"), "m": _("{number}m"), "s": _("{number}s")}
_PLACEHOLDER = re.compile(r"\{(\w+)\}")


def translate(text: object, *only: str) -> str:
    """Return an English sentence in the language of the visitor; with ``only``, if it is one of these."""
    text = str(text)
    language = get_language()
    if not text or not language or language.partition("-")[0] == "en" or (only and text not in only):
        return text
    return _translate(text)


def age_text(moment: datetime | None, now: datetime) -> str:
    """Say how long ago a moment was, as `reporting.text.age` does."""
    if moment is None:
        return "-"
    text, is_ahead = _age(moment, now)
    return gettext("in {age}").format(age=text) if is_ahead else text


def distance_text(moment: datetime, now: datetime) -> str:
    """Say how far away a moment is, as `reporting.text.distance` does."""
    text, is_ahead = _age(moment, now)
    return (gettext("in {age}") if is_ahead else gettext("{age} ago")).format(age=text)


def minutes_text(length: timedelta) -> str:
    """Write a length of time in minutes."""
    minutes = round(length.total_seconds() / 60)
    return ngettext("{count} minute", "{count} minutes", minutes).format(count=minutes)


def _age(moment: datetime, now: datetime) -> tuple[str, bool]:
    text = age(moment, now)
    number, unit = text.removeprefix("in ")[:-1], text[-1]
    return str(_AGES[unit]).format(number=number), text.startswith("in ")


@cache
def _patterns() -> tuple[frozenset[str], list[tuple[re.Pattern[str], str]]]:
    """Return the texts without placeholders, and the others as patterns: those with most words of their own first."""
    from .problems import PROBLEMS
    from .wordings import WORDINGS

    texts = (*WORDINGS, *PROBLEMS)
    exact = frozenset(text for text in texts if "{" not in text)
    others = sorted(
        (text for text in texts if "{" in text), key=lambda text: len(_PLACEHOLDER.sub("", text)), reverse=True
    )
    return exact, [(re.compile(_PLACEHOLDER.sub(_group, _escaped(text)), re.DOTALL), text) for text in others]


def _escaped(text: str) -> str:
    return re.escape(text).replace(r"\{", "{").replace(r"\}", "}")


def _group(found: re.Match[str]) -> str:
    return f"(?P<{found[1]}>.+?)"


def _translate(text: str) -> str:
    exact, patterns = _patterns()
    if text in exact:
        return gettext(text)
    if len(text) > LONGEST:
        return text
    for pattern, wording in patterns:
        if found := pattern.fullmatch(text):
            return gettext(wording).format(**{name: _part(name, part) for name, part in found.groupdict().items()})
    return text


def _part(name: str, text: str) -> str:
    if name in _SPOKEN:
        return _translate(text)
    if name in _LENGTHS and (length := _LENGTH.fullmatch(text)):
        return str(_UNITS[length[2]]).format(number=length[1])
    if name == "states":
        *others, last = [_translate(word) for word in re.split(", | or ", text)]
        return gettext("{states} or {last}").format(states=", ".join(others), last=last) if others else last
    return text
