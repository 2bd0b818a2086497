"""The list of jobs shows all of each row on a small screen, with both side bars open."""

import pytest
from django.contrib.auth.models import User

from django_ojs_unique.models import Job
from tests.browser import gallery

CUT = "box => box.scrollWidth > box.clientWidth"
CLIPPED = "document.documentElement.scrollWidth > innerWidth"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_is_cut_at_1280_pixels(visit, scheme):
    operator, shown = visit(User.objects.create_superuser("grace"), color_scheme=scheme), gallery.fill()
    Job.objects.filter(pk=shown.dead.pk).update(args={"text": "w" * 200}, type="t" * 200, queue="q" * 100)
    operator.page.set_viewport_size({"width": 1280, "height": 800})
    operator.opens("job_changelist")
    assert operator.page.locator("#nav-sidebar").is_visible()
    assert not operator.page.locator("#changelist-form .results").evaluate(CUT)
    assert operator.violations() == []


def test_on_a_phone_the_page_stays_within_the_screen_and_a_failed_job_says_why_first(visit):
    operator, shown = visit(User.objects.create_superuser("grace")), gallery.fill()
    operator.page.set_viewport_size({"width": 400, "height": 800})
    operator.opens("job_changelist")
    assert not operator.page.evaluate(CLIPPED)
    operator.opens("job_change", shown.dead.pk)
    assert not operator.page.evaluate(CLIPPED)
    assert operator.page.locator("#content-main h2").first.inner_text() == "Failed: ConnectionError"
    operator.page.get_by_role("link", name="All errors, with tracebacks").press("Enter")
    assert operator.page.url.endswith("#ojs-errors")
