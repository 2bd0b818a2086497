"""Values as HTML. Whatever comes from a job is escaped, and its control characters are shown as escapes."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

from django.contrib.admin.utils import quote
from django.urls import reverse
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from ..insight.words import distance, full, harmless, shortened
from ..ojs.keys import KeyMode

UNSAFE = "It answers with the job whatever its condition, and so can lose what the enqueue was about."
"""What is to be known of ``unsafe_dedupe`` (Graphile Worker, "job_key_mode")."""

MOST_CHARACTERS = 10_000
"""How much of a value a page shows."""

LONGEST_BRIEF = 80
"""How much of a text a table's cell shows."""

SHORT = 12
"""How many characters of a fingerprint a table's cell shows."""

_JSON = json.JSONEncoder(ensure_ascii=False, indent=2)


def badge(state: str, text: str | None = None) -> SafeString:
    """Show a state by its name, or by ``text``, on its colour."""
    return format_html('<span class="ojs-badge ojs-{}">{}</span>', state, harmless(text or state))


def ago(moment: datetime | None) -> SafeString | str:
    """Show how long ago a moment was, or how far ahead it is; its full form appears on hovering."""
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
    return distance(moment, timezone.now())


def job_link(id: Any, text: str | None = None) -> SafeString:
    """Link to a job's page; the job may be gone by now."""
    url = reverse("admin:django_ojs_unique_job_change", args=[id])
    return format_html('<a href="{}"><code>{}</code></a>', url, text or id)


def job_and_state(id: Any, state: str) -> SafeString:
    """Link to a job's page, and show a state that it has or had."""
    return format_html("{} {}", job_link(id), badge(state))


def fingerprint_link(fingerprint: str, *, whole: bool = False) -> SafeString | str:
    """Show the beginning of a fingerprint, or the ``whole`` of it, and link to the page of its jobs."""
    if not fingerprint:
        return "(empty)"
    url = reverse("admin:django_ojs_unique_duplicates_of", args=[quote(fingerprint)])
    text = harmless(fingerprint)
    if whole:
        return format_html('<a href="{}"><code class="ojs-long">{}</code></a>', url, text)
    return format_html('<a href="{}" title="{}"><code>{}…</code></a>', url, text, harmless(fingerprint[:SHORT]))


def strategy(name: str) -> SafeString | str:
    """Name the strategy of a suppressed attempt, with a warning for the one that can lose work."""
    if name != KeyMode.UNSAFE_DEDUPE:
        return harmless(name)
    return format_html('{} <span class="ojs-warning" title="{}">can lose work</span>', name, UNSAFE)


def brief(text: str) -> str:
    """Cut a text to what a table's cell can show."""
    return harmless(shortened(text, LONGEST_BRIEF))


def pretty(value: Any) -> SafeString:
    """Show a JSON value over several lines, up to `MOST_CHARACTERS`; the rest is not even written."""
    text = ""
    for part in _JSON.iterencode(value):
        text += part
        if len(text) > MOST_CHARACTERS:
            break
    return plain_text(text)


def plain_text(text: str) -> SafeString:
    """Show lines of text as they are, up to `MOST_CHARACTERS`."""
    shown = harmless(text[:MOST_CHARACTERS], lines=True)
    note = f"\n… cut after {MOST_CHARACTERS:,} characters" if len(text) > MOST_CHARACTERS else ""
    more = format_html('<span class="ojs-quiet">{}</span>', note) if note else ""
    return format_html('<pre class="ojs-text" tabindex="0">{}{}</pre>', shown, more)


def difference_texts(difference: Any) -> dict[str, str]:
    """Return a difference for a template: harmless texts, and ``(none)`` for a member that one side lacks."""
    sides = {name: getattr(difference, name) for name in ("old", "new")}
    return {
        "path": harmless(difference.path),
        **{name: "(none)" if text is None else harmless(text) for name, text in sides.items()},
    }
