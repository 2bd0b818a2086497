"""Values as HTML: escaped, and with their control characters shown as escapes."""

from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest
from django.utils import timezone

from django_ojs_unique.admin import display
from django_ojs_unique.reporting.suppressed import Difference

EVIL = "<b>\x1b[31m\u202e"
SHOWN = "&lt;b&gt;\\x1b[31m\\u202e"


@pytest.mark.parametrize(
    "html",
    [
        display.badge("active", EVIL),
        display.plain_text(EVIL),
        display.fingerprint_link(EVIL, whole=True),
        display.fingerprint_link(EVIL),
    ],
)
def test_nothing_is_rendered(html):
    assert SHOWN in html
    assert "<b>" not in html


def test_json_keeps_its_letters_and_escapes_its_control_characters():
    shown = display.pretty({"größe": EVIL})
    assert "größe" in shown
    assert "&lt;b&gt;\\u001b[31m\\u202e" in shown


def test_lines_stay_lines():
    assert "a\n  b" in display.plain_text("a\n  b")


@pytest.mark.parametrize("show", [display.plain_text, display.pretty])
def test_a_long_value_is_cut(show):
    html = show("x" * 20_000)
    assert "… cut after 10,000 characters" in html
    assert len(html) < 10_200


def test_a_value_that_fits_is_shown_whole():
    assert "cut after" not in display.plain_text("x" * display.MOST_CHARACTERS)


def test_a_moment_is_told_in_full_and_by_its_distance():
    moment = timezone.now() - timedelta(minutes=5)
    assert ">5m ago</time>" in display.ago(moment)
    assert f'datetime="{moment.isoformat()}"' in display.when(moment)
    assert "(5m ago)" in display.when(moment)
    assert "in 1h" in display.ago(timezone.now() + timedelta(hours=1, minutes=1))
    assert (display.ago(None), display.when(None)) == ("-", "-")


def test_the_ends_of_the_calendar_can_be_shown():
    assert "9999-12-31" in display.when(datetime.max.replace(tzinfo=UTC))


def test_a_job_is_linked_by_its_id():
    id = UUID(int=7)
    assert f"/job/{id}/change/" in display.job_link(id)
    assert "&lt;it&gt;" in display.job_link(id, "<it>")


def test_a_fingerprint_is_shown_whole_and_linked():
    html = display.fingerprint_link("ab" * 32, whole=True)
    assert html.count("ab" * 32) == 2
    assert display.fingerprint_link("") == "(empty)"


def test_what_one_side_lacks_is_said():
    texts = display.difference_texts(Difference("args.\x1b", None, '"a"'))
    assert texts == {"path": "args.\\x1b", "old": "(none)", "new": '"a"'}


def test_the_strategy_that_can_lose_work_carries_a_warning():
    assert "can lose work" in display.strategy("unsafe_dedupe")
    assert display.strategy("ignore") == "ignore"
