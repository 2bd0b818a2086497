"""The dashboard renews itself under the operator's hands, and a queue is paused and resumed there."""

from datetime import timedelta

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from django_ojs_unique.models import Job, Queue
from tests.browser import gallery
from tests.browser.test_keyboard import tab_to


@pytest.fixture
def dashboard(operator):
    """A dashboard whose time passes only when a test says so."""
    _enqueue(3)
    operator.page.clock.install(time=0)
    operator.page.clock.pause_at(1000)
    operator.opens("dashboard")
    return operator


def _enqueue(number):
    Job.objects.enqueue_many({"type": "email.send", "queue": "emails"} for _ in range(number))


def _pass_time(visitor):
    seconds = int(visitor.page.locator(".ojs-dashboard").get_attribute("data-seconds"))
    visitor.page.clock.run_for((seconds + 1) * 1000)


def _waiting(visitor, number):
    """Wait until the page says how many jobs wait in the queue."""
    visitor.page.locator("#ojs-queues tr", has_text="emails").get_by_role(
        "link", name=str(number), exact=True
    ).wait_for()


def test_a_queue_is_paused_and_resumed(dashboard):
    page = dashboard.page
    page.get_by_role("button", name="Pause emails").click()
    page.get_by_role("button", name="Resume emails").wait_for()
    assert Queue.objects.get(name="emails").paused_at
    dashboard.shows("paused")
    page.get_by_role("button", name="Resume emails").click()
    page.get_by_role("button", name="Pause emails").wait_for()
    assert Queue.objects.get(name="emails").paused_at is None


def test_new_numbers_appear_and_what_was_opened_and_focused_stays(dashboard):
    page = dashboard.page
    _waiting(dashboard, 3)
    numbers = page.locator("#ojs-numbers-jobs")
    numbers.locator("summary").click()
    page.get_by_label("Refresh by itself").focus()
    _enqueue(2)
    _pass_time(dashboard)
    _waiting(dashboard, 5)
    numbers.locator("table").wait_for()
    assert dashboard.focus.get_attribute("id") == "ojs-refresh"


def test_a_part_stays_as_it_is_while_somebody_is_in_it(dashboard):
    page = dashboard.page
    button = page.get_by_role("button", name="Pause emails")
    button.focus()
    _enqueue(2)
    _pass_time(dashboard)
    dashboard.shows("except where you are")
    _waiting(dashboard, 3)
    assert dashboard.focus.get_attribute("aria-label") == "Pause emails"
    page.get_by_label("Refresh by itself").focus()
    _pass_time(dashboard)
    _waiting(dashboard, 5)


def test_its_first_lines_renew_themselves_by_themselves(dashboard):
    page, requests = dashboard.page, []
    page.on("request", lambda request: requests.append(request.url))
    _enqueue(2)
    seconds = int(page.locator(".ojs-dashboard").get_attribute("data-live-seconds"))
    page.clock.run_for((seconds + 1) * 1000)
    page.locator("#ojs-now").get_by_role("link", name="5", exact=True).wait_for()
    assert requests == [dashboard.url("dashboard_now")]
    _waiting(dashboard, 3)  # the rest waits for its own turn


HIDE = """hidden => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}"""


def test_nothing_is_asked_while_the_tab_is_hidden(dashboard):
    page, requests = dashboard.page, []
    page.evaluate(HIDE, True)
    page.on("request", lambda request: requests.append(request.url))
    _enqueue(2)
    _pass_time(dashboard)
    assert not requests
    page.evaluate(HIDE, False)
    _waiting(dashboard, 5)


def test_without_javascript_it_is_a_plain_page(visit):
    operator = visit(User.objects.create_superuser("grace"), java_script_enabled=False)
    gallery.fill()
    operator.opens("dashboard", span="day")
    assert not operator.page.get_by_label("Refresh by itself").is_visible()
    assert operator.page.locator("#ojs-now dd").first.is_visible()
    operator.page.get_by_role("link", name="Refresh").click()
    operator.shows("Failures")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_fits_the_screen_and_is_accessible(visit, scheme, width):
    operator = visit(User.objects.create_superuser("grace"), color_scheme=scheme)
    gallery.fill()
    Job._base_manager.filter(state="available", queue="emails").update(
        enqueued_at=timezone.now() - timedelta(minutes=9)
    )
    operator.page.set_viewport_size({"width": width, "height": 900})
    operator.opens("dashboard", span="day")
    assert not operator.page.evaluate("document.documentElement.scrollWidth > innerWidth")
    if width == 1280:
        tables = operator.page.locator(".ojs-table").all()
        assert len(tables) >= 4
        assert not any(table.evaluate("box => box.scrollWidth > box.clientWidth") for table in tables)
    assert operator.page.locator("#ojs-queues").get_by_text("long", exact=True).is_visible()
    assert operator.violations() == []


def test_a_failed_count_leads_to_its_jobs_without_a_mouse(operator):
    dead = gallery.dead()
    operator.opens("dashboard")
    tab_to(operator, "#ojs-failures td.number a")
    operator.page.keyboard.press("Enter")
    operator.page.wait_for_url("**error=ConnectionError**")
    rows = operator.page.locator("#result_list tbody tr")
    assert rows.count() == 1
    assert rows.locator(f"a[href*='{dead.pk}']").is_visible()


def test_it_rests_when_it_is_told_to_and_remembers_that(dashboard):
    page = dashboard.page
    page.get_by_label("Refresh by itself").uncheck()
    page.reload()
    assert not page.get_by_label("Refresh by itself").is_checked()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    _pass_time(dashboard)
    assert not requests
