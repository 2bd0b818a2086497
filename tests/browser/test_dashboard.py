"""The dashboard renews itself under the operator's hands, and a queue is paused and resumed there."""

import pytest

from django_ojs_unique.models import Job, Queue


@pytest.fixture
def dashboard(operator):
    """A dashboard whose time passes only when a test says so."""
    _enqueue(3)
    operator.page.clock.install()
    operator.opens("dashboard")
    return operator


def _enqueue(number):
    Job.objects.enqueue_many({"type": "email.send", "queue": "emails"} for _ in range(number))


def _pass_time(visitor):
    seconds = int(visitor.page.locator(".ojs-dashboard").get_attribute("data-seconds"))
    visitor.page.clock.run_for((seconds + 1) * 1000)


def _waiting(visitor, number):
    """Wait until the page says how many jobs wait in the queue."""
    visitor.page.locator("#ojs-queues tr", has_text="emails").get_by_role("link", name=str(number)).wait_for()


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


def test_it_rests_when_it_is_told_to_and_remembers_that(dashboard):
    page = dashboard.page
    page.get_by_label("Refresh by itself").uncheck()
    page.reload()
    assert not page.get_by_label("Refresh by itself").is_checked()
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    _pass_time(dashboard)
    assert not requests
