"""The pages from right to left: nothing is wider than from left to right."""

import pytest
from django.contrib.auth.models import User
from django.test import override_settings

from tests.browser import gallery

PAGES = {
    "dashboard": lambda operator, shown: operator.opens("dashboard", span="day"),
    "jobs": lambda operator, shown: operator.opens("job_changelist"),
    "job": lambda operator, shown: operator.opens("job_change", shown.holder.pk),
}
TITLES = {"dashboard": "לוח מחוונים", "jobs": "משימות", "job": "משימה"}
TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.mark.parametrize("width", [1280, 400])
def test_a_page_from_right_to_left_is_as_wide_as_from_left_to_right(visit, width):
    operator, shown = visit(User.objects.create_superuser("grace")), gallery.fill()
    operator.page.set_viewport_size({"width": width, "height": 900})
    for name, opens in PAGES.items():
        opens(operator, shown)
        left_to_right = operator.page.evaluate(TOO_WIDE)
        with override_settings(LANGUAGE_CODE="he"):
            opens(operator, shown)
        assert operator.page.locator("html").get_attribute("dir") == "rtl", name
        assert TITLES[name] in operator.page.locator("body").inner_text(), name
        assert operator.page.evaluate(TOO_WIDE) <= left_to_right, name
