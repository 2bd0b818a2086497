"""All pages under a theme: reached from the admin's index by clicking, and with controls that can be seen."""

import os
import re
from pathlib import Path

import pytest
from django.conf import settings
from django.contrib.auth.models import User

from django_ojs_unique.models import CronJob, Job
from tests.browser import gallery

PAGES = {
    "Dashboard": "job/dashboard/",
    "Jobs": "job/",
    "Workflows": "workflow/",
    "Duplicates": "job/duplicates/",
    "Explain": "job/explain/",
    "Suppressed enqueues": "suppressedenqueue/",
    "Queues": "queue/",
    "Workers": "workerprocess/",
    "Cron jobs": "cronjob/",
}
WHERE = "/admin/django_ojs_unique/"
SEEN = """each => {
  const flat = document.createElement("canvas").getContext("2d", {willReadFrequently: true})
  const paint = colour => { flat.fillStyle = colour; flat.fillRect(0, 0, 1, 1) }
  const read = () => [...flat.getImageData(0, 0, 1, 1).data].slice(0, 3)
  const lit = ([r, g, b]) => [r, g, b].map(c => (c /= 255) <= .04045 ? c / 12.92 : ((c + .055) / 1.055) ** 2.4)
    .reduce((sum, c, at) => sum + c * [.2126, .7152, .0722][at], 0)
  const ratio = (a, b) => (Math.max(a, b) + .05) / (Math.min(a, b) + .05)
  const layers = []
  for (let at = each.parentElement; at; at = at.parentElement) layers.unshift(getComputedStyle(at).backgroundColor)
  paint("canvas"); layers.forEach(paint)
  const around = lit(read()), style = getComputedStyle(each)
  paint(style.backgroundColor); const inside = lit(read())
  paint(style.color); const text = lit(read())
  paint("canvas"); layers.forEach(paint); paint(style.backgroundColor)
  const hasEdge = parseFloat(style.borderBlockEndWidth) >= 1 && style.borderBlockEndStyle != "none"
  if (hasEdge) paint(style.borderBlockEndColor)
  const box = each.getBoundingClientRect()
  return {width: box.width, height: box.height, edge: ratio(lit(read()), around), text: ratio(text, inside)}
}"""
"""Measures a control: its size in pixels, and the contrast of its edge with what is around it, and of its text."""


def follow(page, name):
    """Follow a link of the navigation; it is gone, hidden or covered if this fails."""
    page.get_by_role("navigation", name="Unique jobs").get_by_role("link", name=name, exact=True).click()


def picture(page, name):
    if folder := os.environ.get("OJS_SCREENSHOTS"):
        page.screenshot(path=Path(folder, f"{settings.THEME}-{name}.png".replace(" ", "-")), full_page=True)


def looked_at(page, controls):
    """Return what is wrong with controls that must be seen."""
    assert controls.count()
    for each in controls.all():
        seen = each.evaluate(SEEN)
        assert seen["width"] >= 12, seen
        assert seen["height"] >= 12, seen
        assert seen["edge"] >= 1.2, (each.evaluate("each => each.outerHTML"), seen)
        assert seen["text"] >= 4.5, (each.evaluate("each => each.outerHTML"), seen)


@pytest.fixture(params=["light", "dark"])
def somebody(visit, request):
    return visit(User.objects.create_superuser("grace"), color_scheme=request.param), request.param


@pytest.mark.parametrize("width", [1280, 400])
def test_each_page_is_reached_by_clicking_from_the_index(somebody, width):
    (visitor, scheme), shown = somebody, gallery.fill()
    page = visitor.page
    page.set_viewport_size({"width": width, "height": 900})
    page.goto(f"{visitor.base}/admin/")
    # Some themes leave a menu outside of a narrow window.
    page.locator(f"a[href='{WHERE}job/']:visible:not(aside *, nav *)").first.click()
    for name, path in PAGES.items():
        follow(page, name)
        page.wait_for_url(re.compile(f"{WHERE}{path}$"))
        picture(page, f"{name}-{scheme}-{width}")
    page.goto(f"{visitor.base}{WHERE}")
    follow(page, "Duplicates")
    page.get_by_role("button", name="Keep the newest…", exact=True).click()
    visitor.shows("Nothing has been done yet.")
    picture(page, f"resolve-{scheme}-{width}")
    looked_at(page, page.get_by_role("button", name="Yes, cancel 1 job"))
    visitor.opens("job_change", shown.dead.pk)
    picture(page, f"job-{scheme}-{width}")
    looked_at(page, page.locator("form.ojs-buttons button"))
    visitor.opens("workflow_change", gallery.flow().pk)
    picture(page, f"workflow-{scheme}-{width}")
    looked_at(page, page.locator("form.ojs-buttons button"))
    follow(page, "Jobs")


def test_the_form_that_explains_is_seen_and_answers(somebody):
    visitor, scheme = somebody
    page = visitor.page
    holder = gallery.dead() and Job.objects.get(state="available")
    visitor.opens("explain")
    classes = page.locator("#id_type").get_attribute("class")
    visitor.opens("cronjob_add")
    assert page.locator("#id_type").get_attribute("class") == classes  # as the theme's own forms have it
    visitor.opens("explain")
    form = page.locator(".ojs form[method=post]")
    looked_at(page, form.locator("input:visible:not([type=checkbox]), textarea, select"))
    page.get_by_label("Type:").fill("payment.capture")
    page.get_by_label("Args:").fill('{"order": 4711}')
    page.get_by_role("button", name="Explain").click()
    visitor.shows("The enqueue would be refused")
    assert page.get_by_role("link", name=str(holder.pk)).first.is_visible()
    picture(page, f"explained-{scheme}")


def test_an_action_runs_after_the_page_that_asks(operator):
    page, dead = operator.page, gallery.dead()
    if settings.THEME == "unfold without the recipe":  # its lists have no button that would run an action
        operator.opens("job_change", dead.pk)
        page.get_by_role("button", name="Retry").click()
    else:
        operator.acts("retry", dead)
    looked_at(page, page.get_by_role("button", name="Retry"))
    page.get_by_label("Replace:").check()
    page.get_by_role("button", name="Retry").click()
    operator.shows("Retried: 1. Not retried: 0.")
    assert Job.objects.get(pk=dead.pk).state == "available"


def test_the_limits_of_a_queue_and_a_cron_job_are_changed_by_their_forms(operator):
    page = operator.page
    gallery.fill()
    operator.opens("queue_change", "reports")
    limits = page.locator("#queue_form input[type=number]")
    looked_at(page, limits)
    picture(page, "queue")
    limits.first.fill("5")
    page.locator("[name=_save]").click()
    page.wait_for_url(re.compile(f"{WHERE}queue/$"))
    CronJob.objects.create(name="nightly", expression="0 3 * * *", type="catalogue.export")
    operator.opens("cronjob_change", "nightly")
    picture(page, "cronjob")
    looked_at(page, page.get_by_role("button", name="Run now"))
    page.get_by_role("button", name="Run now").click()
    operator.shows("Cron job nightly ")
