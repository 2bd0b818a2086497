"""Values as HTML. All text that comes from a job is escaped, and its control characters are shown as escapes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib.admin.utils import quote
from django.db import router
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from ..db.clock import database_now
from ..models import Job
from ..reporting.text import distance, full, harmless, shortened
from ..unique.keys import KeyMode
from .sentences import translate

UNSAFE = _("It answers with the job whatever its condition, and so can lose what the enqueue was about.")
"""The warning about ``unsafe_dedupe`` (Graphile Worker, "job_key_mode")."""

LAST = {"hour": _("Last hour"), "day": _("Last day"), "week": _("Last week")}
IN_LAST = {"hour": _("in the last hour"), "day": _("in the last day"), "week": _("in the last week")}
"""The spans of time, as links name them and as sentences do."""

MOST_CHARACTERS = 10_000
"""How many characters of a value a page shows."""

LONGEST_BRIEF = 80
"""How many characters of a text a table's cell shows."""

SHORT = 12
"""How many characters of a fingerprint a table's cell shows."""

_JSON = json.JSONEncoder(ensure_ascii=False, indent=2)


def badge(state: str, text: str | None = None) -> SafeString:
    """Show the name of a state, or ``text``, on the state's colour."""
    return format_html('<span class="ojs-badge ojs-{}">{}</span>', state, harmless(text or translate(state)))


def ago(moment: datetime | None) -> SafeString | str:
    """Show how long ago a moment was, or how far ahead it is, with the full time as the tooltip."""
    if moment is None:
        return "-"
    return format_html('<time datetime="{}" title="{}">{}</time>', moment.isoformat(), full(moment), ago_text(moment))


def when(moment: datetime | None) -> SafeString | str:
    """Show a moment in full, and how long ago it was or how far ahead it is."""
    if moment is None:
        return "-"
    return format_html(
        '<time datetime="{}">{}</time> <span class="ojs-quiet">({})</span>',
        moment.isoformat(),
        full(moment),
        ago_text(moment),
    )


def ago_text(moment: datetime) -> str:
    """Say how long ago a moment was, or how far ahead it is."""
    return translate(distance(moment, database_now(router.db_for_read(Job))))


def job_link(id: Any, text: str | None = None) -> SafeString:
    """Link to a job's page; the job may be gone. Pages call `Visibility.link`, which hides what is hidden."""
    url = reverse("admin:django_ojs_unique_job_change", args=[id])
    return format_html('<a href="{}"><code>{}</code></a>', url, text or id)


def fingerprint_link(fingerprint: str, *, whole: bool = False) -> SafeString | str:
    """Show the beginning of a fingerprint, or the ``whole``, and link to the page of its jobs."""
    if not fingerprint:
        return gettext("(empty)")
    url = reverse("admin:django_ojs_unique_duplicates_of", args=[quote(fingerprint)])
    text = harmless(fingerprint)
    if whole:
        return format_html('<a href="{}"><code class="ojs-long">{}</code></a>', url, text)
    return format_html('<a href="{}" title="{}"><code>{}…</code></a>', url, text, harmless(fingerprint[:SHORT]))


def strategy(name: str) -> SafeString | str:
    """Name the strategy of a suppressed enqueue, with a warning for the one that can lose work."""
    if name != KeyMode.UNSAFE_DEDUPE:
        return harmless(name)
    warning = gettext("can lose work")
    return format_html('{} <span class="ojs-warning" title="{}">{}</span>', name, UNSAFE, warning)


def brief(text: str) -> str:
    """Cut a text to `LONGEST_BRIEF` characters."""
    return harmless(shortened(text, LONGEST_BRIEF))


def pretty(value: Any) -> SafeString:
    """Show a JSON value over several lines, up to `MOST_CHARACTERS`; the rest is not even encoded."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > MOST_CHARACTERS:
            break
    return plain_text(text)


def plain_text(text: str) -> SafeString:
    """Show text with its line ends, up to `MOST_CHARACTERS`."""
    shown = harmless(text[:MOST_CHARACTERS], lines=True)
    cut = gettext("cut after {count} characters").format(count=f"{MOST_CHARACTERS:,}")
    note = f"\n… {cut}" if len(text) > MOST_CHARACTERS else ""
    more = format_html('<span class="ojs-quiet">{}</span>', note) if note else ""
    return format_html('<pre class="ojs-text" tabindex="0">{}{}</pre>', shown, more)


def difference_texts(difference: Any) -> dict[str, str]:
    """Return a difference for a template: escaped texts, and ``(none)`` for a member that is missing on one side."""
    sides = {name: getattr(difference, name) for name in ("old", "new")}
    return {
        "path": harmless(difference.path),
        **{name: gettext("(none)") if text is None else harmless(text) for name, text in sides.items()},
    }


def seconds(number: float | None) -> str:
    """Write a number of seconds in the unit that suits it."""
    if number is None:
        return "-"
    for unit, length in ((_("{number} h"), 3600), (_("{number} min"), 60), (_("{number} s"), 1)):
        if number >= length:
            return str(unit).format(number=f"{number / length:.1f}")
    return gettext("{number} ms").format(number=f"{number * 1000:.0f}")
