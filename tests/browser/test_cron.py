"""A cron job is run now, and its page tells of its jobs."""

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from django_ojs_unique.models import CronJob, Job
from tests.browser.test_keyboard import tab_to


@pytest.mark.parametrize("width", [1280, 400])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_cron_job_is_run_now_without_a_mouse(visit, scheme, width):
    CronJob.objects.create(
        name="nightly", expression="0 3 * * *", type="catalogue.export", declared=True, next_run_at=timezone.now()
    )
    operator = visit(User.objects.create_superuser("grace"), color_scheme=scheme)
    operator.page.set_viewport_size({"width": width, "height": 900})
    operator.opens("cronjob_change", "nightly")
    tab_to(operator, "input[value='Run now']")
    operator.page.keyboard.press("Enter")
    operator.shows("Cron job nightly ran now: ")
    job = Job.objects.get()
    row = operator.page.get_by_role("region", name="Its last jobs").locator("tbody tr")
    assert row.get_by_role("rowheader").inner_text() == str(job.pk)
    assert row.get_by_text("grace").is_visible()
    assert not operator.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert operator.violations() == []
