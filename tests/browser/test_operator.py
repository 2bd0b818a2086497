"""An operator's day."""

from django_ojs_unique.models import Job
from tests.browser import gallery


def test_a_refused_duplicate_is_found_explained_and_admitted_once_its_holder_is_cancelled(operator):
    page, press = operator.page, lambda: operator.page.get_by_role("button", name="Render the invoice").click()
    page.goto(f"{operator.base}/shop/")
    press()
    operator.shows("Created ")
    holder = Job.objects.get()
    press()
    operator.shows(f"Refused: {holder.pk} is available")

    operator.opens("job_changelist", q="invoice.render")
    page.locator(f"#result_list a[href*='{holder.pk}']").first.click()
    operator.shows("1 enqueue met this job")
    page.get_by_role("cell", name="reject", exact=True).wait_for()

    operator.opens("explain")
    page.get_by_label("Type:").fill("invoice.render")
    page.get_by_label("Args:").fill('{"order": 17}')
    page.get_by_role("button", name="Explain").click()
    operator.shows("The enqueue would be refused")
    assert page.get_by_role("link", name=str(holder.pk)).first.is_visible()

    operator.acts("cancel", holder)
    operator.shows("Cancelled: 1 job")

    page.goto(f"{operator.base}/shop/")
    press()
    operator.shows("Created ")
    assert list(Job.objects.order_by("pk").values_list("state", flat=True)) == ["cancelled", "available"]


def test_a_dead_letter_is_retried_in_the_place_of_a_live_duplicate_once_that_is_chosen(operator):
    page, dead = operator.page, gallery.dead()
    live = Job.objects.get(state="available")

    operator.acts("retry", dead)
    page.get_by_label("Skip:").wait_for()
    assert operator.violations() == []
    page.get_by_role("button", name="Retry").click()
    operator.shows("Retried: 0. Not retried: 1.")
    operator.shows(f"job {live.pk} is a live duplicate (available)")
    page.get_by_role("link", name="Back", exact=True).click()

    operator.acts("retry", dead)
    page.get_by_label("Replace:").check()
    page.get_by_role("button", name="Retry").click()
    operator.shows("Retried: 1. Not retried: 0.")
    assert page.get_by_role("link", name=str(live.pk)).is_visible()
    assert dict(Job.objects.values_list("pk", "state")) == {dead.pk: "available", live.pk: "cancelled"}


def test_live_duplicates_are_resolved_after_a_page_that_says_what_would_be_done(operator):
    page, (retried, newer) = operator.page, gallery.pair()
    operator.opens("duplicates")
    page.get_by_role("button", name="Keep the newest…", exact=True).click()
    operator.shows("Nothing has been done yet.")
    assert operator.violations() == []
    assert Job.objects.filter(state="available").count() == 2
    page.get_by_role("button", name="Yes, cancel 1 job").click()
    operator.shows("Cancelled: 1 job")
    states = dict(Job.objects.values_list("pk", "state"))
    assert states == {retried.pk: "cancelled", newer.pk: "available"}
    operator.opens("duplicates")
    operator.shows("There are none")


def test_all_jobs_that_match_are_cancelled_after_a_page_that_says_how_many(operator):
    page = operator.page
    Job.objects.enqueue_many({"type": "mail.send", "args": {"n": number}} for number in range(1050))
    other = Job.objects.enqueue("report.build").job
    operator.opens("job_changelist", type="mail.send")
    page.get_by_role("checkbox", name="Select all").check()
    page.get_by_role("button", name="Choose all that match").focus()
    page.keyboard.press("Enter")
    operator.shows("All that match are chosen")
    page.get_by_label("Action:").select_option("cancel")
    page.get_by_role("button", name="Run").or_(page.get_by_role("button", name="Go")).first.click()
    operator.shows("This is for all jobs that match the filters of the list")
    assert operator.violations() == []
    assert not Job.objects.filter(state="cancelled").exists()
    page.get_by_role("button", name="Yes, cancel: 1,050 jobs").click()
    operator.shows("Cancelled: 1,050 jobs.")
    assert set(Job.objects.exclude(pk=other.pk).values_list("state", flat=True)) == {"cancelled"}
    assert Job.objects.get(pk=other.pk).state == "available"
    page.get_by_role("link", name="Back to the list").click()
    operator.shows("cancelled")
