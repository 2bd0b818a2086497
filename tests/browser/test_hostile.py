"""What comes from a job is text, whatever it would like to be."""

from datetime import timedelta

import pytest
from django.utils import timezone

from django_ojs_unique.models import Job, Queue, SuppressedEnqueue
from tests.support.rows import insert_all

SCRIPT = "<script>alert(1)</script>"
IMAGE = "<img src=x onerror=alert(1)>"
QUOTE = "\"'><svg onload=alert(1)>"
ANSI = "\x1b[31mred\x1b[0m"


@pytest.fixture
def hostile(transactional_db):
    """Two live jobs of one key, with hostile texts wherever there is text, and an attempt that met one."""
    now = timezone.now()
    error = {"type": SCRIPT, "code": IMAGE, "message": ANSI + IMAGE, "attempt": 1, "occurred_at": QUOTE}
    values = {
        "type": SCRIPT,
        "queue": IMAGE,
        "args": {SCRIPT: [IMAGE, QUOTE]},
        "meta": {QUOTE: ANSI},
        "tags": [IMAGE],
        "fingerprint": "ab" * 32,
        "unique": {"keys": ["type"], "on_conflict": SCRIPT},
        "progress_note": IMAGE,
        "worker_id": QUOTE,
        "errors": [{**error, "details": {"traceback": SCRIPT + ANSI}}, SCRIPT, 7],
        "enqueued_at": now,
    }
    active, waiting = Job(**values, state="active", progress=0.5, started_at=now, attempt=1), Job(**values)
    active.lease_expires_at, waiting.created_at = now + timedelta(hours=1), now + timedelta(seconds=1)
    insert_all([active, waiting])
    SuppressedEnqueue.objects.create(
        outcome="rejected",
        on_conflict="reject",
        fingerprint=active.fingerprint,
        type=SCRIPT,
        queue=IMAGE,
        args=values["args"],
        meta=values["meta"],
        existing_job=active,
        existing_state="active",
    )
    Queue.objects.create(name=IMAGE, paused_at=now)
    return active


def test_hostile_text_is_shown_as_text_on_every_page(operator, hostile):
    for name, args, query, texts in [
        ("job_changelist", [], {}, [SCRIPT, IMAGE]),
        ("job_changelist", [], {"q": QUOTE, "o": SCRIPT}, []),
        ("job_change", [hostile.pk], {}, [SCRIPT, IMAGE, r"\x1b[31mred\x1b[0m"]),
        ("duplicates", [], {"q": SCRIPT}, [SCRIPT]),
        ("duplicates_of", [hostile.fingerprint], {}, [SCRIPT, IMAGE]),
        ("explain", [], {"type": SCRIPT, "queue": IMAGE, "args": QUOTE}, []),
        ("dashboard", [], {}, []),
        ("queue_changelist", [], {}, [IMAGE]),
        ("suppressedenqueue_changelist", [], {}, [SCRIPT]),
    ]:
        assert operator.opens(name, *args, **query).status == 200, name
        for text in texts:
            assert operator.shows(text)
        assert not operator.page.locator("[onerror], [onload], svg[onload]").count(), name
        assert "\x1b" not in operator.page.content(), name
